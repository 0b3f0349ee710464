"""Trained models of this machine: safetensors files, named by what they were trained from and by all code of lab.

Who is given a kept model has touched what its training touched, and random numbers go on as they would have: it makes
no difference to a trial whether its model was kept. Nothing is unpickled.
"""

import json
import random
import time
import warnings
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import asdict
from pathlib import Path

from filelock import FileLock

from lab import trace
from lab.engine.device import device
from lab.engine.runs import Options, replacing

FOLDER = "models"  # in the store
OUTSIDE = object()
kept_in = ContextVar("models", default=OUTSIDE)  # in a trial the folder of its models; None: none is kept or taken
home = None  # the store for who asks outside trials; None: the usual one. Set by a study


def kept(train, seed, **parameters):
    """(weights {name: tensor on the CPU}, told) of `train(seed=seed, **parameters)`, which ran now or earlier.

    `train` returns (weights, told), told a dict for JSON. Parameters are configurations or dataclasses. Raises what
    `train` raises.
    """
    inside = kept_in.get() is not OUTSIDE
    folder = kept_in.get() if inside else Path(home or Options().store) / FOLDER
    with nullcontext() if inside else as_in_a_trial():
        if folder is None:
            return _run(train, seed, parameters)[:2]
        with trace.apart():
            name = _name(seed, parameters)
            folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{name}.safetensors"
        with trace.apart(), FileLock(f"{path}.lock"):  # who asks while it is trained waits for it
            found = _read(path)
            if found is None:
                found = _run(train, seed, parameters)
                _write(path, *found)
        weights, told, touched = found
        trace.replay(touched)
        return weights, told


def _name(seed, parameters):
    """A hash of parameters with the data that they read, of all code of lab, kinds from elsewhere, and arithmetic."""
    import torch

    from lab.engine import arithmetic
    from lab.trials import place, workers
    from lab.trials.code import kind_hash
    from lab.trials.rows import key

    words = {}
    for name, value in parameters.items():
        fields = value.model_dump(mode="json") if hasattr(value, "model_dump") else asdict(value)
        words[name] = [type(value).__qualname__, fields, getattr(value, "hash", "")]
    kinds = {f"{seam}.{kind}": kind_hash(f"{seam}.{kind}") for seam, kind, _ in workers.foreign_kinds()}
    threads = torch.get_num_threads()
    return key([seed, words, place.package_hash(), kinds, arithmetic.digest(str(device()), threads), threads])


def _run(train, seed, parameters):
    """(weights, told, touched) of a training whose random numbers follow from its seed alone."""
    import torch

    began = time.perf_counter()
    with _sown(seed), trace.touching() as touched:
        weights, told = train(seed=seed, **parameters)
    weights = {name: x.detach().cpu().clone(memory_format=torch.contiguous_format) for name, x in weights.items()}
    touched.spared = time.perf_counter() - began
    return weights, told, touched


def _read(path):
    """(weights, told, touched) of a kept model; None where there is none, or its file is damaged."""
    from safetensors import SafetensorError, safe_open

    if not path.exists():
        return None
    try:
        with safe_open(path, "pt") as file:
            about = json.loads(file.metadata()["training"])
            weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, KeyError, TypeError, ValueError):
        warnings.warn(f"{path} is damaged; its model is trained again", stacklevel=4)
        return None
    touched = trace.Touched(set(about["kinds"]), about["data"], curve=about["curve"], batch=about["batch"])
    touched.spared = about["seconds"]
    return weights, about["told"], touched


def _write(path, weights, told, touched):
    from safetensors.torch import save_file

    about = {"told": told, "kinds": sorted(touched.kinds), "data": touched.data}
    about |= {"curve": touched.curve, "batch": touched.batch, "seconds": touched.spared}
    with replacing(path) as temporary:
        save_file(weights, temporary, {"training": json.dumps(about)})


@contextmanager
def as_in_a_trial():
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

    from lab.trials.run import sow

    before = random.getstate(), numpy.random.get_state()
    with torch.random.fork_rng(range(torch.cuda.device_count())):
        sow(seed)
        try:
            yield
        finally:
            random.setstate(before[0])
            numpy.random.set_state(before[1])
