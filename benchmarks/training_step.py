"""Training throughput beside transformers' GPT-2: tokens per second, interleaved; written to results/benchmarks.

Same sizes, biases, data, optimiser (fused AdamW), clipping and precision; no dropout; learned positions; one thread.
Beside them the matrix products and the fused attention of such a step alone: what uses these kernels is not faster.
"""

import argparse

import pandas as pd
import torch
import torch.nn.functional as F
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel

from lab import figures, results
from lab.measure import cost, statistics
from lab.models import ModelConfig, Transformer
from lab.tasks.code import Code
from lab.training import cross_entropy

N_LAYERS, CONTEXT, BATCH, VOCABULARY = 4, 128, 8, 256


def ours(d_model):
    config = ModelConfig(
        vocabulary=VOCABULARY, context=CONTEXT, d_model=d_model, n_layers=N_LAYERS, n_heads=d_model // 32, bias=True,
        position="learned",
    )  # fmt: skip
    model = Transformer(config)
    return model, lambda tokens, targets: cross_entropy(model(tokens), targets)


def gpt2(d_model):
    config = GPT2Config(
        vocab_size=VOCABULARY, n_positions=CONTEXT, n_embd=d_model, n_layer=N_LAYERS, n_head=d_model // 32,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    model = GPT2LMHeadModel(config)
    return model, lambda tokens, targets: cross_entropy(model(tokens).logits, targets)


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
    heads = torch.randn(4, BATCH, d_model // 32, CONTEXT, 32)
    q, k, v = (x.requires_grad_() for x in heads[:3])

    def run():
        for x, w, g in zip(inputs, maps, gradients, strict=True):
            F.linear(x, w), g @ w, g.T @ x
        for _ in range(N_LAYERS):
            torch.autograd.grad(F.scaled_dot_product_attention(q, k, v, is_causal=True), (q, k, v), heads[3])

    return run


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--widths", type=int, nargs="+", default=[64, 128, 256])
    parser.add_argument("--repeats", type=int, default=15)
    options = parser.parse_args()
    torch.set_num_threads(1)
    tokens, targets = Code(context=CONTEXT).validation(BATCH)
    tables = []
    for width in options.widths:
        steps = {"lab": step(*ours(width), tokens, targets), "GPT-2": step(*gpt2(width), tokens, targets)}
        steps["its kernels alone"] = kernels(width)
        table = cost.interleaved(steps, options.repeats, warmup=3)
        tables.append(table.assign(d_model=width, tokens_per_second=BATCH * CONTEXT / table.seconds))
    table = pd.concat(tables)[["d_model", "name", "repeat", "tokens_per_second"]]
    folder = results.project_root() / "results" / "benchmarks"
    results.write_table(folder / "training_step.csv", table)
    figures.save(figures.draw(plot, table), folder / "training_step")
    for width in options.widths:
        print(f"d_model {width}: {ratio(table, width)}")


def ratio(table, width):
    wide = table[table.d_model == width].pivot(index="repeat", columns="name", values="tokens_per_second")
    medians = ", ".join(f"{name} {value:,.0f}" for name, value in wide.median().items())
    over = {name: statistics.ratio(wide[name], wide["GPT-2"]) for name in ("lab", "its kernels alone")}
    ratios = ", ".join(f"{name} {i.effect:.2f} [{i.low:.2f}, {i.high:.2f}]" for name, i in over.items())
    return f"{medians} tokens/s; over GPT-2: {ratios}"


def plot(table):
    import matplotlib.pyplot as plt

    fig, ax = plt.subplots()
    for name, group in table.groupby("name"):
        median = group.groupby("d_model").tokens_per_second.median()
        ax.plot(median.index, median, "o-", label=name)
        ax.plot(group.d_model, group.tokens_per_second, ".", color=ax.lines[-1].get_color(), alpha=0.4, ms=3)
    ax.set(
        xscale="log", yscale="log", xlabel="d_model", ylabel="tokens per second", title="One training step, one thread"
    )
    ax.set_xticks(sorted(table.d_model.unique()), sorted(table.d_model.unique()))
    ax.legend()


if __name__ == "__main__":
    main()
