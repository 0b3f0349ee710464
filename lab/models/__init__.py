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
    segments,
    sparse,
    sparse_feedforward,
    sparse_scores,
    structured_positions,
)
from lab.models.transformer import ModelConfig, Transformer

__all__ = ["ModelConfig", "Transformer"]
