"""Tensors that a model uses in several places stand once in its state dict, under the first of their names."""

from itertools import chain


def named_once(model):
    """`model`, whose `state_dict()` leaves out every name of a tensor but the first, and which loads that strictly."""
    model.register_state_dict_post_hook(_drop)
    model.register_load_state_dict_pre_hook(_fill)
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
    for name in repeats(model):
        state.pop(prefix + name, None)


def _fill(model, state, prefix, *rest):
    for name, first in repeats(model).items():
        if prefix + first in state:
            state.setdefault(prefix + name, state[prefix + first])
