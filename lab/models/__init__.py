"""Transformers composed from seams: one configuration, every variant a word in it."""

from lab.models.transformer import ModelConfig, Transformer

__all__ = ["ModelConfig", "Transformer"]
