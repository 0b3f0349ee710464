"""Transformers composed from seams: one configuration, every variant a word in it."""

from lab.models import (  # noqa: F401  their kinds become choosable
    attention,
    composed_positions,
    convolution,
    convolved_heads,
    delta,
    efficient,
    linear,
    recurrent,
    sparse,
)
from lab.models.transformer import ModelConfig, Transformer

__all__ = ["ModelConfig", "Transformer"]
