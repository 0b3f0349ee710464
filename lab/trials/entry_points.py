"""Variants that installed packages bring: modules named in the entry-point group `transformer_lab`.

In the package's pyproject.toml:

    [project.entry-points.transformer_lab]
    fading = "my_package.positions"
"""

import warnings
from functools import cache
from importlib import metadata

GROUP = "transformer_lab"


@cache
def load():
    """Import every module of the group, once; what it defines registers itself.

    Returns {entry: its module or class}.

    One that cannot be imported is named in a warning, and the others are there.
    """
    found = {}
    for entry in metadata.entry_points(group=GROUP):
        try:
            found[entry.name] = entry.load()
        except Exception as error:
            said = f"entry point {entry.name} = {entry.value!r}: {type(error).__name__}: {error}"
            warnings.warn(f"{said}; its variants are not there", stacklevel=2)
    return found
