"""What tests share: small parts in double precision for those of the errata, and notebooks of their own."""

import nbformat
import torch

from lab.models import ModelConfig
from lab.models.heads import Heads
from lab.models.norms import Norm


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def config(**fields):
    sizes = {"vocabulary": 16, "context": 16, "d_model": 128, "n_layers": 1, "n_heads": 4}
    return ModelConfig(**(sizes | fields)).layer(0)


def heads(kind="full", **fields):
    torch.manual_seed(0)
    return Heads.build(kind, config(**fields)).double().requires_grad_(False)


def norm(kind="layernorm", width=16):
    return Norm.build(kind, config(d_model=width)).double()


def notebook_with(folder, name="mine.ipynb", **tagged):
    """A notebook with a cell for each tag, and one without."""
    book = nbformat.v4.new_notebook()
    for tag, source in tagged.items():
        book.cells.append(nbformat.v4.new_code_cell(source.strip("\n"), metadata={"tags": [tag]}))
    book.cells.append(nbformat.v4.new_code_cell("print('a run')"))
    nbformat.write(book, folder / name)
    return folder / name
