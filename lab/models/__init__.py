"""A Transformer with exchangeable parts, each chosen by name in its ModelConfig."""

import importlib
import pkgutil

from lab.models.gpt import ModelConfig, Transformer


def import_files():
    """Import every module of this package, to register the kinds that it defines."""
    for file in pkgutil.iter_modules(__path__, f"{__name__}."):
        importlib.import_module(file.name)


import_files()

__all__ = ["ModelConfig", "Transformer"]
