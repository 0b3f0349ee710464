"""Initial weights, one scheme over the whole model (chapter §1.5.5). Biases start at 0, norms at their own default."""

import math

import torch
from torch import nn

from lab.models.seams import Seam


class Initialization(Seam):
    def __call__(self, model):
        for module in model.modules():
            if isinstance(module, nn.Linear | nn.Conv1d):
                self.matrix(module.weight)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
            elif isinstance(module, nn.Embedding):
                self.embedding(module.weight)


class Normal(Initialization, kind="normal"):
    """Every weight from N(0, std^2). Radford 2018 with std .02."""

    def __init__(self, *, std=0.02):
        self.std = std

    def matrix(self, weight):
        nn.init.normal_(weight, std=self.std)

    embedding = matrix


class DepthScaled(Normal, kind="depth-scaled"):
    """Normal, and what writes into the stream is divided by sqrt(number of branches = 2 n_layers). Radford 2019."""

    def __call__(self, model):
        super().__call__(model)
        with torch.no_grad():
            for weight in model.writes_to_stream():
                weight /= math.sqrt(2 * len(model.blocks))


class Xavier(Initialization, kind="xavier"):
    """Variance 2 / (fan_in + fan_out) in each of the query, key and value matrices alike; embeddings N(0, 1/d_model)."""

    def matrix(self, weight):
        nn.init.xavier_normal_(weight)

    def embedding(self, weight):
        nn.init.normal_(weight, std=weight.shape[1] ** -0.5)

    def __call__(self, model):
        super().__call__(model)
        for block in model.blocks:
            heads = block.attention.heads  # several matrices in one: fan_out is each one's own
            sizes = [n * heads.d for n in (heads.n, heads.kv, heads.kv)] if isinstance(heads.qkv, nn.Linear) else heads.d
            for part in heads.qkv.weight.split(sizes):
                self.matrix(part.data)


class FanIn(Initialization, kind="fan-in"):
    """Matrices N(0, gain^2 / fan_in), embeddings N(0, embedding^2): unit-size activations at small width."""

    def __init__(self, *, gain=0.8, embedding=1.0):
        self.gain, self.std = gain, embedding

    def matrix(self, weight):
        nn.init.normal_(weight, std=self.gain * weight[0].numel() ** -0.5)

    def embedding(self, weight):
        nn.init.normal_(weight, std=self.std)
