"""Initialization schemes for a whole model (chapter §1.5.5).

All set the biases of linear and convolution layers to 0 and leave norms at torch's defaults.
"""

import math

import torch
from torch import nn

from lab.models.blocks import Admin
from lab.models.gpt import Block, Initialization, QKVProjection, Visibility
from lab.models.sparse_feedforward import BlockMap


class Normal(Initialization, kind="normal"):
    """All weights from N(0, std²). Radford 2018 with std 0.02."""

    def __init__(self, *, std=0.02):
        self.std = std

    def matrix(self, weight):
        nn.init.normal_(weight, std=self.std)

    embedding = matrix


class DepthScaled(Initialization, kind="depth-scaled"):
    """The scheme `base`; then W_O and W2 of every block are divided by sqrt(number of branches).

    There are two residual branches per layer, three with cross-attention. Radford 2019 with base
    "normal".
    """

    def __init__(self, *, std=0.02, base=None):
        self.base = Initialization.build(base or {"kind": "normal", "std": std})

    def __call__(self, model):
        self.base(model)
        scale(output_projection_weights(model), branches(model) ** -0.5)


class Xavier(Initialization, kind="xavier"):
    """Variance 2 / (fan_in + fan_out); embeddings N(0, 1/d_model). Glorot 2010.

    The query, key and value matrices each have their own fan_out.
    """

    def __init__(self):
        """This scheme has no options."""

    def matrix(self, weight, fan_out=None):
        fans = weight[0].numel() + (fan_out or len(weight))
        nn.init.normal_(weight, std=math.sqrt(2 / fans))

    def embedding(self, weight):
        nn.init.normal_(weight, std=weight.shape[1] ** -0.5)

    def __call__(self, model):
        super().__call__(model)
        for part in model.modules():
            if isinstance(part, QKVProjection):  # one weight holds several matrices
                for matrix in part.matrices():
                    self.matrix(matrix.data)
            elif isinstance(part, BlockMap):
                self.matrix(part.map.weight, part.fan_out)


class He(Xavier, kind="he"):
    """Variance 2 / fan_in, for ReLU; embeddings N(0, 1/d_model). He 2015."""

    def matrix(self, weight, fan_out=None):
        nn.init.kaiming_normal_(weight)


class MeanField(Xavier, kind="mean-field"):
    """Xavier with W_Q = W_K = 0 (uniform attention) and embeddings N(0, 1). Xiong 2020."""

    def embedding(self, weight):
        nn.init.normal_(weight)

    def __call__(self, model):
        super().__call__(model)
        for heads in attentions(model):
            scale(heads.query_key_weights(), 0.0)


class DeepNormInit(Xavier, kind="deepnorm"):
    """Xavier; then W_V, W_O and feed-forward times beta = (8 n_layers)^(-1/4). Wang 2022.

    Wang 2022 bounds the change of the output in one step of SGD by a multiple of
    2 n_layers · 2 beta² / alpha². Use with residual "deepnorm", two branches per layer and
    alpha = (2 n_layers)^(1/4): then this number is 1 at any depth.
    """

    def __init__(self, *, beta=None):
        self.beta = beta

    def __call__(self, model):
        super().__call__(model)
        scale(
            branch_weights(model),
            (8 * len(model.blocks)) ** -0.25 if self.beta is None else self.beta,
        )


class TFixup(Xavier, kind="t-fixup"):
    """Xavier; then W_V, W_O, feed-forward and embeddings times (9 n_layers)^(-1/4). Huang 2020.

    With it, models can be trained without norms.
    """

    def __call__(self, model):
        super().__call__(model)
        scale([*branch_weights(model), model.embedding.weight], (9 * len(model.blocks)) ** -0.25)


class Fixup(Xavier, kind="fixup"):
    """Xavier; then three optional changes. Zhang 2019.

    zero_branches sets W_O and W2 to 0. zero_lm_head sets the LM head to 0. rescale divides W_V and
    the other feed-forward weights by sqrt(number of branches). Use with norm "none" and residual
    "scaled", which has the scalars of Fixup.
    """

    def __init__(self, *, zero_branches=True, zero_lm_head=True, rescale=True):
        self.zero_branches = zero_branches
        self.zero_lm_head = zero_lm_head
        self.rescale = rescale

    def __call__(self, model):
        super().__call__(model)
        last = output_projection_weights(model)
        if self.rescale:
            first = [w for w in branch_weights(model) if all(w is not other for other in last)]
            scale(first, branches(model) ** -0.5)
        if self.zero_branches:
            scale(last, 0.0)
        if self.zero_lm_head:
            scale([model.lm_head.weight], 0.0)


