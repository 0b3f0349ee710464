"""Hooks for any torch model.

`tap` records numbers from module outputs, `capture` keeps the outputs, `edit` replaces them, and
`Calls` intercepts every attention call.
"""

import os
import sys
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from types import FunctionType
from unittest.mock import patch

import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.overrides import TorchFunctionMode

COLUMNS = ["site", "measure", "call", "index", "value"]


@contextmanager
def tap(model, sites, *, gradients=False):
    """Measure outputs of modules: `with tap(model, {"*.ffn": rms}) as table: model(x)`.

    sites: {glob over model.named_modules(): measure or list of measures}. A measure maps the
    detached output of the module (the first element, if it is a tuple) to a number or a vector.
    With gradients=True it gets the gradient of that output instead. Only numbers are stored.

    Yields a function without arguments that returns the table so far: columns site, measure, call
    (index of the call of this module, from 0), index (entry of a vector, missing for a number) and
    value. A module that occurs in several places of the model has one name, its first, and one row
    for each of its calls.

    Raises LookupError if a glob matches no module. Raises RuntimeError at the end if a chosen
    module was never measured, because its parent uses its weights without calling it, as
    nn.MultiheadAttention does with out_proj, or because no gradient arrived.
    """
    rows = []
    calls = {}
    chosen = _chosen(model, sites)

    def record(site, call, tensor):
        with torch.no_grad():
            for measure in dict.fromkeys(chosen[site]):
                rows.extend(_rows(site, measure, call, tensor.detach()))

    def watch(site, output):
        tensor = _tensor(site, output)
        call = calls.get(site, 0)
        calls[site] = call + 1
        if not gradients:
            record(site, call, tensor)
        elif tensor.requires_grad:
            if tensor._is_view():
                tensor = tensor.clone()  # a view loses its hooks if it is changed in place
            handle = tensor.register_hook(lambda gradient: record(site, call, gradient))
            handles.enter_context(handle)
            return _with_tensor(output, tensor)

    with ExitStack() as handles:
        for site in chosen:
            handles.enter_context(_at_output(model, site, watch))
        yield lambda: pd.DataFrame(rows, columns=COLUMNS).astype({"index": "Int64", "value": float})
        why = "; no gradient arrived there" if gradients else ""
        _assert_fired(set(chosen) - {row[0] for row in rows}, why)


@contextmanager
def edit(model, sites):
    """Replace outputs of modules: `with edit(model, {"*.ffn": torch.zeros_like}): model(x)`.

    sites: {glob: function from tensor to tensor}; if a module returns a tuple, its first element is
    replaced. Several functions for one module apply in the order given. A `tap` opened inside an
    `edit` measures the edited output. Raises LookupError and RuntimeError as `tap` does, and
    TypeError if a function returns no tensor.
    """
    fired = set()
    chosen = _chosen(model, sites)

    def change(site, output):
        tensor = _tensor(site, output)
        fired.add(site)
        for function in chosen[site]:
            tensor = function(tensor)
            if not isinstance(tensor, torch.Tensor):
                raise TypeError(f"edit of {site!r} returned {type(tensor).__name__}, not a tensor")
        return _with_tensor(output, tensor)

    with ExitStack() as handles:
        for site in chosen:
            handles.enter_context(_at_output(model, site, change))
        yield
        _assert_fired(set(chosen) - fired)


@contextmanager
def capture(modules, *, inputs=False):
    """Keep outputs of modules: `with capture(model.blocks) as kept: model(x)`.

    Yields a list that gets one tensor per call of a module, in the order in which calls end: the
    output, or its first element if it is a tuple. With inputs=True it gets the tuple of positional
    arguments instead. Tensors are detached, not copied: later in-place changes by the model show in
    the list. Raises RuntimeError at the end if a module never ran.
    """
    kept = []
    ran = set()
    modules = list(dict.fromkeys(modules))

    def keep(module, arguments, output):
        ran.add(module)
        if inputs:
            kept.append(tuple(x.detach() if isinstance(x, Tensor) else x for x in arguments))
        else:
            kept.append(_tensor(type(module).__name__, output).detach())

    with ExitStack() as handles:
        for module in modules:
            handles.enter_context(module.register_forward_hook(keep))
        yield kept
        _assert_fired({type(module).__name__ for module in modules if module not in ran})


def _chosen(model, sites):
    """{module name: functions} of all modules that match the globs."""
    names = [name for name, _ in model.named_modules()]
    chosen = {}
    for glob, functions in sites.items():
        matching = [name for name in names if fnmatchcase(name, glob)]
        if not matching:
            raise LookupError(f"{glob!r} matches no module; there are {names}")
        for name in matching:
            several = isinstance(functions, list | tuple)
            chosen.setdefault(name, []).extend(functions if several else [functions])
    return chosen


def _at_output(model, site, function):
    """Register function(site, output) as forward hook of the named module; return the handle."""

    def hook(module, arguments, output):
        return function(site, output)

    return model.get_submodule(site).register_forward_hook(hook)


