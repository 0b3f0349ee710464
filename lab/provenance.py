"""Where a run happens (commit, versions, machine, device) and where its trials come from."""

import platform
import subprocess
from importlib import metadata

from lab.runs import project_root

CODE = ("lab", "notebooks", "experiments", "pyproject.toml")  # the numbers of a run depend on it


def commit():
    """{"commit": hash, "changes": whether `CODE` differs from it}; "" and None without git."""

    def git(*arguments):
        command = ["git", "-C", str(project_root()), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        return {
            "commit": git("rev-parse", "HEAD"),
            "changes": bool(git("status", "--porcelain", "--", *CODE)),
        }
    except (OSError, subprocess.CalledProcessError):
        return {"commit": "", "changes": None}


def machine():
    """The versions, machine, device, threads and matrix library of this process, as a dict."""
    import torch

    from lab import arithmetic
    from lab.device import device
    from lab.device import machine as machine_name

    packages = ("torch", "numpy", "pandas", "matplotlib", "papermill")
    return {
        "versions": {"python": platform.python_version()}
        | {name: metadata.version(name) for name in packages},
        "machine": machine_name(),
        "card": torch.cuda.get_device_name() if device().type == "cuda" else "",
        "device": str(device()),
        "threads": torch.get_num_threads(),
        "products": "oneDNN" if arithmetic.replaceable() else "torch's own",
    }
