"""Costs of a Transformer block in closed form.

Letters: n sequence, d model width, h query heads, g key-value heads, w head width, f feed-forward
width, B batch, L layers. The formulas use plain arithmetic, so they also take sympy symbols (if
`causal` is False).
"""


def attention_macs(n, d, h, g, w, *, causal=False) -> dict:
    """Multiply-adds of one attention layer on one sequence, by operation (chapter §1.1.3).

    With `causal` these are for the n(n+1)/2 visible pairs only; a kernel that masks afterwards
    still computes all n².
    """
    pairs = n * (n + 1) // 2 if causal else n * n
    query, key = n * d * h * w, n * d * g * w
    return {
        "q": query,
        "k": key,
        "v": key,
        "scores": h * pairs * w,
        "mix": h * pairs * w,
        "out": query,
    }


def feedforward_macs(n, d, f, gated=False):
    """Multiply-adds of a feed-forward layer on one sequence; a gate adds a map (Shazeer 2020)."""
    return (3 if gated else 2) * n * d * f


def block_macs(n, d, h, g, w, f, *, gated=False, causal=False) -> dict:
    """Multiply-adds of one block on one sequence, by operation: attention and feed-forward."""
    return attention_macs(n, d, h, g, w, causal=causal) | {
        "feedforward": feedforward_macs(n, d, f, gated)
    }


def attention_parameters(d, h, g, w, *, bias=False):
    """Parameters of the query, key, value and output maps (chapter §1.2.5)."""
    return 2 * d * h * w + 2 * d * g * w + (h * w + 2 * g * w + d if bias else 0)


def feedforward_parameters(d, f, *, gated=False, bias=False):
    """Parameters of one feed-forward layer, two matrices or three with a gate (chapter §1.4)."""
    inner = 2 if gated else 1
    return (inner + 1) * d * f + (inner * f + d if bias else 0)


def cache_elements(n, g, w, B=1):
    """Elements in one layer's cache of keys and values at length n (chapter §1.2.5)."""
    return 2 * B * n * g * w
