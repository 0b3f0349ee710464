"""Trained models of this machine, kept as safetensors files that are named by what they were
trained from.

It makes no difference to a trial whether its model was kept: what the training touched is reported
again, and random numbers go on as they would have.
"""

import json
import time
import warnings
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict
from pathlib import Path

from filelock import FileLock

from lab import trace
from lab.device import device
from lab.trials import place, workers
from lab.trials.rng import preserve_rng
from lab.trials.rows import key
from lab.trials.runs import Options, replacing

FOLDER = "models"  # in the store
OUTSIDE = object()
kept_in = ContextVar("models", default=OUTSIDE)  # in a trial the folder of its models; None: none
home = None  # the store for who asks outside trials; None: the usual one. Set by a study


def kept(train, seed, **parameters):
    """(weights {name: tensor on the CPU}, run) of `train(seed=seed, **parameters)`, now or earlier.

    `train` returns (weights, run), run a dict for JSON. Parameters are configurations or
    dataclasses. Raises what `train` raises.
    """
    folder = kept_in.get()
    if folder is OUTSIDE:
        with as_in_a_trial():
            return kept(train, seed, **parameters)
    if folder is None:
        weights, run, _ = _trained(train, seed, parameters)
        return weights, run
    with trace.apart():
        path = folder / f"{_name(seed, parameters)}.safetensors"
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{path}.lock"):  # who asks while it is trained waits for it
            found = _read(path) if path.exists() else None
            if found is None:
                found = _trained(train, seed, parameters)
                _write(path, *found)
    weights, run, touched = found
    trace.replay(touched)
    return weights, run


@contextmanager
def as_in_a_trial():
    """One thread and the products of trials, so that cells and trials share their models."""
    import torch

    from lab.trials import arithmetic

    threads = torch.get_num_threads()
    token = kept_in.set(Path(home or Options().store) / FOLDER)
    torch.set_num_threads(1)
    try:
        with arithmetic.fast():
            yield
    finally:
        torch.set_num_threads(threads)
        kept_in.reset(token)


def _name(seed, parameters):
    """A hash of parameters with their data, of all code of lab, kinds from elsewhere, arithmetic."""
    import torch

    from lab.trials import arithmetic

    given = {}
    for name, value in parameters.items():
        fields = value.model_dump(mode="json") if hasattr(value, "model_dump") else asdict(value)
        given[name] = [type(value).__qualname__, fields, getattr(value, "hash", "")]
    code_hash = [place.package_hash(), workers.foreign_hashes()]
    threads = torch.get_num_threads()
    return key([seed, given, code_hash, arithmetic.digest(str(device()), threads), threads])


def _trained(train, seed, parameters):
    """(weights, run, touched) of a training whose random numbers follow from its seed alone."""
    import torch

    from lab.trials.run import sow

    began = time.perf_counter()
    with preserve_rng(), trace.touching() as touched:
        sow(seed)
        weights, run = train(seed=seed, **parameters)
    copies = {}
    for name, x in weights.items():
        copies[name] = x.detach().cpu().clone(memory_format=torch.contiguous_format)
    touched.spared = time.perf_counter() - began
    return copies, run, touched


def _read(path):
    """(weights, run, touched) of a kept model; None where its file is damaged."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "pt") as file:
            run, touched = json.loads(file.metadata()["training"])
            weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, KeyError, TypeError, ValueError):
        warnings.warn(f"{path} is damaged; its model is trained again", stacklevel=3)
        return None
    return weights, run, trace.Touched(**touched | {"kinds": set(touched["kinds"])})


def _write(path, weights, run, touched):
    from safetensors.torch import save_file

    told = {"kinds": sorted(touched.kinds), "data": touched.data, "spared": touched.spared}
    told |= {"curve": touched.curve, "batch": touched.batch}
    with replacing(path) as temporary:
        save_file(weights, temporary, {"training": json.dumps([run, told])})
