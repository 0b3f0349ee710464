"""Transformers composed from seams: one configuration, every variant a word in it."""

from lab.models import composed_positions, efficient, linear, sparse  # noqa: F401  their kinds become choosable
from lab.models.transformer import ModelConfig, Transformer

__all__ = ["ModelConfig", "Transformer"]
