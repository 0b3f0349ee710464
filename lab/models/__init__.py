"""Transformers composed from seams: one configuration, every variant a word in it."""

import importlib
import pkgutil

from lab.models.transformer import ModelConfig, Transformer

__all__ = ["ModelConfig", "Transformer"]


def import_kinds():
    """Import every module of this package, so that its kinds are choosable."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")


import_kinds()