class AdminInit(Xavier, kind="admin"):
    """Xavier; then omega_i = sqrt(sum over j < i of Var f_j). Liu 2020 §4.2.

    f_0 is the input of block 0 (token embeddings plus any position codes), and f_j is the output of
    branch j. The variances are measured in one forward pass over random tokens with every omega at
    1. Without residual "admin", the scheme is Xavier.
    """

    @torch.no_grad()
    def __call__(self, model):
        super().__call__(model)
        if not isinstance(model.blocks[0], Admin) or model.embedding.weight.is_meta:
            return  # there is no omega, or no data on the meta device
        shape = (8, model.config.block_size)
        tokens = torch.randint(model.config.vocab_size, shape)
        x = model.position.at_input(model.embedding(tokens))
        variance = x.var()
        omegas = {}
        seen = Visibility(model.mask, shape[1], shape[1], batch=shape[0], device=tokens.device)
        for block in model.blocks:
            for name, f in block.sublayers(**block.mixer.inputs(seen)):
                omegas.setdefault(block.omega[name], variance.sqrt())
                variance = variance + f(x).var()
                x = block.around(x, f, name)
        for omega, value in omegas.items():
            omega.fill_(value)


def branches(model):
    """Number of residual branches of the model: 2 per layer, 3 with cross-attention."""
    return sum(3 if hasattr(block, "cross") else 2 for block in model.blocks)


def attentions(model):
    """The QKVProjection modules of the model, each once."""
    return [module for module in model.modules() if isinstance(module, QKVProjection)]


def maps_of(part):
    """All linear maps within a part of a model."""
    return [m for m in part.modules() if isinstance(m, nn.Linear | nn.Conv1d)]


def writers(part):
    """The linear maps of a mixer or feed-forward layer that write to the residual stream.

    They are the last linear maps in its modules named `out` and `down`.
    """
    modules = [m for name, m in part.named_modules() if name.split(".")[-1] in ("out", "down")]
    return [maps_of(module)[-1] for module in modules if maps_of(module)]


def output_projection_weights(model):
    """Weights of all maps that write to the residual stream: W_O and W2 of every block."""
    maps = []
    for block in model.blocks:
        maps += [*writers(block.mixer), *writers(block.ffn)]
    for block in model.blocks:
        maps += writers(block.cross) if hasattr(block, "cross") else []
    return [m.weight for m in dict.fromkeys(maps)]


def branch_weights(model):
    """Weights that scale the output of a branch: W_V, W_O and feed-forward, not W_Q and W_K."""
    maps = [m for h in attentions(model) for m in maps_of(h.out)]
    for block in model.blocks:
        maps += [*writers(block.mixer), *maps_of(block.ffn)]
    weights = [m.weight for m in dict.fromkeys(maps)]
    return weights + [weight for h in attentions(model) for weight in h.value_weights()]


@torch.no_grad()
def scale(weights, factor):
    """Multiply every weight by `factor` in place."""
    for weight in weights:
        weight *= factor


@torch.no_grad()
def preset_position_counter(model, marker, *, head=0):
    """Set a head in layer 0 so that the first component of its output is 1 / t at the t-th token.

    Its queries become 0, so that it attends uniformly to all tokens so far. The first component of
    its values becomes 1 at the token `marker` and 0 at all others (Kazemnejad 2023, theorem 1);
    `marker` must be the first token and occur only there. Other components are unchanged. For
    models with residual "pre" and position "none". Raises ValueError for another residual, and if
    the vocabulary is larger than d_model.
    """
    block = model.blocks[0]
    heads = block.mixer.heads
    if type(block) is not Block:
        raise ValueError(f"the residual must be pre, not {type(block).__name__.lower()}")
    seen = block.mixer_norm(model.embedding.weight).double()  # input of the layer for each token
    if len(seen) > seen.shape[1]:
        raise ValueError(
            f"{len(seen)} tokens cannot be separated exactly by {seen.shape[1]} features"
        )
    query, _, value = heads.matrices()
    query[head * heads.d : (head + 1) * heads.d] = 0
    target = torch.zeros(len(seen), 1, dtype=seen.dtype, device=seen.device)
    target[marker] = 1
    value[head * heads.kv // heads.n * heads.d] = (
        torch.linalg.lstsq(seen, target).solution[:, 0].to(value.dtype)
    )
