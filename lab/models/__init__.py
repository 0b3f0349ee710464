"""Transformers composed from seams: one configuration, every variant a word in it."""

from lab.models import (  # noqa: F401  their kinds become choosable
    composed_positions,
    convolved_heads,
    efficient,
    linear,
    sparse,
)
from lab.models.transformer import ModelConfig, Transformer

__all__ = ["ModelConfig", "Transformer"]
