"""Jobs: notebooks with validated parameters, which papermill executes.

Results are written to a temporary folder, which is moved to results/runs/PROFILE/NN_slug on
success. Environment variables configure the kernel: see `environment`.
"""

import contextlib
import hashlib
import json
import logging
import os
import re
import shutil
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from lab import files, parameters
from lab.files import Refused


@dataclass(frozen=True)
class Job:
    """A notebook, its validated parameters, and the folder of its results."""

    notebook: Path
    values: dict
    own: dict  # values that differ from the profile
    folder: Path

    @property
    def fingerprint(self):
        """The hash of the notebook, its claims and bars, the package and the parameters."""
        root = files.project_root()
        claims = root / "experiments" / "claims" / f"{self.notebook.stem}.yaml"
        bars = root / "experiments" / "bars.yaml"
        code = [self.notebook, claims, bars, *sorted(Path(__file__).parent.rglob("*.py"))]
        parts = [path.read_bytes() for path in code if path.exists()]
        parts.append(json.dumps(self.values, sort_keys=True).encode())
        return hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]

    @property
    def is_done(self):
        """Whether the results of a lesson are current. False for a user's notebook: it reruns."""
        run = files.read_run(self.folder) or {}
        return (
            self.notebook in files.notebooks()
            and run.get("fingerprint", "") == self.fingerprint
            and (self.folder / "notebook.ipynb").exists()
        )


def plan(names, profile, results, *overrides):
    """The jobs of the named notebooks (default: all lessons).

    `overrides` are pairs (source, {name: value}). Raises Refused if a value is invalid, a value is
    given for the notebook parameter `results`, or two notebooks have the same name.
    """
    chosen = [files.notebook_of(name) for name in names] or files.notebooks()
    jobs = []
    for notebook in dict.fromkeys(chosen):
        named = [values["profile"] for _, values in overrides if "profile" in values]
        source = parameters.of_profile(notebook, named[-1] if named else profile)
        usual = parameters.validate(notebook, source)
        values = parameters.validate(notebook, source, *overrides)
        if values.pop("results", ""):
            raise Refused("results is not a parameter of `lab run`: use the option --results")
        own = {name: value for name, value in values.items() if value != usual[name]}
        name = "-".join(filter(None, [notebook.stem, suffix_of(own)]))
        folder = results / "runs" / values.get("profile", "own") / name
        if any(folder == job.folder for job in jobs):
            raise Refused(f"two notebooks are called {notebook.stem}: run them separately")
        jobs.append(Job(notebook, values, own, folder))
    return jobs


def suffix_of(own):
    """The suffix of a run's folder, such as seeds-10; "" if all values are the profile's."""
    name = re.sub(r"[^\w.]+", "-", json.dumps(own)).strip("-")
    if len(name) <= 40:
        return name
    return f"{name[:32].rstrip('-')}-{hashlib.sha256(name.encode()).hexdigest()[:6]}"


def execute(job, fresh=False, anyway=False, **options):
    """Run a notebook. Its results are in a temporary folder, moved to job.folder on success.

    The working directory is the notebook's folder, as in JupyterLab. Raises papermill's exceptions,
    and RuntimeError if a lesson does not call study.finish() or a cell other than the last code
    cell calls sys.exit.
    """
    aside = job.folder.with_name(f".{job.folder.name}")  # exclusive: the caller holds the lock
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    began, fingerprint = time.time(), "" if anyway else job.fingerprint
    try:
        with environment(job, aside, fresh, anyway, options):
            executed = run_papermill(job)
        run = files.read_run(aside) or {}
        if not run and job.notebook in files.notebooks():
            raise RuntimeError(f"{job.notebook.name} did not call study.finish()")
        moved = {str(aside): str(job.folder), files.shown(aside): files.shown(job.folder)}
        files.write_text(aside / "notebook.ipynb", tidy(executed, moved))
        about = {"notebook": job.notebook.stem} | run
        about |= {
            "parameters": job.values,
            "own": job.own,
            "seconds": round(time.time() - began, 1),
        }
        files.write_run(aside, about | {"fingerprint": fingerprint})
        files.put(aside, job.folder)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


