"""Greedy generation with a cache beside transformers' `generate`: interleaved; written to results/benchmarks.

Both are models of GPT-2's sizes (learned positions, biases) with random weights, and continue a prompt of 16 bytes.
Beside them the matrix products of the new tokens alone: what multiplies by these weights is not faster.
"""

import pandas as pd
import summary
import torch
import torch.nn.functional as F
from transformers import GPT2Config, GPT2LMHeadModel

from lab import charts
from lab.arithmetic import fast
from lab.measure import statistics, timing
from lab.models import ModelConfig, Transformer

N_LAYERS, PROMPT, VOCABULARY, D_HEAD = 4, 16, 256, 32


def ours(d_model, prompt, new):
    config = ModelConfig(
        vocab_size=VOCABULARY, block_size=PROMPT + new, d_model=d_model, n_layers=N_LAYERS, n_heads=d_model // D_HEAD,
        bias=True, position="learned",
    )  # fmt: skip
    model = Transformer(config).eval()

    def run():
        with fast():
            return model.generate(prompt, new, temperature=0)

    return run


def gpt2(d_model, prompt, new):
    config = GPT2Config(
        vocab_size=VOCABULARY, n_positions=PROMPT + new, n_embd=d_model, n_layer=N_LAYERS, n_head=d_model // D_HEAD,
        bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    model, seen = GPT2LMHeadModel(config).eval(), torch.ones_like(prompt)
    how = {"max_new_tokens": new, "do_sample": False, "use_cache": True}
    return lambda: model.generate(prompt, attention_mask=seen, **how)


def products(d_model, prompt, new):
    """A function that multiplies one token of each sequence by every matrix, `new` times, and nothing else."""
    sizes = [
        (3 * d_model, d_model),
        (d_model, d_model),
        (4 * d_model, d_model),
        (d_model, 4 * d_model),
    ] * N_LAYERS
    weights = [torch.randn(size) for size in [*sizes, (VOCABULARY, d_model)]]
    inputs = {width: torch.randn(len(prompt), width) for width in (d_model, 4 * d_model)}

    @torch.no_grad()
    def run():
        for _ in range(new):
            for w in weights:
                F.linear(inputs[w.shape[1]], w)

    return run


def measure(d_model, batch, new, repeats):
    """Long form, one row per generation: d_model, batch, name, repeat, tokens_per_second."""
    prompt = torch.randint(VOCABULARY, (batch, PROMPT), generator=torch.Generator().manual_seed(0))
    calls = {name: arm(d_model, prompt, new) for name, arm in {"lab": ours, "GPT-2": gpt2}.items()}
    for name, call in calls.items():
        if call().shape != (batch, PROMPT + new):
            raise RuntimeError(f"{name} did not generate {new} tokens")
    calls["its products alone"] = products(d_model, prompt, new)
    table = timing.rounds(calls, repeats, warmup=0)
    table["tokens_per_second"] = batch * new / table.pop("seconds")
    return table.assign(d_model=d_model, batch=batch)


def verdicts(table):
    for (batch, d_model), rows in table.groupby(["batch", "d_model"]):
        speed = rows.pivot(index="repeat", columns="name", values="tokens_per_second")
        over = statistics.ratio(speed["lab"], speed["GPT-2"])
        yield summary.line(f"lab over GPT-2, batch {batch}, d {d_model}", over, at_least=2)


def plot(table):
    import matplotlib.pyplot as plt

    batches = sorted(table.batch.unique())
    _, axes = plt.subplots(1, len(batches), squeeze=False)
    for ax, batch in zip(axes[0], batches, strict=True):
        for i, (name, rows) in enumerate(table[table.batch == batch].groupby("name")):
            median = rows.groupby("d_model").tokens_per_second.median()
            ax.plot(median.index, median, "o-", color=charts.COLORS[i], label=name)
            ax.plot(
                rows.d_model, rows.tokens_per_second, ".", color=charts.COLORS[i], alpha=0.4, ms=3
            )
        charts.log2_xaxis(ax, table.d_model.unique())
        ax.set(
            yscale="log",
            xlabel="d_model",
            ylabel="tokens per second",
            title=f"Greedy generation, batch {batch}",
        )
        ax.legend()


def main(given=None):
    options = summary.options(
        __doc__, given, repeats=6, widths=[64, 128, 256, 512], batches=[1, 32], new=128
    )
    torch.set_num_threads(1)
    sizes = [(width, batch) for width in options.widths for batch in options.batches]
    table = pd.concat([measure(*size, options.new, options.repeats) for size in sizes])
    table = table[["d_model", "batch", "name", "repeat", "tokens_per_second"]]
    summary.write("decoding", options.folder, table, plot, verdicts(table))


if __name__ == "__main__":
    main()
