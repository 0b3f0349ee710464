"""One training step beside transformers' GPT-2 and x-transformers, interleaved; written to results/benchmarks.

Same sizes, data, optimiser (fused AdamW), clipping and precision; no dropout; learned positions; fused attention; one
thread. Else each as it comes: lab's products are `arithmetic.fast`, GPT-2's GELU is a formula of several operations,
x-transformers has fewer biases. Beside them GPT-2 with lab's products, the products and the fused attention of such a
step alone, since what uses these kernels is not faster, and one large product, the machine's peak: both `fast` too.
Last, `train()` beside a plain loop over the same model: what the lab's own loop costs, in processor time.
"""

from functools import partial
from itertools import product

import pandas as pd
import summary
import torch
import torch.nn.functional as F
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel
from x_transformers import Decoder, TransformerWrapper

from lab import charts
from lab.arithmetic import fast
from lab.measure import cost, statistics, timing
from lab.models import ModelConfig, Transformer
from lab.tasks.code import Code
from lab.training import TrainConfig, cross_entropy, train

N_LAYERS, CONTEXT, BATCH, VOCABULARY, D_HEAD, PEAK = 4, 128, 8, 256, 32, 2048
DEEP = 24, 32  # layers and width of a stack of many small parameters


def ours(d_model, n_layers=N_LAYERS):
    config = ModelConfig(
        vocab_size=VOCABULARY, block_size=CONTEXT, d_model=d_model, n_layers=n_layers, n_heads=d_model // D_HEAD,
        bias=True, position="learned",
    )  # fmt: skip
    model = Transformer(config)
    return model, lambda tokens, targets: cross_entropy(model(tokens), targets)


def gpt2(d_model):
    config = GPT2Config(
        vocab_size=VOCABULARY, n_positions=CONTEXT, n_embd=d_model, n_layer=N_LAYERS, n_head=d_model // D_HEAD,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    model = GPT2LMHeadModel(config)
    return model, lambda tokens, targets: cross_entropy(model(tokens).logits, targets)


def x_transformers(d_model):
    blocks = Decoder(
        dim=d_model, depth=N_LAYERS, heads=d_model // D_HEAD, attn_dim_head=D_HEAD, attn_flash=True
    )  # fmt: skip
    model = TransformerWrapper(num_tokens=VOCABULARY, max_seq_len=CONTEXT, attn_layers=blocks)
    return model, lambda tokens, targets: cross_entropy(model(tokens), targets)


def faster(call):
    """`call` with the products of matrices that lab's trials use."""

    def run():
        with fast():
            call()

    return run


def step(model, loss, tokens, targets):
    """A function that takes one training step."""
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3, fused=True)
    model.train()

    def run():
        optimizer.zero_grad()
        loss(tokens, targets).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return run


def kernels(d_model):
    """A function that multiplies the matrices of one step and attends, each forward and backward, and nothing else."""
    model, _ = ours(d_model)
    maps = [m.weight.detach() for m in model.modules() if isinstance(m, nn.Linear)]
    inputs = [torch.randn(BATCH * CONTEXT, w.shape[1]) for w in maps]
    gradients = [torch.randn(BATCH * CONTEXT, w.shape[0]) for w in maps]
    heads = torch.randn(4, BATCH, d_model // D_HEAD, CONTEXT, D_HEAD)
    q, k, v = (x.requires_grad_() for x in heads[:3])

    def run():
        for x, w, g in zip(inputs, maps, gradients, strict=True):
            F.linear(x, w), g @ w, g.T @ x
        for _ in range(N_LAYERS):
            torch.autograd.grad(
                F.scaled_dot_product_attention(q, k, v, is_causal=True), (q, k, v), heads[3]
            )

    return run


def plain_loop(model, draw, config):
    """The training that train() does, as one would write it down."""
    generator = torch.Generator().manual_seed(0)
    optimizer = torch.optim.AdamW(
        model.parameters(), betas=config.betas, weight_decay=config.weight_decay, fused=True
    )
    model.train()
    for i in range(config.steps):
        tokens, targets = draw(generator, config.batch)
        loss = cross_entropy(model(tokens), targets)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), config.clip)
        optimizer.param_groups[0]["lr"] = config.rate(i)
        optimizer.step()


