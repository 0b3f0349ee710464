"""Weights of finished models: shared tensors, and quantized weights (chapter §1.4.5)."""

from copy import deepcopy
from fnmatch import fnmatchcase
from itertools import chain

from torch import nn


class NamedOnce(nn.Module):
    """A model whose shared tensors are stored once, under their first name, and stay shared.

    This holds even if tensors are replaced, by `to_empty` or `load_state_dict(assign=True)`.
    """

    def __init__(self):
        super().__init__()
        self.register_state_dict_post_hook(_drop)
        self.register_load_state_dict_pre_hook(_fill)
        self.register_load_state_dict_post_hook(_tie_again)

    def _apply(self, fn, recurse=True):
        names = shared_names(self)
        super()._apply(fn, recurse)
        tie(self, names)
        return self


def shared_names(model):
    """{other name: first name} of parameters and buffers with several names."""
    first, found = {}, {}
    named = (
        model.named_parameters(remove_duplicate=False),
        model.named_buffers(remove_duplicate=False),
    )
    for name, tensor in chain(*named):
        if first.setdefault(id(tensor), name) != name:
            found[name] = first[id(tensor)]
    return found


def _drop(model, state, prefix, metadata):
    for name in shared_names(model):
        state.pop(prefix + name, None)


def _fill(model, state, prefix, *rest):
    model.names_to_tie = shared_names(model)
    for name, first in model.names_to_tie.items():
        if prefix + first in state:
            state.setdefault(prefix + name, state[prefix + first])


def _tie_again(model, incompatible_keys):
    tie(model, model.names_to_tie)


def tie(model, names):
    """For {other name: first name}, let the other name refer to the tensor of the first name."""
    for name, first in names.items():
        module, _, own = name.rpartition(".")
        source, _, there = first.rpartition(".")
        setattr(model.get_submodule(module), own, getattr(model.get_submodule(source), there))


def fake_quantize(x, bits):
    """Round x to a symmetric grid of 2^bits - 1 values, one scale per vector of the last axis."""
    grid = x.abs().amax(-1, keepdim=True).clamp(min=1e-12) / (2 ** (bits - 1) - 1)
    return (x / grid).round() * grid


def fake_quantized(model, bits, sites="*.ffn.*"):
    """A copy of the model whose linear maps under `sites` use quantized weights and inputs.

    With 8 bits their products equal int8 products. `sites` is a glob over module names. Raises
    ValueError for fewer than 2 bits and LookupError if no linear map matches.
    """
    if bits < 2:
        raise ValueError(f"a symmetric grid needs at least 2 bits, got {bits}")
    model = deepcopy(model)
    maps = [
        m
        for name, m in model.named_modules()
        if isinstance(m, nn.Linear) and fnmatchcase(name, sites)
    ]
    if not maps:
        raise LookupError(f"{sites!r} names no linear map")
    for m in maps:
        m.weight.data = fake_quantize(m.weight.data, bits)
        m.register_forward_pre_hook(lambda m, args: (fake_quantize(args[0], bits),))
    return model
