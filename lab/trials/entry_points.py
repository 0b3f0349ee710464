"""Variants from installed packages, found through the entry-point group `transformer_lab`.

Such a package names its modules in pyproject.toml:

    [project.entry-points.transformer_lab]
    fading = "my_package.positions"
"""

import warnings
from functools import cache
from importlib import metadata

GROUP = "transformer_lab"


@cache
def load():
    """Import every module of the group once, and return {entry: its module or class}.

    The kinds that a module defines register themselves. A module that cannot be imported is named
    in a warning and left out.
    """
    found = {}
    for entry in metadata.entry_points(group=GROUP):
        try:
            found[entry.name] = entry.load()
        except Exception as error:
            said = f"entry point {entry.name} = {entry.value!r}: {type(error).__name__}: {error}"
            warnings.warn(f"{said}; its variants are not available", stacklevel=2)
    return found
