"""The runner: notebooks one after another, so that timings are undisturbed; the trials inside them in parallel."""

import contextlib
import json
import os
import shutil
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import nbformat
import yaml
from filelock import FileLock, Timeout
from jupyter_client.manager import AsyncKernelManager

from lab.engine import parameters, runs
from lab.engine.fingerprint import code_fingerprint
from lab.ledger import claims


class LocalKernelManager(AsyncKernelManager):
    """A kernel behind sockets in a private folder: no port that another kernel may take, nothing on the network."""

    def __init__(self, **options):
        super().__init__(**options)
        if os.name == "posix":
            self._folder = tempfile.TemporaryDirectory(prefix="lab-")  # short: a socket's path is limited
            self.transport, self.connection_file = "ipc", f"{self._folder.name}/kernel.json"
            self.ip = f"{self._folder.name}/socket"


@dataclass(frozen=True)
class Job:
    """One notebook with its checked parameters, in a profile of a results folder."""

    notebook: Path
    profile: str
    parameters: dict
    results: Path

    @property
    def folder(self):
        return self.results / self.profile / self.notebook.stem

    @property
    def fingerprint(self):
        """Of the code cells, all that they import from lab, the claims under test and the parameters."""
        cells = json.loads(self.notebook.read_text("utf-8"))["cells"]
        code = "\n".join("".join(c["source"]) for c in cells if c["cell_type"] == "code")
        exercise = parameters.exercise_of(self.notebook)
        under_test = [c.model_dump_json() for c in claims.ledger().values() if c.exercise == exercise]
        values = {name: value for name, value in self.parameters.items() if name != "results"}
        return runs.text_hash(code_fingerprint(code) + json.dumps([values, under_test], sort_keys=True))

    def to_do(self):
        """Why the notebook has to run, or None where this machine ran this very code with these parameters.

        Committed results of another machine do not count: a fresh clone reproduces them.
        """
        run = runs.read_run(self.folder)
        if run is None:
            return "run.json cannot be read" if (self.folder / "run.json").exists() else "not run yet"
        if not self._stamp.exists() or self._stamp.read_text() != run.get("started"):
            return "not run on this machine yet"
        if run.get("fingerprint") != self.fingerprint:
            return "code, claims or parameters have changed"
        damaged = runs.damaged(self.folder, run)
        return f"{', '.join(damaged)} is not as the run left it" if damaged else None

    @property
    def _stamp(self):
        return self.results / ".trials" / "finished" / self.profile / self.notebook.stem

    def run(self, environment, watch=lambda **state: None):
        """Execute the notebook aside, then put the whole folder in its place. Raises what papermill raises."""
        import papermill

        aside = self.results / ".running" / self.profile
        done = aside / self.notebook.stem
        shutil.rmtree(done, ignore_errors=True)
        done.mkdir(parents=True)
        values = self.parameters | {"results": aside.relative_to(runs.project_root()).as_posix()}
        total = len(nbformat.read(self.notebook, 4).cells)
        began, variables = time.time(), environment | {"LAB_STORE": str(self.results / ".trials")}
        with environment_of(variables), ThreadPoolExecutor(1) as beside:
            fingerprint = beside.submit(getattr, self, "fingerprint")  # takes as long as the kernel takes to start
            executed = papermill.execute_notebook(
                self.notebook,
                None,  # papermill would write the file anew twice a cell
                values,
                kernel_name="python3",
                progress_bar=False,
                start_timeout=180,
                kernel_manager_class="lab.engine.batch.LocalKernelManager",
                on_cell_start=lambda cell, cell_index: watch(cell=cell_index + 1, cells=total),
            )
        run = runs.read_run(done)
        if run is None:
            raise RuntimeError(f"{self.notebook.name} did not call study.finish()")
        text = tidy(executed, values["results"], f"{self.folder.parent.relative_to(runs.project_root()).as_posix()}")
        runs.write_text(done / "notebook.ipynb", text)
        runs.write_text(done / "parameters.yaml", yaml.safe_dump(self.parameters, allow_unicode=True))
        run |= {"seconds": round(time.time() - began, 1), "fingerprint": fingerprint.result()}
        runs.write_run(done, run)
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        os.replace(done, self.folder)
        runs.write_text(self._stamp, run["started"])


@contextlib.contextmanager
def environment_of(values):
    """Variables set for the kernel, and put back."""
    before = dict(os.environ)
    os.environ.update({name: str(value) for name, value in values.items() if value})
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def tidy(executed, aside, final):
    """The text of an executed notebook, so that it names its final place and nothing of the machine it ran on."""
    text = nbformat.writes(executed)
    text = text.replace(aside, final).replace(f"{runs.project_root()}/", "")
    notebook = nbformat.reads(text, 4)
    for name in ("papermill", "widgets"):  # sliders have their static twin
        notebook.metadata.pop(name, None)
    notebook.metadata.kernelspec = {"name": "python3", "display_name": "Python 3", "language": "python"}
    for cell in notebook.cells:
        cell.metadata.pop("papermill", None)
        cell.metadata.pop("execution", None)
    return nbformat.writes(notebook)


def plan(names, profile, folder, overrides=None, source="command line", file=None):
    """The jobs of the named exercises (all when none is named), every parameter checked before anything starts."""
    chosen = [parameters.notebook_of(name) for name in names] or parameters.notebooks()
    given = (parameters.read_file(file) if file else {}) | (overrides or {})
    jobs = []
    for notebook in dict.fromkeys(chosen):
        values = parameters.of_profile(notebook, profile)
        if "results" in given:
            raise parameters.Refused("results: choose the folder with --results")
        if given:
            values = parameters.validate(notebook, values | given, source=str(file or source))
        jobs.append(Job(notebook, values.get("profile", profile), values, folder))
    return jobs


@contextlib.contextmanager
def only_one(folder):
    """Holds the results folder; Refused where another run holds it."""
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / ".lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise parameters.Refused(f"another `lab run` works on {folder}; wait for it, or choose --results") from None
    try:
        yield
    finally:
        lock.release()
