"""Transformers composed from seams: one configuration, every variant a word in it."""

from lab.models import composed_positions  # noqa: F401  its kinds of position become choosable
from lab.models.transformer import ModelConfig, Transformer

__all__ = ["ModelConfig", "Transformer"]
