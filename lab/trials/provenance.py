"""Where a run happens (commit, versions, machine, device) and where its trials come from."""

import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path

from lab.trials.rows import key
from lab.trials.runs import project_root

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


def is_here(commit):
    """Whether this repository contains the commit of this hash."""
    command = ["git", "-C", str(project_root()), "cat-file", "-e", f"{commit}^{{commit}}"]
    return subprocess.run(command, capture_output=True).returncode == 0


def machine():
    """The versions, machine, device, threads and matrix library of this process, as a dict."""
    import torch

    from lab.device import device
    from lab.trials import arithmetic

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


def machine_name():
    return f"{processor()}, {os.cpu_count()} cores, {platform.system()} {platform.machine()}"


def processor():
    """The processor's name, or "unknown processor"."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or "unknown processor"


def origins(used):
    """Counts of the trials that a run used: run here, stored and recorded, and by which runs."""
    counts, recorded, accepted, states = {"run": 0, "store": 0, "record": 0}, {}, {}, {}
    for each in used:
        counts[each.origin] += 1
        state = states.setdefault(each.trial.__name__, {"code": each.body["code"], "points": []})
        if each.origin != "record":
            state["points"].append(key(each.body["parameters"]))
            continue
        labels = each.body["labels"]
        name = ", ".join(
            filter(None, (labels.get("date"), labels.get("machine"), labels.get("commit", "")[:10]))
        )
        recorded[name] = recorded.get(name, 0) + 1
        if "accepted" in labels:
            accepted[labels["accepted"]] = accepted.get(labels["accepted"], 0) + 1
    return {
        "ran_here": counts["run"],
        "kept_here": counts["store"],
        "recorded": counts["record"],
        "trials": states,
        "recorded_by": recorded,
        "accepted": accepted,
    }


def told(origins):
    """The counts that `origins` returns, as sentences."""
    counts = {
        "recorded": origins["recorded"],
        "kept from earlier runs on this machine": origins["kept_here"],
        "run now": origins["ran_here"],
    }
    counted = ", ".join(f"{n} {words}" for words, n in counts.items() if n)
    said = f"Trials: {counted or 'none'}."
    said += "".join(f" {n} by a run of {name}." for name, n in origins["recorded_by"].items())
    accepted = origins["accepted"].items()
    return said + "".join(f" {n} of them by older code, accepted: {why}." for why, n in accepted)
