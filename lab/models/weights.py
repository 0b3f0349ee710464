"""Weights of a finished model: tensors with several names, and weights of few bits (chapter §1.4.5)."""

from copy import deepcopy
from fnmatch import fnmatchcase
from itertools import chain

from torch import nn


def named_once(model):
    """`model`, whose `state_dict()` leaves out every name of a tensor but the first, and which loads that strictly.

    After loading with assign=True, or onto a model that came from the meta device, these names are one tensor again.
    """
    model.shared_names = repeats(model)
    model.register_state_dict_post_hook(_drop)
    model.register_load_state_dict_pre_hook(_fill)
    model.register_load_state_dict_post_hook(_join)
    return model


def repeats(model):
    """{other name: first name} of parameters and buffers with several names."""
    first, found = {}, {}
    named = (model.named_parameters(remove_duplicate=False), model.named_buffers(remove_duplicate=False))
    for name, tensor in chain(*named):
        if first.setdefault(id(tensor), name) != name:
            found[name] = first[id(tensor)]
    return found


def _drop(model, state, prefix, metadata):
    for name in model.shared_names:
        state.pop(prefix + name, None)


def _fill(model, state, prefix, *rest):
    for name, first in model.shared_names.items():
        if prefix + first in state:
            state.setdefault(prefix + name, state[prefix + first])


def _join(model, incompatible):
    for name, first in model.shared_names.items():
        owner, _, leaf = first.rpartition(".")
        tensor = getattr(model.get_submodule(owner), leaf)
        owner, _, leaf = name.rpartition(".")
        if getattr(model.get_submodule(owner), leaf) is not tensor:
            setattr(model.get_submodule(owner), leaf, tensor)


def fake_quantize(x, bits):
    """x on a grid of 2^bits - 1 values symmetric about 0, one scale for each vector of the last axis."""
    grid = x.abs().amax(-1, keepdim=True).clamp(min=1e-12) / (2 ** (bits - 1) - 1)
    return (x / grid).round() * grid


def fake_quantized(model, bits, sites="*.ffn.*"):
    """A copy whose linear maps under `sites` multiply quantized weights and quantized inputs: at 8 bits, int8 products.

    ValueError for fewer than 2 bits; LookupError where no linear map is named so.
    """
    if bits < 2:
        raise ValueError(f"a grid symmetric about 0 needs at least 2 bits, got {bits}")
    model = deepcopy(model)
    maps = [m for name, m in model.named_modules() if isinstance(m, nn.Linear) and fnmatchcase(name, sites)]
    if not maps:
        raise LookupError(f"{sites!r} names no linear map")
    for m in maps:
        m.weight.data = fake_quantize(m.weight.data, bits)
        m.register_forward_pre_hook(lambda m, args: (fake_quantize(args[0], bits),))
    return model
