"""Trained models of this machine: weights as safetensors, and beside them, as of a trial, what they were made of.

A key holds parameters, code, arithmetic and threads; kinds and data are compared as of a trial. Who is given a kept
model has touched what its training touched, and random numbers go on as they would have: it makes no difference to a
trial whether its model was kept. Nothing is unpickled.
"""

import hashlib
import os
import random
import time
import warnings
from contextlib import contextmanager, nullcontext, suppress
from contextvars import ContextVar
from dataclasses import asdict
from functools import partial
from pathlib import Path

from filelock import FileLock

from lab import trace
from lab.engine import fingerprint, store
from lab.engine.device import device
from lab.engine.record import State
from lab.engine.runs import Options

FOLDER = "models"  # in the store
OUTSIDE = object()
kept_in = ContextVar("models", default=OUTSIDE)  # in a trial the folder of its models; None: none is kept or taken
home = None  # the store for who asks outside trials; None: the usual one. Set by a study


def kept(train, parameters, *, also=(), data=None):
    """(weights {name: tensor on the CPU}, told) of train(**parameters), which ran now or earlier.

    `train` returns (weights, told), told a dict for JSON. Parameters are numbers, words, configurations or dataclasses,
    whose classes' code counts like that of `train`. `data` is {name: function of what follows the name, giving its
    hash} for sources that are more than a file. Raises what `train` raises, TypeError for other parameters.
    """
    import torch

    from lab.engine import arithmetic

    inside = kept_in.get() is not OUTSIDE
    folder = kept_in.get() if inside else Path(home or Options().store) / FOLDER
    words = {name: _plain(value) for name, value in parameters.items()}
    run = partial(_run, train, parameters, int(store.key(words)[:8], 16))
    with nullcontext() if inside else _as_in_a_trial():
        if folder is None:
            return run()[:2]
        made_by = [train, *(type(value) for value in parameters.values() if not isinstance(value, (int, float, str)))]
        codes = [fingerprint.code_of(item).digest for item in made_by]
        threads = torch.get_num_threads()
        key = store.key([words, codes, arithmetic.digest(str(device()), threads), threads])
        state = State(codes, fingerprint.kind_hash, partial(_data_hash, data or {}))
        with trace.apart():
            store.make(folder)
        with FileLock(folder / f"{key}.lock"):  # who asks while it is trained waits for it
            with trace.apart():
                weights, body = _read(folder, key, state)
            if weights is not None:
                trace.replay(_touched(body))
                return weights, body["told"]
            weights, told, touched, seconds = run()
            with trace.apart():
                body = _write(folder, key, weights, _body(told, touched, seconds, codes, words))
            return weights, body["told"]


def _plain(value):
    """A parameter as JSON can hold it, with the name of its class."""
    if isinstance(value, (int, float, str)):
        return value
    fields = value.model_dump(mode="json") if hasattr(value, "model_dump") else asdict(value)
    return {type(value).__qualname__: fields}


def _run(train, parameters, seed):
    """(weights, told, touched, seconds) of a training whose random numbers follow from its parameters alone."""
    import torch

    began = time.perf_counter()
    with _sown(seed), trace.touching() as touched:
        weights, told = train(**parameters)
    weights = {name: x.detach().cpu().clone(memory_format=torch.contiguous_format) for name, x in weights.items()}
    return weights, told, touched, time.perf_counter() - began


def _body(told, touched, seconds, code, parameters):
    return {
        "parameters": parameters,
        "told": told,
        "curve": touched.curve,
        "batch": touched.batch,
        "seconds": round(seconds, 4),
        "code": code,
        "kinds": {name: fingerprint.kind_hash(name) for name in sorted(touched.kinds)},
        "data": touched.all_data(),
    }


def _touched(body):
    beginning = {"curve": body["curve"], "batch": body["batch"], "spared": body["seconds"]}
    return trace.Touched(set(body["kinds"]), body["data"], **beginning)


def _read(folder, key, state):
    """(weights, body) of what is kept under the key and was made of what is there now, else (None, None)."""
    from safetensors.torch import load

    body, path = store.read(folder, key), folder / f"{key}.safetensors"
    if body is None or not state.agrees(body):
        return None, None
    with suppress(FileNotFoundError):
        if hashlib.sha256(raw := path.read_bytes()).hexdigest() == body["weights"]:
            return load(raw), body
    warnings.warn(f"{path} is damaged; its model is trained again", stacklevel=4)
    return None, None


def _write(folder, key, weights, body):
    """Keep weights, then what tells of them, each in one step; the body as it will be read."""
    from safetensors.torch import save

    raw, aside = save(weights), folder / f"{key}.{os.getpid()}.tmp"
    try:
        aside.write_bytes(raw)
        os.replace(aside, folder / f"{key}.safetensors")
    finally:
        aside.unlink(missing_ok=True)
    return store.write(folder, key, body | {"weights": hashlib.sha256(raw).hexdigest()})


def _data_hash(sources, name):
    word, _, rest = name.partition(" ")
    return sources[word](rest) if word in sources else trace.file_hash(name) if os.path.isfile(name) else None


@contextmanager
def _as_in_a_trial():
    """One thread and the products of trials, so that cells and trials share their models."""
    import torch

    from lab.engine import arithmetic

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with arithmetic.fast():
            yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def _sown(seed):
    """Inside, random numbers that come from no generator follow from the seed; afterwards they go on as before."""
    import numpy
    import torch

    before = random.getstate(), numpy.random.get_state()
    with torch.random.fork_rng(range(torch.cuda.device_count())):
        for sow in (random.seed, numpy.random.seed, torch.manual_seed):
            sow(seed)
        try:
            yield
        finally:
            random.setstate(before[0])
            numpy.random.set_state(before[1])