@contextlib.contextmanager
def environment(job, aside, fresh, anyway, options):
    """Set the environment variables of the job's kernel.

    LAB_RUN: output folder; LAB_NOTEBOOK: the notebook; LAB_STORE: the local cache of trials;
    LAB_RECORD: "none" with --fresh; LAB_PROGRESS: the terminal; LAB_CHECK: output folder of
    --check. LAB_JOBS, LAB_DEVICE, LAB_CLUSTER and LAB_ANYWAY: the command-line options.
    """
    variables = {"run": aside, "notebook": job.notebook, "anyway": "1" if anyway else ""} | options
    variables |= {"record": "none" if fresh else "", "progress": terminal()}
    before = dict(os.environ)
    os.environ |= {f"LAB_{name.upper()}": str(value or "") for name, value in variables.items()}
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def run_papermill(job):
    """Execute the notebook of a job. Returns the executed notebook."""
    import nbformat
    import papermill
    from papermill.exceptions import PapermillExecutionError
    from traitlets.config import Config

    for name in ("papermill", "asyncio"):  # after Ctrl-C, both say that the kernel died
        logging.getLogger(name).setLevel(logging.CRITICAL)
    outputs = []
    try:
        with tempfile.TemporaryDirectory(prefix="lab-") as folder:
            # not a TCP port, which another new kernel could take
            ipc = {"transport": "ipc", "connection_file": f"{folder}/kernel.json"}
            own = {} if os.name == "nt" else ipc
            executed = papermill.execute_notebook(
                nbformat.read(job.notebook, 4),
                None,
                job.values if job.notebook in files.notebooks() else job.own,
                kernel_name="python3",
                language="python",
                progress_bar=False,
                start_timeout=180,
                config=Config({"AsyncKernelManager": own}),
                extra_arguments=["--IPKernelApp.log_level=CRITICAL"],
                on_cell_error=lambda cell, **_: outputs.extend(cell.outputs),
                cwd=job.notebook.parent,
            )
    except PapermillExecutionError as error:  # magics report errors only on stderr
        texts = [output.text for output in outputs if output.get("name") == "stderr"]
        error.evalue = error.evalue or "".join(texts).strip()
        raise
    code = [(i, cell) for i, cell in enumerate(executed.cells, 1) if cell.cell_type == "code"]
    for number, cell in code[:-1]:  # papermill treats sys.exit as success
        if any(output.get("ename") == "SystemExit" for output in cell.outputs):
            raise RuntimeError(f"cell {number} called sys.exit: the cells after it did not run")
    return executed


def tidy(executed, moved):
    """The JSON text of an executed notebook, without papermill metadata and absolute paths.

    `moved` maps paths in the text to their replacements.
    """
    import nbformat

    text = nbformat.writes(executed)
    for before, after in moved.items():
        text = text.replace(before, after)
    notebook = nbformat.reads(text.replace(f"{files.project_root()}/", ""), 4)
    for name in ("papermill", "widgets"):  # without widget state, viewers show the static figure
        notebook.metadata.pop(name, None)
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    notebook.metadata.kernelspec = kernel
    for cell in notebook.cells:
        cell.metadata.pop("papermill", None)
        cell.metadata.pop("execution", None)
    return nbformat.writes(notebook)


def terminal():
    """The file for progress bars: the terminal or, without one, stderr.

    It is os.devnull if there is no terminal and no /proc.
    """
    try:
        return os.ttyname(sys.stderr.fileno())
    except (OSError, AttributeError):
        log = Path(f"/proc/{os.getpid()}/fd/2")
        return str(log) if log.exists() else os.devnull