def loops(n_layers, d_model, repeats):
    """Long form like measure(), one row per training of a few steps."""
    config = TrainConfig(steps=max(2, 512 // d_model), batch=BATCH, warmup=0)
    calls = {}
    for loop in (train, plain_loop):
        (model, _), draw = ours(d_model, n_layers), Code(context=CONTEXT).batch
        calls[loop.__name__, n_layers, d_model] = faster(partial(loop, model, draw, config))
    parts = ["name", "n_layers", "d_model"]
    table = summary.repeated(partial(timing.benchmark, calls, parts), repeats)
    seconds = table.pop("seconds_a_call") / config.steps
    table["tokens_per_second"] = BATCH * CONTEXT / seconds
    table["gflop_per_s"] = 1e-9 * operations(d_model, n_layers) / seconds
    return table.drop(columns="wall_seconds_a_call")


def operations(d_model, n_layers=N_LAYERS):
    """Floating-point operations of one step, two a multiply-add, the backward pass twice the forward one."""
    heads = d_model // D_HEAD
    block = cost.block_macs(CONTEXT, d_model, heads, heads, D_HEAD, 4 * d_model, causal=True)
    return 2 * 3 * BATCH * (n_layers * sum(block.values()) + CONTEXT * d_model * VOCABULARY)


def measure(d_model, repeats, tokens, targets):
    """Long form, one row per step: n_layers, d_model, name, repeat, tokens_per_second, gflop_per_s."""
    arms = {"lab": ours, "GPT-2": gpt2, "x-transformers": x_transformers}
    calls = {name: step(*arm(d_model), tokens, targets) for name, arm in arms.items()}
    calls["lab"] = faster(calls["lab"])
    calls["GPT-2, lab's products"] = faster(step(*gpt2(d_model), tokens, targets))
    calls["its kernels alone"] = faster(kernels(d_model))
    a, b = torch.randn(2, PEAK, PEAK)
    calls["matrix product"] = faster(lambda: torch.mm(a, b))
    table = timing.rounds(calls, repeats, warmup=2)
    peak = table.name == "matrix product"
    table["tokens_per_second"] = (BATCH * CONTEXT / table.seconds).mask(peak)
    table["gflop_per_s"] = 1e-9 * (operations(d_model) / table.seconds).mask(
        peak, 2 * PEAK**3 / table.seconds
    )
    table[["n_layers", "d_model"]] = N_LAYERS, d_model
    return table.drop(columns="seconds")


def verdicts(table):
    own = table.name.isin(["train", "plain_loop"])
    for d_model, rows in table[~own].groupby("d_model"):
        speed = rows.pivot(
            index="repeat", columns="name", values="gflop_per_s"
        )  # the same operations in every arm
        over = {name: statistics.ratio(speed["lab"], speed[name]) for name in speed}
        yield summary.line(f"lab over GPT-2, d {d_model}", over["GPT-2"], at_least=1.3)
        yield summary.line(
            f"lab over GPT-2 with lab's products, d {d_model}",
            over["GPT-2, lab's products"],
            at_least=1,
        )
        yield summary.line(
            f"lab over x-transformers, d {d_model}", over["x-transformers"], at_least=1
        )
        if d_model == 512:
            yield summary.line(
                f"share of the peak, d {d_model}", over["matrix product"], at_least=0.6
            )
    for (n_layers, d_model), rows in table[own].groupby(["n_layers", "d_model"]):
        speed = rows.pivot(index="repeat", columns="name", values="tokens_per_second")
        over = statistics.ratio(speed["train"], speed["plain_loop"])
        yield summary.line(
            f"train() over a plain loop, {n_layers} layers of d {d_model}", over, at_least=0.98
        )


def plot(table):
    import matplotlib.pyplot as plt

    _, axes = plt.subplots(1, 2)
    table = table[~table.name.isin(["train", "plain_loop"])]
    for ax, column in zip(axes, ("tokens_per_second", "gflop_per_s"), strict=True):
        for i, (name, rows) in enumerate(table.groupby("name")):
            if rows[column].isna().all():
                continue
            median = rows.groupby("d_model")[column].median()
            ax.plot(median.index, median, "o-", color=charts.COLORS[i], label=name)
            ax.plot(rows.d_model, rows[column], ".", color=charts.COLORS[i], alpha=0.4, ms=3)
        charts.log2_xaxis(ax, table.d_model.unique())
        ax.set(xlabel="d_model")
    axes[0].set(yscale="log", ylabel="tokens per second", title="One training step, one thread")
    axes[1].set(ylim=(0, None), ylabel="GFLOP/s", title="Counted operations over time")
    axes[0].legend(*axes[1].get_legend_handles_labels(), loc="lower left")


def main(given=None):
    options = summary.options(__doc__, given, repeats=12, pairs=30, widths=[64, 128, 256, 512])
    torch.set_num_threads(1)
    tokens, targets = Code(context=CONTEXT).validation(BATCH)
    parts = [measure(width, options.repeats, tokens, targets) for width in options.widths]
    parts += [loops(*size, options.pairs) for size in [*product([N_LAYERS], options.widths), DEEP]]
    table = pd.concat(parts)
    summary.write("training_step", options.folder, table, plot, verdicts(table))


if __name__ == "__main__":
    main()
