"""Where a run happens: commit, versions, machine, device."""

import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path

from lab.engine.runs import project_root

CODE = ("lab", "notebooks", "experiments", "pyproject.toml")  # what decides the numbers of a run


def commit():
    """{"commit": hash, "changes": whether what decides a run's numbers differs from it}; "" and None without git."""

    def git(*arguments):
        command = ["git", "-C", str(project_root()), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        return {"commit": git("rev-parse", "HEAD"), "changes": bool(git("status", "--porcelain", "--", *CODE))}
    except (OSError, subprocess.CalledProcessError):
        return {"commit": "", "changes": None}


def is_here(commit):
    """Whether this repository has a commit."""
    command = ["git", "-C", str(project_root()), "cat-file", "-e", f"{commit}^{{commit}}"]
    return subprocess.run(command, capture_output=True).returncode == 0


def machine():
    """Versions, machine, device, threads, and whose products of matrices the trials of this process use."""
    import torch

    from lab.engine import arithmetic
    from lab.engine.device import device

    packages = ("torch", "numpy", "pandas", "matplotlib", "papermill", "jupyterlab")
    return {
        "versions": {"python": platform.python_version()} | {name: metadata.version(name) for name in packages},
        "machine": f"{processor()}, {os.cpu_count()} cores, {platform.system()} {platform.machine()}",
        "card": torch.cuda.get_device_name() if device().type == "cuda" else "",
        "device": str(device()),
        "threads": torch.get_num_threads(),
        "products": "oneDNN" if arithmetic.replaceable() else "torch's own",
    }


def peak_mib():
    """The most memory that this process has held, in MiB."""
    import psutil

    try:
        import resource

        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return round(most / (2**20 if platform.system() == "Darwin" else 2**10))
    except ImportError:  # Windows
        return round(psutil.Process().memory_info().peak_wset / 2**20)


def processor():
    """The processor's name, as far as the system tells."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or "unknown processor"
