"""The delta rule: a memory that is corrected by its error at each key, instead of added to (chapter
§1.6.3).

    S_t = α_t S_(t-1) + k_t u_tᵀ      u_t = β_t (v_t - α_t S_(t-1)ᵀ k_t)      o_t = S_tᵀ q_t

S is d x d_v, whatever the length. With ‖k‖ = 1 and β = 1 the memory answers v to k from then on; α
= 1 forgets nothing. Schlag 2021; Yang 2024 (arXiv 2406.06484, and 2412.06464 with α). Letters: b
batch, h head, n length, c chunk, d width.
"""

import math

import torch
import torch.nn.functional as F
from torch import nn

from lab.models.gpt import QKVMixer
from lab.models.kernels import repeat_kv
from lab.models.precision import wide


def delta_step(state, q, k, v, beta, log_alpha):
    """One token: (state (b, h, d, d_v), output (b, h, d_v)) from q, k (b, h, d), v (b, h, d_v), β
    and log α (b, h).
    """
    state = state * log_alpha.exp()[..., None, None]
    error = beta[..., None] * (v - (k[..., None, :] @ state).squeeze(-2))
    state = state + k[..., None] * error[..., None, :]
    return state, (q[..., None, :] @ state).squeeze(-2)


def delta_rule(q, k, v, beta, log_alpha, state=None, chunk=64):
    """(state, outputs (b, h, n, d_v)) of all tokens in n steps: products within chunks, a state
    from one to the next.

    log α may be -inf, which forgets everything.
    Within a chunk, where γ_t = α_1 ··· α_t, the errors solve (I + L) U = β (V - γ K S), L_ti = β_t γ_t/γ_i k_t·k_i for
    i < t: the WY form, U = W_v - W_k S. A token whose β and log α are 0 leaves no trace.
    """
    n = q.shape[2]
    chunk = min(chunk, n)
    pad = -n % chunk
    q, k, v = (
        F.pad(x, (0, 0, 0, pad)).unflatten(2, (-1, chunk)) for x in (q, k, v)
    )  # (b, h, n/c, c, .)
    beta, log = (F.pad(x, (0, pad)).unflatten(2, (-1, chunk))[..., None] for x in (beta, log_alpha))
    each, log, apart = log, log.cumsum(3), None  # log α, log γ: (b, h, n/c, c, 1)
    if log.detach().amin() < -1024:  # differences of such sums lose digits: add up each pair's own
        each = each.clamp(min=-1e4)  # e^-10000 is 0 in every type, and is no infinity
        log = each.cumsum(3)
        apart = each.expand(*each.shape[:-1], chunk).tril(-1).cumsum(-2)  # (b, h, n/c, c, c)
    between = log - log.mT if apart is None else apart  # log γ_t - log γ_i
    decay = between.tril().exp().tril()  # γ_t / γ_i, and 0 above the diagonal
    lower = (beta * decay * (k @ k.mT)).tril(-1)
    sides = torch.cat([beta * v, beta * log.exp() * k], -1)
    errors = torch.linalg.solve_triangular(lower, sides, upper=False, unitriangular=True)
    own, of_state = errors.split([v.shape[-1], k.shape[-1]], -1)  # W_v, W_k
    within, read = decay * (q @ k.mT), q * log.exp()
    until_end = log[..., -1:, :] - log if apart is None else apart[..., -1:, :].mT
    kept = k * until_end.exp()  # each key as the end of its chunk remembers it
    forget = log[..., -1:, :].exp()
    state = q.new_zeros(*q.shape[:2], k.shape[-1], v.shape[-1]) if state is None else state
    out = []
    for i in range(q.shape[2]):
        error = own[:, :, i] - of_state[:, :, i] @ state
        out.append(read[:, :, i] @ state + within[:, :, i] @ error)
        state = forget[:, :, i] * state + kept[:, :, i].mT @ error
    return state, torch.cat(out, 2)[:, :, :n]


class DeltaRule(QKVMixer, kind="delta"):
    """Queries and keys of length 1, β = sigmoid(w·x) a head, α = 1; W_O reads normalised outputs.

    The rule itself is computed in float32 at least, also under autocast. Decoding keeps S in the
    type of the weights.
    """

    by_products = True

    def __init__(self, config, position, *, chunk=64):
        super().__init__(config, position)
        self.chunk = chunk
        self.rate = nn.Linear(config.d_model, self.heads.n, bias=config.bias)
        self.norm = nn.RMSNorm(self.heads.d_value, eps=1e-5)

    def log_decay(self, x):
        """log α of every token and head, (b, t, h)."""
        return wide(x).new_zeros(*x.shape[:2], self.heads.n)

    def forward(self, x, cache=None, padding_mask=None):
        q, k, v = self.split(x, cache)
        q, k = F.normalize(wide(q), dim=-1), F.normalize(wide(repeat_kv(k, q.shape[1])), dim=-1)
        v = repeat_kv(v, q.shape[1])
        beta, log = torch.sigmoid(wide(self.rate(x))), self.log_decay(x)
        if padding_mask is not None:
            beta, log = beta * padding_mask[..., None], log * padding_mask[..., None]
        beta, log = beta.mT, log.mT  # (b, h, t)
        before = None if cache is None else cache.tensors.get("memory")
        before = None if before is None else wide(before)
        with torch.autocast(x.device.type, enabled=False):
            state, mixed = self.remembered(q, k, wide(v), beta, log, before)
        if cache is not None:
            cache.tensors["memory"] = state.detach().to(self.rate.weight.dtype)
            cache.length += x.shape[1]
        return self.heads.join(self.norm(mixed.to(x.dtype)))

    def remembered(self, q, k, v, beta, log, before):
        """(state, outputs (b, h, t, d_v)) of t tokens after the state `before`; None: the start."""
        if before is None or q.shape[2] > 1:
            return delta_rule(q, k, v, beta, log, before, self.chunk)
        state, mixed = delta_step(before, *(part[:, :, 0] for part in (q, k, v, beta, log)))
        return state, mixed[:, :, None]

    def state_bytes(self, length):
        memory = (
            self.heads.n * self.heads.d * self.heads.d_value * self.heads.qkv.weight.element_size()
        )
        return memory + self.recent_bytes(length)


class GatedDeltaRule(DeltaRule, kind="gated-delta"):
    """The memory fades by α = exp(-a softplus(w·x + s)) before each token: a and s are trained for
    each head.

    They start as in Mamba-2, a within 1..16 and softplus(s) within .001...1 (Dao & Gu 2024),
    whatever the scheme of initialisation.
    """

    def __init__(self, config, position, *, chunk=64):
        super().__init__(config, position, chunk=chunk)
        self.gate = nn.Linear(config.d_model, self.heads.n, bias=False)
        self.log_a = nn.Parameter(torch.empty(self.heads.n).uniform_(1, 16).log())
        pace = torch.empty(self.heads.n).uniform_(math.log(0.001), math.log(0.1)).exp()
        self.shift = nn.Parameter(pace.expm1().log())  # the inverse of softplus

    def log_decay(self, x):
        return -wide(self.log_a).exp() * F.softplus(wide(self.gate(x)) + wide(self.shift))
