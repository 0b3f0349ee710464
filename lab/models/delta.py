"""The delta rule: linear attention that corrects the error of its memory at each key (§1.6.3).

    S_t = α_t S_(t-1) + k_t u_tᵀ      u_t = β_t (v_t - α_t S_(t-1)ᵀ k_t)      o_t = S_tᵀ q_t

The memory S has shape d x d_v for any sequence length. If ‖k‖ = 1 and β = 1, reading the updated
memory at k returns v exactly. α = 1 means no decay. Schlag 2021; Yang 2024 (arXiv 2406.06484, and
2412.06464 with α). Shape letters: b batch, h head, n token, c chunk length, d head width, d_v value
width.
"""

import math

import torch
import torch.nn.functional as F
from torch import nn

from lab.models.decoding import recent_bytes
from lab.models.kernels import repeat_kv
from lab.models.mixers import QKVStateMixer
from lab.models.precision import wide, without_autocast


def delta_step(state, q, k, v, beta, log_alpha):
    """One step of the recurrence. Returns the new state (b, h, d, d_v) and the output (b, h, d_v).

    q and k (b, h, d), v (b, h, d_v), β and log α (b, h).
    """
    state = state * log_alpha.exp()[..., None, None]
    error = beta[..., None] * (v - (k[..., None, :] @ state).squeeze(-2))
    state = state + k[..., None] * error[..., None, :]
    return state, (q[..., None, :] @ state).squeeze(-2)


def delta_rule(q, k, v, beta, log_alpha, state=None, chunk=64):
    """The recurrence over n tokens, computed in chunks in O(n) time.

    Returns the last state (b, h, d, d_v) and the outputs (b, h, n, d_v). q and k (b, h, n, d),
    v (b, h, n, d_v), β and log α (b, h, n); log α may be -inf, which resets the memory. For a chunk
    that starts with memory S, let γ_t = α_1 ··· α_t. The errors U solve

        (I + L) U = β (V - γ K S),  L_ti = β_t γ_t/γ_i k_t·k_i for i < t

    In WY form, U = W_v - W_k S. A padding token with β = 0 and log α = 0 has no effect.
    """
    n = q.shape[2]
    chunk = min(chunk, n)
    pad = -n % chunk
    # (b, h, n/c, c, .)
    q, k, v = (F.pad(x, (0, 0, 0, pad)).unflatten(2, (-1, chunk)) for x in (q, k, v))
    beta, log = (F.pad(x, (0, pad)).unflatten(2, (-1, chunk))[..., None] for x in (beta, log_alpha))
    each = log  # log α, (b, h, n/c, c, 1)
    log = each.cumsum(3)  # log γ
    apart = None
    if log.detach().amin() < -1024:
        # differences of such large sums lose digits, so sum log α from i + 1 to t directly
        each = each.clamp(min=-1e4)  # e^-10000 is 0 in every dtype, and -1e4 is finite
        log = each.cumsum(3)
        apart = each.expand(*each.shape[:-1], chunk).tril(-1).cumsum(-2)  # (b, h, n/c, c, c)
    between = log - log.mT if apart is None else apart  # log γ_t - log γ_i
    decay = between.tril().exp().tril()  # γ_t / γ_i, and 0 above the diagonal
    lower = (beta * decay * (k @ k.mT)).tril(-1)
    sides = torch.cat([beta * v, beta * log.exp() * k], -1)
    errors = torch.linalg.solve_triangular(lower, sides, upper=False, unitriangular=True)
    own, of_state = errors.split([v.shape[-1], k.shape[-1]], -1)  # W_v, W_k
    within = decay * (q @ k.mT)
    read = q * log.exp()
    until_end = log[..., -1:, :] - log if apart is None else apart[..., -1:, :].mT
    kept = k * until_end.exp()  # keys, decayed to the end of their chunk
    forget = log[..., -1:, :].exp()
    state = q.new_zeros(*q.shape[:2], k.shape[-1], v.shape[-1]) if state is None else state
    out = []
    for i in range(q.shape[2]):
        error = own[:, :, i] - of_state[:, :, i] @ state
        out.append(read[:, :, i] @ state + within[:, :, i] @ error)
        state = forget[:, :, i] * state + kept[:, :, i].mT @ error
    return state, torch.cat(out, 2)[:, :, :n]


class DeltaRule(QKVStateMixer, kind="delta"):
    """Delta rule with unit q and k, β = sigmoid(w·x) per head and α = 1; RMSNorm on head outputs.

    The recurrence runs in float32 or wider, also under autocast.
    """

    def __init__(self, config, position, *, chunk=64):
        super().__init__(config, position)
        self.chunk = chunk
        self.rate = nn.Linear(config.d_model, self.heads.n, bias=config.bias)
        self.norm = nn.RMSNorm(self.heads.d_value, eps=1e-5)

    def log_decay(self, x):
        """log α of each token and head, (b, t, h)."""
        return wide(x).new_zeros(*x.shape[:2], self.heads.n)

    def forward(self, x, cache=None):
        q, k, v = self.split(x, cache)
        q = F.normalize(wide(q), dim=-1)
        k = F.normalize(wide(repeat_kv(k, q.shape[1])), dim=-1)
        v = repeat_kv(v, q.shape[1])
        beta = torch.sigmoid(wide(self.rate(x))).mT  # (b, h, t)
        log = self.log_decay(x).mT
        before = None if cache is None else cache.tensors.get("memory")
        with without_autocast(x):
            state, mixed = self.run_rule(q, k, wide(v), beta, log, before)
        if cache is not None:
            cache.tensors["memory"] = state.detach()
            cache.length += x.shape[1]
        return self.heads.join(self.norm(mixed.to(x.dtype)))

    def run_rule(self, q, k, v, beta, log, before):
        """The new state and the outputs (b, h, t, d_v), given the state `before` (None: zeros)."""
        if before is None or q.shape[2] > 1:
            return delta_rule(q, k, v, beta, log, before, self.chunk)
        state, mixed = delta_step(before, *(part[:, :, 0] for part in (q, k, v, beta, log)))
        return state, mixed[:, :, None]

    def state_bytes(self, length):
        size = wide(self.rate.weight[:0]).element_size()
        memory = self.heads.n * self.heads.d * self.heads.d_value * size
        return memory + recent_bytes(self.heads, length)


class GatedDeltaRule(DeltaRule, kind="gated-delta"):
    """`DeltaRule` with decay α = exp(-a softplus(w·x + s)) per token; each head trains a and s.

    With every initialization scheme, a and s start as in Mamba-2 (Dao & Gu 2024): a in 1..16,
    softplus(s) in 0.001..0.1.
    """

    def __init__(self, config, position, *, chunk=64):
        super().__init__(config, position, chunk=chunk)
        self.gate = nn.Linear(config.d_model, self.heads.n, bias=False)
        self.log_a = nn.Parameter(torch.empty(self.heads.n).uniform_(1, 16).log())
        pace = torch.empty(self.heads.n).uniform_(math.log(0.001), math.log(0.1)).exp()
        self.shift = nn.Parameter(pace.expm1().log())  # the inverse of softplus

    def log_decay(self, x):
        return -wide(self.log_a).exp() * F.softplus(wide(self.gate(x)) + wide(self.shift))