def _assert_fired(silent, why=""):
    if silent:
        raise RuntimeError(f"never called through: {sorted(silent)}{why}")


def _tensor(site, output):
    """The tensor that a module returned, alone or as first element of a tuple."""
    first = output[0] if isinstance(output, tuple) and output else output
    if not isinstance(first, torch.Tensor):
        kind = type(first).__name__
        raise TypeError(f"{site!r} returns {kind}: choose a module that returns a tensor")
    return first


def _with_tensor(output, tensor):
    """The output of a module with its tensor replaced."""
    return tensor if isinstance(output, torch.Tensor) else (tensor, *output[1:])


def _rows(site, measure, call, tensor):
    """Rows of COLUMNS for the number or vector that a measure returns."""
    value = torch.as_tensor(measure(tensor))
    name = getattr(measure, "__name__", str(measure))
    if value.ndim > 1:
        shape = tuple(value.shape)
        raise TypeError(f"measure {name} gave a tensor of shape {shape}, not a number or a vector")
    if value.ndim == 0:
        return [(site, name, call, pd.NA, value.item())]
    return [(site, name, call, index, entry) for index, entry in enumerate(value.tolist())]


@dataclass(frozen=True)
class Call:
    """The arguments of one F.scaled_dot_product_attention call, and its index, from 0.

    call() runs it; call(scale=1) runs it with another scale.
    """

    index: int
    query: Tensor  # (b, h, q, d), (h, q, d) or (q, d)
    key: Tensor  # (b, g, k, d)
    value: Tensor
    attn_mask: Tensor | None = None
    dropout_p: float = 0.0
    is_causal: bool = False
    scale: float | None = None
    enable_gqa: bool = False

    def dense_mask(self):
        """The mask as a boolean or additive tensor, or None; without `is_causal`."""
        # a class of torch.nn.attention.bias, which takes a second to import
        if hasattr(self.attn_mask, "_materialize"):
            return self.attn_mask._materialize(self.query.device)
        return self.attn_mask

    def __call__(self, **changes):
        arguments = vars(self) | changes
        del arguments["index"]
        return F.scaled_dot_product_attention(**arguments)


class Calls(TorchFunctionMode):
    """Context in which answer(call) gets each Call; its result, unless None, replaces the output.

    `count` is the number of calls; `hidden` counts calls of nn.MultiheadAttention that bypass
    F.scaled_dot_product_attention because weights were requested. Inside this context compiled
    models run uncompiled.
    """

    def __init__(self, answer):
        super().__init__()
        self.answer = answer
        self.count = 0
        self.hidden = 0
        self.inside = ExitStack()

    def __enter__(self):
        # if dynamo is not imported nothing is compiled, and importing it would take seconds
        if "torch._dynamo" in sys.modules:
            self.inside.enter_context(torch.compiler.set_stance("force_eager"))
        # keeps transformers with a cache from packing the query heads of a group into one
        unpacked = {"TRANSFORMERS_SDPA_FORCE_GQA": "1"}
        self.inside.enter_context(patch.dict(os.environ, unpacked))
        return super().__enter__()

    def __exit__(self, *error):
        super().__exit__(*error)
        self.inside.close()

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is F.scaled_dot_product_attention:
            return self.attend(*args, **(kwargs or {}))
        if func is F.multi_head_attention_forward:
            before = self.count
            result = self.open_multi_head(*args, **(kwargs or {}))
            self.hidden += self.count == before
            return result
        return func(*args, **(kwargs or {}))

    def attend(self, *args, **kwargs):
        call = Call(self.count, *args, **kwargs)
        self.count += 1
        result = self.answer(call)
        return call() if result is None else result

    @cached_property
    def open_multi_head(self):
        """F.multi_head_attention_forward with `attend` as its attention.

        Torch modes cannot see inside the original function.
        """
        closed = F.multi_head_attention_forward
        names = vars(F) | {
            "scaled_dot_product_attention": self.attend,
            "has_torch_function": lambda tensors: False,
        }
        return FunctionType(closed.__code__, names, argdefs=closed.__defaults__)


@contextmanager
def running_module(model=None):
    """Yield a function that returns (root, dotted name of the innermost running module in it).

    The root is `model`, or by default the outermost running module. The name is "" if no module of
    the root runs.
    """
    stack, named = [], {}

    def enter(module, inputs):
        stack.append(module)

    def leave(module, inputs, output):
        stack.pop()

    def here():
        root = model if model is not None or not stack else stack[0]
        if root is not None and root not in named:
            named[root] = {module: name for name, module in root.named_modules()}
        inside = [module for module in stack if module in named[root]] if stack else []
        return root, named[root][inside[-1]] if inside else ""

    entering = register_module_forward_pre_hook(enter)
    leaving = register_module_forward_hook(leave, always_call=True)
    with entering, leaving:
        yield here
