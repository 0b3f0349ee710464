"""Context managers that observe or change any torch model while it runs.

`tap` measures module outputs, `capture` keeps them, `edit` replaces them, and `Calls` intercepts
every attention call.
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
    """Measure module outputs: `with tap(model, {"*.ffn": rms}) as table: model(x)`.

    sites: {glob over names of model.named_modules(): measure or list of measures}. A measure maps
    the detached output of the module (its first element, if it is a tuple) to a number or a vector.
    With gradients=True it receives the gradient with respect to that output instead. Only the
    results of measures are stored.

    Yields a function: table() returns a DataFrame of the results so far, with columns site (name of
    the module), measure, call (index of the call of this module, from 0), index (of the entry of a
    vector, missing for a number) and value. A module that the model uses in several places appears
    under its first name, with one row per call.

    Raises LookupError if a glob matches no module, and RuntimeError on exit if a module was never
    measured: no gradient arrived, or its parent used its weights without calling it, as
    nn.MultiheadAttention does with out_proj.
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
                tensor = tensor.clone()  # in-place changes of a view drop its hooks
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
    """Replace module outputs: `with edit(model, {"*.ffn": torch.zeros_like}): model(x)`.

    sites: {glob: function from tensor to tensor, or list of functions}. If a module returns a
    tuple, its first element is replaced. The functions of a module run in the given order. A `tap`
    inside `edit` measures the edited output. Raises LookupError and RuntimeError as `tap` does, and
    TypeError if a function does not return a tensor.
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
    """Keep module outputs: `with capture(model.blocks) as kept: model(x)`.

    Yields a list with one entry per module call, in the order in which calls return: the output
    (its first element, if it is a tuple) or, with inputs=True, the tuple of positional arguments.
    Tensors are detached but not copied, so later in-place changes by the model also change the
    list. Raises RuntimeError on exit if a module never ran.
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
    """{module name: list of functions} for all modules that match a glob."""
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
    """Register function(site, output) as a forward hook of module `site`; returns the handle."""

    def hook(module, arguments, output):
        return function(site, output)

    return model.get_submodule(site).register_forward_hook(hook)


def _assert_fired(silent, why=""):
    if silent:
        raise RuntimeError(f"modules were never called: {sorted(silent)}{why}")


def _tensor(site, output):
    """The output of a module if it is a tensor, or its first element if it is a tuple."""
    first = output[0] if isinstance(output, tuple) and output else output
    if not isinstance(first, torch.Tensor):
        kind = type(first).__name__
        raise TypeError(f"{site!r} returns {kind}: choose a module that returns a tensor")
    return first


def _with_tensor(output, tensor):
    """The output of a module with the tensor of `_tensor` replaced."""
    return tensor if isinstance(output, torch.Tensor) else (tensor, *output[1:])


def _rows(site, measure, call, tensor):
    """Rows of COLUMNS for the number or vector that a measure returns."""
    value = torch.as_tensor(measure(tensor))
    name = getattr(measure, "__name__", str(measure))
    if value.ndim > 1:
        shape = tuple(value.shape)
        raise TypeError(
            f"measure {name} returned a tensor of shape {shape}, not a number or a vector"
        )
    if value.ndim == 0:
        return [(site, name, call, pd.NA, value.item())]
    return [(site, name, call, index, entry) for index, entry in enumerate(value.tolist())]


@dataclass(frozen=True)
class Call:
    """Arguments and index (from 0) of one call of F.scaled_dot_product_attention.

    call() computes its output (b, h, q, d); call(scale=1) does so with a different scale.
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
        """attn_mask as a boolean or additive tensor, or None; does not include `is_causal`."""
        # torch.nn.attention.bias takes a second to import, so test for its method, not its class
        if hasattr(self.attn_mask, "_materialize"):
            return self.attn_mask._materialize(self.query.device)
        return self.attn_mask

    def __call__(self, **changes):
        arguments = vars(self) | changes
        del arguments["index"]
        return F.scaled_dot_product_attention(**arguments)


class Calls(TorchFunctionMode):
    """Context manager that passes each attention call to answer(call).

    If answer returns a tensor, it becomes the output of the call; if None, the output is unchanged.
    `count` is the number of calls. `hidden` is the number of nn.MultiheadAttention calls that could
    not be intercepted, because need_weights=True bypasses F.scaled_dot_product_attention. Compiled
    models run uncompiled inside the context.
    """

    def __init__(self, answer):
        super().__init__()
        self.answer = answer
        self.count = 0
        self.hidden = 0
        self.inside = ExitStack()

    def __enter__(self):
        # importing dynamo takes seconds; before it is imported, nothing can be compiled
        if "torch._dynamo" in sys.modules:
            self.inside.enter_context(torch.compiler.set_stance("force_eager"))
        # otherwise transformers may fold the query heads of a group into the query axis
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
        """F.multi_head_attention_forward that calls `attend` for its attention.

        TorchFunctionMode does not see the attention call inside the original function.
        """
        closed = F.multi_head_attention_forward
        names = vars(F) | {
            "scaled_dot_product_attention": self.attend,
            "has_torch_function": lambda tensors: False,
        }
        return FunctionType(closed.__code__, names, argdefs=closed.__defaults__)


@contextmanager
def running_module(model=None):
    """Context manager that tracks which module is running.

    Yields a function that returns (root, name): root is `model`, by default the outermost running
    module; name is the dotted name in root of the innermost running module, or "" if none runs.
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
