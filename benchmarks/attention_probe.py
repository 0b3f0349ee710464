"""The entropy of every head of a long GPT-2: the probe beside `output_attentions=True`; written to results/benchmarks.

Both run transformers' model (4 layers of 8 heads, random weights) on the same tokens and measure with the same
function. Memory is the most that tensors take above those of the loaded model.
"""

from functools import cache

import summary
import torch
from transformers import GPT2Config, GPT2Model

from lab.measure import attention, statistics, timing
from lab.measure.memory import peak_memory


@cache
def model(n, d_model, implementation):
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=256, n_positions=n, n_embd=d_model, n_layer=4, n_head=8, use_cache=False,
        bos_token_id=0, eos_token_id=0, attn_implementation=implementation,
    )  # fmt: skip
    return GPT2Model(config).eval()


def tokens(length):
    return torch.randint(256, (1, length), generator=torch.Generator().manual_seed(0))


def probed(length, n, d_model):
    """Entropy of each head, layer by layer, over `length` of the model's n positions."""
    with torch.no_grad(), attention.attention_probe([attention.entropy]) as probe:
        model(n, d_model, "sdpa")(tokens(length))
    return probe.table().value.tolist()


def from_maps(length, n, d_model):
    """The same from the maps that the model returns."""
    with torch.no_grad():
        maps = model(n, d_model, "eager")(tokens(length), output_attentions=True).attentions
        return [x for each in maps for x in attention.entropy(each).mean((0, 2)).tolist()]


ARMS = {"lab's probe": probed, "output_attentions": from_maps}


def measure(n, d_model, repeats):
    """Long form: name, repeat, seconds, peak_bytes."""
    tiny = (64, n, d_model)
    torch.testing.assert_close(
        torch.tensor(probed(*tiny)), torch.tensor(from_maps(*tiny)), atol=1e-5, rtol=1e-4
    )
    calls = {name: (lambda arm=arm: arm(n, n, d_model)) for name, arm in ARMS.items()}
    table = timing.rounds(calls, repeats, warmup=0)
    sizes = [(n, n, d_model)]
    table["peak_bytes"] = [
        peak_memory(ARMS[name], sizes, warmup_args=tiny)[0] for name in table.name
    ]
    return table


def verdicts(table):
    wide = table.pivot(index="repeat", columns="name")
    over = {
        column: statistics.ratio(*(wide[column][name] for name in ARMS))
        for column in ("seconds", "peak_bytes")
    }
    yield summary.line("peak memory over output_attentions", over["peak_bytes"], at_most=1 / 8)
    yield summary.line("time over output_attentions", over["seconds"], at_most=0.6)


def plot(table):
    import matplotlib.pyplot as plt

    _, axes = plt.subplots(1, 2)
    wide = table.set_index("name")
    for ax, values, label in zip(
        axes, (wide.seconds, wide.peak_bytes / 1e9), ("seconds", "extra GB"), strict=True
    ):
        for i, name in enumerate(ARMS):
            ax.bar(name, values[[name]].median(), 0.5)
            ax.plot([i] * len(values[[name]]), values[[name]], "k.", ms=3)
        ax.set(ylabel=label)
    axes[0].set(title="Entropy of every head")
    axes[1].set(title="Largest memory above the model's")


def main(given=None):
    options = summary.options(__doc__, given, repeats=3, length=4096, width=512)
    torch.set_num_threads(1)
    table = measure(options.length, options.width, options.repeats)
    summary.write("attention_probe", options.folder, table, plot, verdicts(table))


if __name__ == "__main__":
    main()
