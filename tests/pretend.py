"""A device that is not there: it computes on the CPU, says that it is elsewhere, and refuses what a GPU refuses.

PyTorch's place for backends of others (PrivateUse1) is filled with one kernel in Python, for every operation. A tensor
"pretend:0" is CPU memory under another name: DLPack hands it over in either direction, so views share it and nothing
is copied. Operations are then torch's own on the CPU, and equal them digit by digit where torch takes the same route.

Refused, as CUDA does: tensors of two devices in one operation, but for 0-dimensional CPU ones in pointwise operations
and CPU indices; CPU generators for numbers drawn here; `.numpy()`. As Apple's MPS does: float64. What it cannot show:
the rounding and the order of sums of a real device, and generators of its own, which torch cannot make from Python.
"""

import copy
import ctypes
from functools import partial

import pytest
import torch
from torch.utils import backend_registration
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

NAME = "pretend"
CPU, ELSEWHERE = 1, 12  # DLPack's kDLCPU and kDLExtDev
TAKES_SCALARS = {"aten::masked_fill", "aten::masked_fill_", "aten::where", "aten::fill_", "aten::_index_put_impl_"}
TAKES_INDICES = {"aten::index", "aten::_index_put_impl_"}


class _Module:
    """What torch asks of `torch.pretend`."""

    is_available = is_initialized = staticmethod(lambda: True)
    current_device = staticmethod(lambda: 0)
    device_count = staticmethod(lambda: 1)
    _is_in_bad_fork = staticmethod(lambda: False)
    manual_seed_all = staticmethod(lambda seed: None)  # numbers drawn there are of the CPU's own stream
    get_rng_state = staticmethod(lambda device=None: torch.get_rng_state())
    set_rng_state = staticmethod(lambda state, device=None: torch.set_rng_state(state))
    get_amp_supported_dtype = staticmethod(lambda: [torch.bfloat16, torch.float16])


def device():
    """The pretended device."""
    return torch.device(NAME, 0)


def moved(module):
    """The module on the pretended device. Its parameters remain the same objects, as on CUDA: tied ones stay tied."""
    before = torch.__future__.get_swap_module_params_on_conversion()
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        return module.to(device())
    finally:
        torch.__future__.set_swap_module_params_on_conversion(before)


def twins(module):
    """A module here, and its copy on the pretended device."""
    return module, moved(copy.deepcopy(module))


def _kernel(operation, *args, **kwargs):
    """Any operation: on the CPU, with every tensor from elsewhere under its CPU name."""
    leaves, form = tree_flatten((args, kwargs))
    _check(operation, [x for x in leaves if isinstance(x, torch.Tensor)], kwargs)
    asked, given = kwargs.get("device"), kwargs
    here = [_under(CPU, x) if _elsewhere(x) else x for x in leaves]
    args, kwargs = tree_unflatten(here, form)
    wanted = operation._schema.arguments
    numbers = [w.type.kind() == "TensorType" and isinstance(x, int | float) for x, w in zip(args, wanted, strict=False)]
    args = [torch.tensor(x) if number else x for x, number in zip(args, numbers, strict=True)]  # as torch had them
    if asked is not None:
        kwargs["device"] = torch.device("cpu")
    small = {name: x for name, x in kwargs.items() if isinstance(x, torch.Tensor) and x.numel() == 0}
    kwargs |= {name: torch.empty_like(x) for name, x in small.items()}  # DLPack's memory cannot grow, this can
    out = operation(*args, **kwargs)
    for name in small:
        _grow(given[name], kwargs[name])
    if asked is not None and asked.type == "cpu":
        return out
    same = {id(mine): x for mine, x in zip(here, leaves, strict=True) if _elsewhere(x)}  # what is changed in place
    same |= {id(kwargs[name]): given[name] for name in small}
    return tree_map(lambda x: same.get(id(x), _under(ELSEWHERE, x)) if isinstance(x, torch.Tensor) else x, out)


def _convolution(name, *args):
    """`convolution_backward` wants to know of a bias; its other form does not."""
    if name == "convolution_backward":
        args = (*args[:3], [args[2].shape[0]], *args[3:])
    return _kernel(getattr(torch.ops.aten, name).default, *args)


def _grow(target, x):
    """Let a tensor that is given as `out` hold what the operation put there."""
    result = _under(ELSEWHERE, x)
    torch.ops.aten.set_.source_Storage_storage_offset.redispatch(
        torch._C.DispatchKeySet(torch._C.DispatchKey.CPU),
        target, result.untyped_storage(), result.storage_offset(), result.shape, result.stride(),
    )  # fmt: skip


def _copy(source, target, non_blocking=False):
    """What `.to` and `copy_` end in, the one way from a device to another."""
    here = [_under(CPU, x) if _elsewhere(x) else x for x in (source, target)]
    here[1].copy_(here[0])
    return target


def _check(operation, tensors, kwargs):
    name = operation._schema.name
    if (generator := kwargs.get("generator")) is not None:
        raise RuntimeError(f"Expected a '{NAME}' device type for generator but found '{generator.device.type}'")
    scalars = torch.Tag.pointwise in operation.tags or name in TAKES_SCALARS or name.startswith("aten::_foreach_")
    for i, x in enumerate(tensors):
        allowed = (scalars and x.ndim == 0) or (i and name in TAKES_INDICES and x.dtype in (torch.long, torch.bool))
        if not (_elsewhere(x) or allowed):
            raise RuntimeError(
                f"Expected all tensors to be on the same device, but found at least two devices, {NAME}:0 and "
                f"{x.device}! ({name})"
            )


def _elsewhere(x):
    return isinstance(x, torch.Tensor) and x.device.type == NAME


def _under(device_type, x):
    """The same memory as a tensor of another device."""
    if device_type == ELSEWHERE and x.dtype == torch.float64:
        raise TypeError(f"{NAME} has no float64")
    capsule = torch._C._to_dlpack(x)
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    fields = (ctypes.c_int32 * 2).from_address(pointer(capsule, b"dltensor") + ctypes.sizeof(ctypes.c_void_p))
    fields[0], fields[1] = device_type, 0  # DLTensor: void* data, then DLDevice {device_type, device_id}
    return torch._C._from_dlpack(capsule)


def _register():
    """Fill PyTorch's place for a backend; returns what must stay alive for it."""
    backend_registration._setup_privateuseone_for_python_backend(NAME, _Module())
    aten, every = torch.library.Library("aten", "IMPL"), torch.library.Library("_", "IMPL")
    on_cpu = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
    shape = torch.ops.aten.as_strided.default
    aten.impl("as_strided", lambda x, *rest: shape.redispatch(on_cpu, x, *rest), "PrivateUse1")
    aten.impl("_copy_from", _copy, "PrivateUse1")
    aten.impl("_fused_sdp_choice", lambda *_, **__: 0, "PrivateUse1")  # the attention that is written out
    for name in ("convolution", "convolution_backward"):  # of which torch has no form that any device can have
        aten.impl(f"{name}_overrideable", partial(_convolution, name), "PrivateUse1")
    every.fallback(_kernel, "PrivateUse1")
    return aten, every


if not hasattr(backend_registration, "_setup_privateuseone_for_python_backend"):
    pytest.skip("this torch takes no backend in Python", allow_module_level=True)
LIBRARIES = _register()  # when tests are collected: autograd counts the devices once, at its first backward
