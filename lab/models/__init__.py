"""Transformers composed from seams: one configuration, every variant a word in it."""

from lab.models import (  # noqa: F401  their kinds become choosable
    attention,
    composed_positions,
    delta,
    linear,
    recurrence,
    sparse_feedforward,
    sparse_masks,
    sparse_scores,
)
from lab.models.transformer import ModelConfig, Transformer

__all__ = ["ModelConfig", "Transformer"]
