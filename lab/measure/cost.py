"""What a Transformer block costs, by closed formulas.

n sequence, d model width, h query heads, g key-value heads, w head width, f feed-forward width, B
batch, L layers. The formulas are plain arithmetic: numbers go in, or sympy symbols (where `causal`
is False).
"""


def attention_macs(n, d, h, g, w, *, causal=False) -> dict:
    """Multiply-adds of one attention layer on one sequence, by operation (chapter §1.1.3).

    `causal` counts the pairs that may be seen, n(n+1)/2; a kernel that masks afterwards still does
    all n².
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


def softmax_operations(n, h):
    """Scalar operations of h n x n softmaxes: 1/√w, maximum, difference, exp, sum and quotient
    (chapter §1.1.3).
    """
    return h * n * (4 * n + 2 * (n - 1))


def feedforward_macs(n, d, f, gated=False):
    """Multiply-adds of one feed-forward layer on one sequence; a gate adds a third matrix (Shazeer
    2020).
    """
    return (3 if gated else 2) * n * d * f


def block_macs(n, d, h, g, w, f, *, gated=False, causal=False) -> dict:
    """Multiply-adds of one block on one sequence, by operation: attention's six and the
    feed-forward layer.
    """
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


def norm_parameters(d, *, bias=True):
    """Parameters of one norm over d features: gain and bias (LayerNorm), or the gain alone
    (RMSNorm).
    """
    return 2 * d if bias else d


def cache_elements(n, g, w, B=1):
    """Elements in one layer's cache of keys and values at length n (chapter §1.2.5)."""
    return 2 * B * n * g * w


def decode_bytes(n, d, h, g, w, f, *, B=1, L=1, gated=False, element_bytes=4):
    """Bytes read to decode one token for each of B sequences at length n: block weights once,
    caches once.

    Norms, biases, embeddings and activations are left out (Shazeer 2019 §2.4).
    """
    weights = attention_parameters(d, h, g, w) + feedforward_parameters(d, f, gated=gated)
    return L * element_bytes * (weights + cache_elements(n, g, w, B))


def predicted_decode_ratio(n, d, h, g, w, f, *, B=1, gated=False):
    """How many times faster g key-value heads decode than h, where only moved bytes cost time: an
    upper bound.
    """
    return decode_bytes(n, d, h, h, w, f, B=B, gated=gated) / decode_bytes(
        n, d, h, g, w, f, B=B, gated=gated
    )


# Bytes that a notebook's largest sizes need: what its checks cell gives to
# `lab.measure.memory.within_memory`


def training_bytes(d_model, n_layers=2, context=64, batch=8):
    """Weights, gradients and two moments (16 bytes each of 12 d² a layer), and activations of a
    training step.
    """
    return 16 * 12 * n_layers * d_model**2 + 4 * 34 * n_layers * batch * context * d_model


def window_bytes(windows, context, d_model):
    """Logits over bytes and one hidden layer for all measured windows at once, 4 bytes a number."""
    return 4 * windows * context * (256 + 4 * d_model)


def score_bytes(lengths, score_heads=8):
    """Naive attention at the largest length, forward and backward: about six h x n x n arrays of 4
    bytes.
    """
    return 24 * score_heads * lengths**2


def block_bytes(widths, context, n_layers=2):
    """The widest block, and a training step at width 128 with naive attention of four heads, 4
    bytes a number.
    """
    return 4 * max(
        widths * (12 * widths + 34 * context), n_layers * context * (34 * 128 + 8 * context)
    )


def copy_bytes(longest, texts, d_model, n_layers=2):
    """Evaluation at four times the longest text, about 8 x longest tokens: twenty arrays of 4
    bytes, and the maps.
    """
    return (
        80 * texts * 8 * longest * d_model + 8 * min(texts, 32) * 4 * n_layers * (8 * longest) ** 2
    )
