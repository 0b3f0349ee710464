"""Closed-form costs of a Transformer block.

Letters: n sequence length, d model width, h query heads, g key-value heads, w head width,
f feed-forward width, B batch size. The formulas also accept sympy symbols if `causal` is False.
"""


def attention_macs(n, d, h, g, w, *, causal=False) -> dict:
    """Multiply-adds of one attention layer on one sequence, by operation (chapter §1.1.3).

    With causal=True only the n(n+1)/2 unmasked pairs count; a kernel that masks scores after
    computing them still does the work of all n² pairs.
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
    """Multiply-adds of a feed-forward layer on a sequence; a gate adds a matrix (Shazeer 2020)."""
    return (3 if gated else 2) * n * d * f


def block_macs(n, d, h, g, w, f, *, gated=False, causal=False) -> dict:
    """Multiply-adds of one block (attention and feed-forward) on one sequence, by operation."""
    return attention_macs(n, d, h, g, w, causal=causal) | {
        "feedforward": feedforward_macs(n, d, f, gated)
    }


def attention_parameters(d, h, g, w, *, bias=False):
    """Number of parameters of the query, key, value and output projections (chapter §1.2.5)."""
    return 2 * d * h * w + 2 * d * g * w + (h * w + 2 * g * w + d if bias else 0)


def feedforward_parameters(d, f, *, gated=False, bias=False):
    """Number of parameters of a feed-forward layer: two matrices, or three with a gate (§1.4)."""
    inner = 2 if gated else 1
    return (inner + 1) * d * f + (inner * f + d if bias else 0)


def cache_elements(n, g, w, B=1):
    """Number of elements in the key/value cache of one layer at length n (chapter §1.2.5)."""
    return 2 * B * n * g * w
