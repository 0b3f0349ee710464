"""Transformer Lab: models of exchangeable parts, probes for any model, and measured claims.

A notebook begins with `study = lab.study("1.4", globals())`.
"""

import importlib
import pkgutil
import sys
import time

__version__ = "0.1.0"
STARTED = time.time()  # before any other module of the package is imported

# jsonschema, which reads notebooks, would build parsers of addresses for five seconds
sys.modules.setdefault("rfc3987_syntax", None)


def __dir__():
    return sorted({*globals(), *(part.name for part in pkgutil.iter_modules(__path__))})


def __getattr__(name):  # submodules on first use: `import lab` costs nothing
    try:
        return importlib.import_module(f"lab.{name}")
    except ModuleNotFoundError as error:
        if error.name != f"lab.{name}":
            raise
        raise AttributeError(f"lab has no part {name!r}") from None
