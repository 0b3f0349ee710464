"""Delta rule: the chunked form equals the recurrence, and the recurrence equals the published formula."""

import pytest
import torch
import torch.nn.functional as F
from helpers import close, randn

from lab.models.delta import delta_rule, delta_step


def memory(n=50, d=8, d_v=6, gated=True, dtype=torch.double):
    q, k = (F.normalize(randn(2, 3, n, d, seed=i, dtype=dtype), dim=-1) for i in (0, 1))
    beta = torch.sigmoid(randn(2, 3, n, seed=3, dtype=dtype))
    log = F.logsigmoid(randn(2, 3, n, seed=4, dtype=dtype)) if gated else torch.zeros(2, 3, n, dtype=dtype)
    return q, k, randn(2, 3, n, d_v, seed=2, dtype=dtype), beta, log


def recurrence(q, k, v, beta, log, state=None):
    state = q.new_zeros(*q.shape[:2], q.shape[-1], v.shape[-1]) if state is None else state
    out = []
    for t in range(q.shape[2]):
        state, mixed = delta_step(state, *(part[:, :, t] for part in (q, k, v, beta, log)))
        out.append(mixed)
    return state, torch.stack(out, 2)


@pytest.mark.parametrize("gated", [False, True])
@torch.no_grad()
def test_delta_step_equals_the_published_formula(gated):
    q, k, v, beta, log = memory(12, gated=gated)
    state, out = torch.zeros(2, 3, 6, 8, dtype=torch.double), []  # (b, h, d_v, d), as in the paper
    for t in range(12):
        erased = torch.eye(8) - beta[:, :, t, None, None] * k[:, :, t, :, None] * k[:, :, t, None]
        written = beta[:, :, t, None, None] * v[:, :, t, :, None] * k[:, :, t, None]
        state = log[:, :, t, None, None].exp() * state @ erased + written
        out.append((state @ q[:, :, t, :, None]).squeeze(-1))
    last, got = recurrence(q, k, v, beta, log)
    close(got, torch.stack(out, 2), 1e-12)
    close(last.mT, state, 1e-12)


@pytest.mark.parametrize("dtype, tolerance", [(torch.double, 1e-10), (torch.float, 1e-5)])
@pytest.mark.parametrize("n, chunk", [(1, 64), (16, 16), (50, 16), (200, 64)])
@pytest.mark.parametrize("gated", [False, True])
def test_chunked_outputs_and_gradients_equal_the_recurrence(n, chunk, gated, dtype, tolerance):
    inputs = [x.requires_grad_() for x in (*memory(n, gated=gated, dtype=dtype), randn(2, 3, 8, 6, dtype=dtype))]
    q, k, v, beta, log, start = inputs
    results = []
    for state, out in (delta_rule(*inputs[:5], start, chunk), recurrence(*inputs)):
        gradients = torch.autograd.grad(out.sin().sum() + state.sum(), inputs)
        results.append([out, state, *gradients])
    for a, b in zip(*results, strict=True):
        close(a, b, tolerance * (1 if a is results[0][0] or a is results[0][1] else 20))


@pytest.mark.parametrize("dtype, tolerance", [(torch.double, 1e-9), (torch.float, 1e-4)])
@pytest.mark.parametrize("log_decay", [-1e6, -torch.inf, -300.0, -60.0])
@pytest.mark.parametrize("fraction", [0.02, 0.3, 1.0])
def test_extreme_decay_matches_the_recurrence(fraction, log_decay, dtype, tolerance):
    q, k, v, beta, log = memory(150, dtype=dtype)
    chosen = torch.rand(log.shape, generator=torch.Generator().manual_seed(5)) < fraction
    log = log.masked_fill(chosen, log_decay).requires_grad_()
    results = []
    for state, out in (delta_rule(q, k, v, beta, log), recurrence(q, k, v, beta, log)):
        (gradient,) = torch.autograd.grad(out.sin().sum() + state.sum(), log)
        results.append((out, state, gradient))
    assert all(part.isfinite().all() for parts in results for part in parts)
    for a, b in zip(*results, strict=True):
        close(a, b, tolerance)


@torch.no_grad()
def test_rewriting_a_key_replaces_its_value():
    """With beta 1, writing a key again replaces its value; linear attention would return the sum."""
    keys = torch.linalg.qr(randn(8, 8, dtype=torch.double))[0][None, None]
    k, v = torch.cat([keys, keys[:, :, :1]], 2), randn(1, 1, 9, 5, dtype=torch.double)
    one, no_decay = torch.ones(1, 1, 9, dtype=torch.double), torch.zeros(1, 1, 9, dtype=torch.double)
    state, out = delta_rule(k, k, v, one, no_decay)
    close(out, v, 1e-12)
    close((k[:, :, :8] @ state)[:, :, 1:], v[:, :, 1:8], 1e-12)
    close(k[:, :, :1] @ state, v[:, :, 8:], 1e-12)
