"""Finished trials of this machine: one small JSON file each, written in one step, its checksum inside.

A finished trial is a dict: trial (name), parameters, n (rows), columns, curve, batch, seconds, device, torch, threads,
arithmetic, code (hash), kinds {name: hash}, data {name: hash}. In `columns` a list has an entry for each row, anything
else holds for all of them.
"""

import hashlib
import json
import math
import os
import tempfile
import warnings
from contextlib import suppress

INFINITE = "\x00infinity"  # JSON has no infinity, but 1e999 is read as one


def canonical(value):
    """The JSON text that is the same for equal values. Raises TypeError for what JSON cannot hold."""
    return json.dumps(value, sort_keys=True, default=plain_or_error)


def plain(value):
    """A numpy scalar as the Python number that it is; anything else as it is."""
    import numpy

    return value.item() if isinstance(value, numpy.generic) else value


def plain_or_error(value):
    """What `json.dumps(default=...)` should put in place of a value it does not know."""
    if (number := plain(value)) is value:
        raise TypeError(f"{value!r} is a {type(value).__name__}")
    return number


def encoded(value):
    """Plain JSON text of a finished trial: floats by repr, what is no number as null, infinities as ±1e999."""

    def finite(x):
        if isinstance(x, dict):
            return {name: finite(each) for name, each in x.items()}
        if isinstance(x, list):
            return [finite(each) for each in x]
        if isinstance(x, float) and not math.isfinite(x):
            return None if math.isnan(x) else INFINITE if x > 0 else f"-{INFINITE}"
        return x

    text = json.dumps(finite(value), ensure_ascii=False, separators=(",", ":"), default=plain_or_error)
    return text.replace(f'"{json.dumps(INFINITE)[1:-1]}"', "1e999").replace(
        f'"-{json.dumps(INFINITE)[1:-1]}"', "-1e999"
    )


def columns(rows):
    """Rows (dicts) as columns: a list where values differ, else the value that all share."""
    names = dict.fromkeys(name for row in rows for name in row)
    listed = {name: [row.get(name) for row in rows] for name in names}
    return {name: values[0] if len(set(map(repr, values))) == 1 else values for name, values in listed.items()}


def rows(body):
    """The rows of a finished trial, dicts."""
    filled = {
        name: values if isinstance(values, list) else [values] * body["n"] for name, values in body["columns"].items()
    }
    return [dict(zip(filled, row, strict=True)) for row in zip(*filled.values(), strict=True)] or [{}] * body["n"]


def key(ingredients):
    """The name under which the outcome of these JSON values is stored: 16 hex digits of a sha256."""
    return hashlib.sha256(canonical(ingredients).encode()).hexdigest()[:16]


def make(folder):
    """Make the folder and see that files can be written there. Raises OSError that names the path."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder):
        pass


def read(folder, key):
    """The trial stored under `key`, or None; with a warning where the file is not what was once written."""
    path = folder / f"{key}.json"
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        return None
    with suppress(ValueError, TypeError, LookupError):
        seal, _, text = raw.partition(b"\n")
        if seal.decode() == hashlib.sha256(text).hexdigest():
            return json.loads(text)
    warnings.warn(f"{path} is damaged; its trial is run again", stacklevel=4)


def write(folder, key, body):
    """Store a trial in one step and return it as it will be read. Raises OSError that names the path."""
    text = encoded(body).encode()
    path, aside = folder / f"{key}.json", folder / f"{key}.{os.getpid()}.tmp"
    try:
        aside.write_bytes(hashlib.sha256(text).hexdigest().encode() + b"\n" + text)
        os.replace(aside, path)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None
    finally:
        with suppress(OSError):
            aside.unlink(missing_ok=True)
    return json.loads(text)
