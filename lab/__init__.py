"""Transformer Lab: modular Transformers, probes for any PyTorch model, and measured claims.

A notebook begins with `study = lab.study("1.4", globals())`.
"""

import importlib
import sys
import time

__version__ = "0.1.0"
STARTED = time.time()  # set before any other module of the package is imported

# keep jsonschema (imported by nbformat) from loading rfc3987_syntax, which takes five seconds
sys.modules.setdefault("rfc3987_syntax", None)


def __getattr__(name):  # import submodules lazily
    try:
        return importlib.import_module(f"lab.{name}")
    except ModuleNotFoundError as error:
        if error.name != f"lab.{name}":
            raise
        raise AttributeError(f"module 'lab' has no attribute {name!r}") from None
