"""Transformers composed from seams: one configuration, every variant a word in it."""

import importlib
import pkgutil

from lab.models.gpt import ModelConfig, Transformer


def import_files():
    """Import every file of this package: the kinds that it defines become choosable."""
    for file in pkgutil.iter_modules(__path__, f"{__name__}."):
        importlib.import_module(file.name)


import_files()

__all__ = ["ModelConfig", "Transformer"]
