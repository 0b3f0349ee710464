"""Where trials run: what must be the same on all workers of a sweep, and what a finished trial
tells of it.
"""

import json
import platform
from datetime import UTC, datetime
from functools import cache, partial
from pathlib import Path

from lab import trace
from lab.device import available
from lab.trials import provenance
from lab.trials.files import file_hash
from lab.trials.syntax import digest


def here(device, threads):
    """What must be the same wherever the trials of one sweep run."""
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
    """The hash of all code of lab, as it lies on the disk."""
    files = sorted(Path(trace.__file__).parent.rglob("*.py"))
    return digest(json.dumps([file_hash(path) for path in files]))


@cache
def package_hash():
    """The hash of all code of lab, as it was when this process first asked."""
    return files_hash()


def of_cluster(client, device, threads):
    """`here` on a cluster.

    RuntimeError where its workers differ, or run another Python or lab than this process.
    """
    from lab.trials import workers

    there = workers.agreed(client, partial(here, device, threads))
    if there["python"] != _minor_version():
        raise RuntimeError(
            f"the workers run Python {there['python']}, but here it is {_minor_version()}: use the same"
        )
    if there["code"] != package_hash():
        raise RuntimeError("the workers run other code of lab: install the same commit there")
    return there


def labels(where, threads):
    """The labels of a trial that ended now; without a commit where files differ from it."""
    made = _commit()
    return {
        "machine": provenance.machine_name(),
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
    """The commit whose code this process has loaded."""
    return provenance.commit()


def _minor_version():
    return ".".join(platform.python_version_tuple()[:2])
