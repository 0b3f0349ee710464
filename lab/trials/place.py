"""Where trials run: the environment shared by all workers of a sweep, and the labels of a trial."""

import json
import platform
from datetime import UTC, datetime
from functools import cache, partial
from pathlib import Path

from lab import trace
from lab.device import available
from lab.files import commit, machine_name
from lab.trials.files import file_hash
from lab.trials.syntax import digest


def here(device, threads):
    """The environment that must be the same wherever the trials of one sweep run, as a dict."""
    import torch

    from lab.trials import arithmetic

    device = available(device)
    return {
        "device": device,
        "torch": str(torch.__version__),
        "python": _minor_version(),
        "arithmetic": arithmetic.digest(device, threads),
        "code": package_hash(),
    }


def files_hash():
    """The hash of all code of lab on the disk."""
    files = sorted(Path(trace.__file__).parent.rglob("*.py"))
    return digest(json.dumps([file_hash(path) for path in files]))


@cache
def package_hash():
    """The hash of all code of lab at the first call in this process."""
    return files_hash()


def of_cluster(client, device, threads):
    """The environment that `here` returns on the workers of a cluster.

    Raises RuntimeError where workers differ from each other, or where they run another version of
    Python or lab than this process.
    """
    from lab.trials import workers

    there = workers.agreed(client, partial(here, device, threads))
    if there["python"] != _minor_version():
        raise RuntimeError(
            f"the workers run Python {there['python']}, but this process runs {_minor_version()}: "
            "use the same version"
        )
    if there["code"] != package_hash():
        raise RuntimeError("the workers run another version of lab: install the same commit there")
    return there


def labels(where, threads):
    """The labels of a trial that ended now.

    `commit` is empty where the files of the project differ from the commit.
    """
    made = _commit()
    return {
        "machine": machine_name(),
        "arithmetic": where["arithmetic"],
        "device": where["device"],
        "threads": threads,
        "torch": where["torch"],
        "python": platform.python_version(),
        "commit": made["commit"] if made["changes"] is False else "",
        "date": datetime.now(UTC).date().isoformat(),
    }


@cache
def _commit():
    """The commit at the first call in this process, whose code it has loaded."""
    return commit()


def _minor_version():
    return ".".join(platform.python_version_tuple()[:2])
