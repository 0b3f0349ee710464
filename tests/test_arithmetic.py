"""oneDNN matmuls: same results, gradients and FLOP counts as torch; torch's kernels return on exit."""

from threading import Barrier, Thread

import pytest
import torch
import torch.nn.functional as F
from torch.utils.flop_counter import FlopCounterMode

from lab import arithmetic
from lab.measure.products import plain_products
from lab.trials import run


@pytest.fixture(autouse=True)
def on_any_cpu(monkeypatch):
    """Use oneDNN on any CPU, even where it is not faster."""
    if not (hasattr(torch.library, "get_kernel") and torch.backends.mkldnn.is_available()):
        pytest.skip("this torch build lacks oneDNN or torch.library.get_kernel")
    monkeypatch.setattr(arithmetic, "replaceable", lambda: True)


def replaced():
    """Whether matmuls currently use oneDNN."""
    a, b = randn(512, 512), randn(512, 512, seed=1)
    with torch.profiler.profile() as profile:
        a @ b
    return any("mkldnn" in event.key for event in profile.key_averages())


def randn(*shape, seed=0, **kind):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), **kind)


@pytest.mark.parametrize("shape", [(2048, 64, 17), (64, 2048, 192), (1, 1024, 1024), (3, 5, 7)])
@pytest.mark.parametrize("layout", ["rows", "columns", "every second"])
def test_matmul_results_match_float64(shape, layout):
    m, k, n = shape
    a, b = randn(m, k), randn(k, n, seed=1)
    if layout == "columns":
        a, b = a.t().contiguous().t(), b.t().contiguous().t()
    if layout == "every second":
        a, b = randn(m, 2 * k)[:, ::2], randn(2 * k, n, seed=1)[::2]
    exact = a.double() @ b.double()
    with arithmetic.fast():
        for got, want in [(a @ b, exact), (torch.addmm(b[0], a, b), exact + b[0].double())]:
            assert got.shape == want.shape and got.dtype == torch.float32
            assert (got.double() - want).norm() <= 1e-6 * want.norm()
        assert torch.equal(a.double() @ b.double(), exact)


def test_expanded_and_strided_operands_use_torch():
    b = randn(512, 512, seed=1)
    for a in (randn(1, 1).expand(512, 512), randn(512, 1).expand(512, 512), randn(512, 1024)[:, ::2]):
        reference = a @ b, b.t() @ a.t()
        with arithmetic.fast():
            assert torch.equal(a @ b, reference[0]) and torch.equal(b.t() @ a.t(), reference[1])


def test_first_and_second_gradients_match_torch():
    x, w, bias = (randn(*shape, requires_grad=True) for shape in [(512, 64), (64, 64), (64,)])

    def gradients():
        y = F.linear(x, w, bias).tanh().square().sum()
        first = torch.autograd.grad(y, (x, w, bias), create_graph=True)
        return first + torch.autograd.grad(sum(g.square().sum() for g in first), (x, w))

    reference = gradients()
    with arithmetic.fast():
        for got, want in zip(gradients(), reference, strict=True):
            torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-3)


def test_flop_counter_vmap_and_jvp_still_work():
    a, b = randn(1024, 64), randn(64, 64)
    with arithmetic.fast():
        with FlopCounterMode(display=False) as counter:
            a @ b
        batched = torch.func.vmap(torch.mm, (0, None))(a.unflatten(0, (4, -1)), b)
        jacobian = torch.func.jvp(lambda a: a @ b, (a,), (a,))[1]
    assert counter.get_total_flops() == 2 * 1024 * 64 * 64
    torch.testing.assert_close(batched.flatten(0, 1), a @ b)
    torch.testing.assert_close(jacobian, a @ b)


def test_wrong_shapes_raise_the_torch_error():
    with arithmetic.fast(), pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        randn(2048, 64) @ randn(65, 64)


@pytest.mark.parametrize("fails", [False, True])
def test_torch_is_restored_on_exit_and_error(fails):
    assert not replaced()
    try:
        with arithmetic.fast(), arithmetic.fast():
            assert replaced()
            if fails:
                raise KeyError
    except KeyError:
        pass
    assert not replaced()


def test_torch_kernels_are_restored_when_the_last_thread_leaves_the_block():
    inside, left = Barrier(2), Barrier(2)
    still_replaced = []

    def short():
        with arithmetic.fast():
            inside.wait()
        left.wait()

    def long():
        with arithmetic.fast():
            inside.wait()
            left.wait()
            still_replaced.append(replaced())

    threads = [Thread(target=short), Thread(target=long)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert still_replaced == [True] and not replaced()


def test_trials_use_onednn():
    def trial():
        return {"fast": replaced()}

    assert run(trial, {})["rows"] == {"fast": True}
    assert not replaced()


def test_timings_can_use_torchs_own_products():
    with arithmetic.fast():
        with plain_products():
            assert not replaced()
        assert replaced()
