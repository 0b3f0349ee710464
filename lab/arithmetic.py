"""Faster matrix products on CPUs where MKL is slow.

On AVX-512 CPUs that are not from Intel, MKL reaches only half the speed of oneDNN.
"""

import warnings
from contextlib import contextmanager
from functools import cache
from threading import Lock

import torch

LEAST = 2**21  # multiply-adds; below this, the overhead of oneDNN exceeds its gain
_lock = Lock()
_using = 0  # number of active `fast` blocks in all threads


@cache
def replaceable():
    """Whether oneDNN is faster than MKL on this CPU and torch allows replacing its kernels."""
    known = hasattr(torch.library, "get_kernel") and hasattr(torch.cpu, "get_capabilities")
    both = torch.backends.mkl.is_available() and torch.backends.mkldnn.is_available()
    if not (known and both and torch.backends.cpu.get_cpu_capability() == "AVX512"):
        return False
    return "Intel" not in torch.cpu.get_capabilities().get("cpu_name", "Intel")


@contextmanager
def fast():
    """Compute large float32 products of two CPU matrices with oneDNN, where that is faster.

    This replaces torch's CPU kernels of mm and addmm. The replacement happens below autograd, so
    gradients, FLOP counters and existing models work unchanged. Results differ by rounding. While
    no thread is inside such a block, torch's own kernels are used. After the first block, every
    matrix product in the process takes 2 microseconds longer.
    """
    if replaceable():
        _count(1)
    try:
        yield
    finally:
        if replaceable():
            _count(-1)


def _count(change):
    global _using
    with _lock:
        _replace()
        _using += change


@cache
def _replace():
    own_mm, own_addmm = (
        torch.library.get_kernel(f"aten::{name}", "CPU") for name in ("mm", "addmm")
    )
    linear = torch.ops.mkldnn._linear_pointwise.default

    def dense(x):
        # oneDNN is 100 times slower for other strides, such as those of an expanded gradient
        return x.is_contiguous() or x.t().is_contiguous()

    def large(a, b):
        size = a.numel() * b.shape[1]
        least = LEAST if a.is_contiguous() else 2 * LEAST  # oneDNN copies a non-contiguous `a`
        if size < least:
            return False
        return (
            a.dtype == b.dtype == torch.float32
            and a.shape[1] == b.shape[0]
            and dense(a)
            and dense(b)
        )

    def mm(keys, a, b):
        if not (_using and large(a, b)):
            return own_mm.call_boxed(keys, a, b)
        if not a.is_contiguous() and b.numel() < a.numel():  # let oneDNN copy the smaller matrix
            return linear(b.t(), a, None, "none", [], "").t().contiguous()
        return linear(a, b.t(), None, "none", [], "")

    def addmm(keys, bias, a, b, *, beta=1, alpha=1):
        # oneDNN supports only a bias of this form
        row = bias.shape == b.shape[1:] and bias.is_contiguous() and bias.dtype == torch.float32
        if _using and row and beta == alpha == 1 and large(a, b):
            return linear(a, b.t(), bias, "none", [], "")
        return own_addmm.call_boxed(keys, bias, a, b, beta=beta, alpha=alpha)

    library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        # torch warns that a kernel is replaced, which is intended here
        warnings.filterwarnings("ignore", "Warning only once for all operators")
        for kernel in (mm, addmm):
            library.impl(kernel.__name__, kernel, "CPU", with_keyset=True, allow_override=True)
    return library  # kept alive by @cache: deleting it would restore torch's kernels
