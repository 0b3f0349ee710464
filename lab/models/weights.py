"""Shared weights in checkpoints, and access to the matrices of QKV projections."""

from itertools import chain

from torch import nn


class NamedOnce(nn.Module):
    """Base class of models. A checkpoint stores each shared tensor once, under its first name.

    Tensors stay shared even if `to_empty` or `load_state_dict(assign=True)` replaces them.
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
    """For each {other name: first name}, make the other name refer to the tensor of the first."""
    for name, first in names.items():
        module, _, own = name.rpartition(".")
        source, _, there = first.rpartition(".")
        setattr(model.get_submodule(module), own, getattr(model.get_submodule(source), there))


class OfHeads:
    """Mixin of QKVProjection: access to its weights by role."""

    def matrices(self):
        """Views of W_Q, W_K and W_V."""
        return self.qkv.weight.split([n * self.d for n in (self.n, self.kv, self.kv)])

    def query_key_weights(self):
        """Views of W_Q and W_K."""
        return self.matrices()[:2]

    def value_weights(self):
        """Views of the weights that map the residual stream to the values, without W_O."""
        return self.matrices()[2:]
