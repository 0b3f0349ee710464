"""Products by oneDNN: the same numbers, gradients and counts as torch's own, and torch as it was afterwards."""

from threading import Barrier, Thread

import pytest
import torch
import torch.nn.functional as F
from torch.utils.flop_counter import FlopCounterMode

from lab import arithmetic
from lab.trials import run


@pytest.fixture(autouse=True)
def on_any_processor(monkeypatch):
    """Products are replaced whether or not that is faster here."""
    if not (hasattr(torch.library, "get_kernel") and torch.backends.mkldnn.is_available()):
        pytest.skip("this build of torch has no other products")
    monkeypatch.setattr(arithmetic, "replaceable", lambda: True)


def replaced():
    """Whether a product is oneDNN's now."""
    a, b = drawn(512, 512), drawn(512, 512, seed=1)
    with torch.profiler.profile() as seen:
        a @ b
    return any("mkldnn" in event.key for event in seen.key_averages())


def drawn(*shape, seed=0, **kind):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), **kind)


@pytest.mark.parametrize("shape", [(2048, 64, 17), (64, 2048, 192), (1, 1024, 1024), (3, 5, 7)])
@pytest.mark.parametrize("layout", ["rows", "columns", "every second"])
def test_same_products(shape, layout):
    m, k, n = shape
    a, b = drawn(m, k), drawn(k, n, seed=1)
    if layout == "columns":
        a, b = a.t().contiguous().t(), b.t().contiguous().t()
    if layout == "every second":
        a, b = drawn(m, 2 * k)[:, ::2], drawn(2 * k, n, seed=1)[::2]
    exact = a.double() @ b.double()
    with arithmetic.fast():
        for got, want in [(a @ b, exact), (torch.addmm(b[0], a, b), exact + b[0].double())]:
            assert got.shape == want.shape and got.dtype == torch.float32
            assert (got.double() - want).norm() <= 1e-6 * want.norm()
        assert torch.equal(a.double() @ b.double(), exact)


def test_what_is_spread_over_memory_or_repeated_stays_with_torch():
    b = drawn(512, 512, seed=1)
    for a in (drawn(1, 1).expand(512, 512), drawn(512, 1).expand(512, 512), drawn(512, 1024)[:, ::2]):
        own = a @ b, b.t() @ a.t()
        with arithmetic.fast():
            assert torch.equal(a @ b, own[0]) and torch.equal(b.t() @ a.t(), own[1])


def test_first_and_second_gradients():
    x, w, bias = (drawn(*shape, requires_grad=True) for shape in [(512, 64), (64, 64), (64,)])

    def gradients():
        y = F.linear(x, w, bias).tanh().square().sum()
        first = torch.autograd.grad(y, (x, w, bias), create_graph=True)
        return first + torch.autograd.grad(sum(g.square().sum() for g in first), (x, w))

    own = gradients()
    with arithmetic.fast():
        for got, want in zip(gradients(), own, strict=True):
            torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-3)


def test_counted_and_mapped_as_before():
    a, b = drawn(1024, 64), drawn(64, 64)
    with arithmetic.fast():
        with FlopCounterMode(display=False) as counter:
            a @ b
        batched = torch.func.vmap(torch.mm, (0, None))(a.unflatten(0, (4, -1)), b)
        jacobian = torch.func.jvp(lambda a: a @ b, (a,), (a,))[1]
    assert counter.get_total_flops() == 2 * 1024 * 64 * 64
    torch.testing.assert_close(batched.flatten(0, 1), a @ b)
    torch.testing.assert_close(jacobian, a @ b)


def test_wrong_shapes_raise_torchs_own_error():
    with arithmetic.fast(), pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        drawn(2048, 64) @ drawn(65, 64)


@pytest.mark.parametrize("fails", [False, True])
def test_torch_is_as_before_outside(fails):
    assert not replaced()
    try:
        with arithmetic.fast(), arithmetic.fast():
            assert replaced()
            if fails:
                raise KeyError
    except KeyError:
        pass
    assert not replaced()


def test_the_last_thread_puts_torch_back():
    inside, left = Barrier(2), Barrier(2)
    seen = []

    def short():
        with arithmetic.fast():
            inside.wait()
        left.wait()

    def long():
        with arithmetic.fast():
            inside.wait()
            left.wait()
            seen.append(replaced())

    threads = [Thread(target=short), Thread(target=long)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [True] and not replaced()


def test_trials_use_them():
    def trial():
        return {"fast": replaced()}

    assert run(trial, {})["rows"] == {"fast": True}
    assert not replaced()
