"""Shared helpers: small modules in double precision, attention maps, random checkpoints, notebooks."""

import copy

import nbformat
import pytest
import torch

from lab.models import ModelConfig, Transformer
from lab.models.gpt import Norm, QKVProjection


def kinds_of_models(seam):
    """The kinds of a seam that are defined in lab.models."""
    return sorted(kind for kind, cls in seam.kinds.items() if cls.__module__.startswith("lab.models"))


REQUIRED = {  # options without a default
    "window": {"size": 5},
    "band": {"size": 5},
    "dilated": {"dilation": 2},
    "strided": {"stride": 3},
    "periodic": {"period": 3},
    "random": {"links": 2},
    "longformer": {"size": 2},
    "bigbird": {"size": 2, "tokens": 2},
    "by-head": {"masks": ["causal", {"kind": "window", "size": 2}]},
    "local": {"size": 4},
    "linformer": {"rank": 4},
    "offset-gate": {"reach": 6, "start": 0.0},
    "hierarchical": {"unit": 5},
}


def choice_of(kind):
    """The kind with its required options."""
    return {"kind": kind, **REQUIRED[kind]} if kind in REQUIRED else kind


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def config(**fields):
    sizes = {"vocab_size": 16, "block_size": 16, "d_model": 128, "n_layers": 1, "n_heads": 4}
    return ModelConfig(**(sizes | fields)).layer(0)


def heads(kind="full", **fields):
    torch.manual_seed(0)
    return QKVProjection.build(kind, config(**fields)).double().requires_grad_(False)


def norm(kind="layernorm", width=16):
    return Norm.build(kind, config(d_model=width)).double()


def small_config(**fields):
    sizes = {"vocab_size": 13, "block_size": 24, "d_model": 32, "n_layers": 2, "n_heads": 4}
    return ModelConfig(**(sizes | fields))


def small_model(seed=0, **fields):
    return Transformer(small_config(**fields), seed=seed).eval()


def tokens(length=12, batch=2, seed=0, classes=13):
    return torch.randint(classes, (batch, length), generator=torch.Generator().manual_seed(seed))


def randn(*shape, seed=0, **options):
    return torch.randn(shape, generator=generator(seed), **options)


def close(a, b, tolerance=1e-5):
    torch.testing.assert_close(a, b, atol=tolerance, rtol=tolerance)


def differs(a, b, by=1e-3):
    assert (a - b).abs().max() > by


def loss_of(model, inputs=None):
    return model(tokens() if inputs is None else inputs).square().mean()


def random_maps(b, h, n, seed=0):
    """Causal attention weights (b, h, n, n)."""
    scores = 2 * torch.randn(b, h, n, n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return scores.masked_fill(torch.ones(n, n, dtype=torch.bool).triu(1), -torch.inf).softmax(-1)


def uniform_maps(b, h, n):
    """Uniform causal attention weights (b, h, n, n)."""
    return (torch.ones(n, n, dtype=torch.float64).tril() / torch.arange(1, n + 1)[:, None]).expand(b, h, n, n)


def tensors(b, h, g, q, k, d, seed=0):
    """Query (b, h, q, d), key and value (b, g, k, d), and the generator that drew them."""
    rng = torch.Generator().manual_seed(seed)
    shapes = [(b, h, q, d), (b, g, k, d), (b, g, k, d)]
    return [2 * torch.randn(shape, generator=rng) for shape in shapes], rng


def huggingface(kind):
    """A transformers model with two layers and random weights: (model, the same model with eager attention)."""
    transformers = pytest.importorskip("transformers")
    sizes = dict(vocab_size=50, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48)
    config = {
        "gpt2": lambda: transformers.GPT2Config(vocab_size=50, n_embd=32, n_layer=2, n_head=4),
        "bert": lambda: transformers.BertConfig(**sizes),
        "llama": lambda: transformers.LlamaConfig(**sizes, num_key_value_heads=2),
    }[kind]()
    torch.manual_seed(0)
    model = transformers.AutoModel.from_config(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # makes attention non-uniform
            parameter.mul_(10) if parameter.ndim == 2 else None
    eager = transformers.AutoModel.from_config(copy.deepcopy(config), attn_implementation="eager").eval()
    eager.load_state_dict(model.state_dict())
    return model, eager


def notebook_with(folder, name="mine.ipynb", **tagged):
    """Write a notebook with one cell per tag and one untagged cell."""
    book = nbformat.v4.new_notebook()
    for tag, source in tagged.items():
        book.cells.append(nbformat.v4.new_code_cell(source.strip("\n"), metadata={"tags": [tag]}))
    book.cells.append(nbformat.v4.new_code_cell("print('a run')"))
    nbformat.write(book, folder / name)
    return folder / name


def without_times(table):
    return table.drop(columns="seconds")


def sink_mass(weights, positions=None):
    """Weight on key 0: (b, h, t)."""
    return weights[..., 0]


def max_weight(weights, positions=None):
    """Largest weight of each row: (b, h, t)."""
    return weights.amax(-1)


def row_sum(weights, positions=None):
    """Sum of each row: (b, h, t)."""
    return weights.sum(-1)


def local_mass(radius):
    """Measure: weight on the keys at most `radius` positions away."""

    def measure(weights, positions):
        near = (positions[:, None] - torch.arange(weights.shape[-1])).abs() <= radius  # (t, k)
        return torch.linalg.vecdot(weights, near.to(weights.dtype))

    measure.__name__ = f"local_mass_{radius}"
    return measure
