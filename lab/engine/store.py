"""The store of finished trials: one small JSON file each, written in one step, its checksum inside."""

import hashlib
import json
import os
import tempfile
import warnings
from contextlib import suppress


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


def key(ingredients):
    """The name under which the outcome of these JSON values is stored: a sha256 hex digest."""
    return hashlib.sha256(canonical(ingredients).encode()).hexdigest()


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
        body = json.loads(raw)["body"]
        if body["key"] == key and _sealed(body) == raw:
            return body
    warnings.warn(f"{path} is damaged; its trial is run again", stacklevel=4)


def write(folder, key, trial):
    """Store a trial in one step and return it as it will be read. Raises OSError that names the path."""
    sealed = _sealed({"key": key} | trial)
    path, aside = folder / f"{key}.json", folder / f"{key}.{os.getpid()}.tmp"
    try:
        aside.write_bytes(sealed)
        os.replace(aside, path)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None
    finally:
        with suppress(OSError):
            aside.unlink(missing_ok=True)
    return json.loads(sealed)["body"]


def _sealed(body):
    text = json.dumps(body)
    return f'{{"sha256": "{hashlib.sha256(text.encode()).hexdigest()}", "body": {text}}}\n'.encode()
