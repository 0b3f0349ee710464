"""The runner: it executes notebooks one after another, so that timings are undisturbed; the trials
of a notebook run in parallel.
"""

import contextlib
import json
import os
import re
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import nbformat
import yaml
from filelock import FileLock, Timeout

from lab.claims import claims
from lab.tools import kernel
from lab.trials import cells, parameters, place, provenance, runs


@dataclass(frozen=True)
class Job:
    """One notebook with its checked parameters, to be run into a folder of results."""

    notebook: Path
    profile: str
    parameters: dict
    results: Path
    own: dict = field(default_factory=dict)  # the parameters that are not the profile's

    @property
    def folder(self):
        name = "-".join(filter(None, (self.notebook.stem, name_of(self.own))))
        return runs.place_of_run(self.profile, name, self.results)

    @property
    def usual(self):
        """Whether it is a lesson of the project with its profile's parameters."""
        return not (self.own or self.foreign)

    @property
    def foreign(self):
        """Whether the notebook is not one of the project's."""
        return self.notebook not in parameters.notebooks()

    @property
    def code(self):
        """The source of all code cells."""
        cells = json.loads(self.notebook.read_text("utf-8"))["cells"]
        return "\n".join("".join(c["source"]) for c in cells if c["cell_type"] == "code")

    @property
    def fingerprint(self):
        """The hash of all that a run depends on.

        These are the code cells, the code of lab, the claims under test and the parameters.
        """
        values = {name: value for name, value in self.parameters.items() if name != "results"}
        code = [cells.hash_of(self.notebook), place.files_hash()]
        asked = under_test(parameters.exercise_of(self.notebook))
        return runs.text_hash(json.dumps([code, values, asked], sort_keys=True))

    def to_do(self, fresh=False):
        """Why the notebook has to run, or None where the same code ran here with these parameters.

        With `fresh`, a run that took trials from the record has to run again. A notebook from
        elsewhere always runs, since it may read anything.
        """
        if self.foreign:
            return "a notebook of your own"
        run = runs.read_run(self.folder)
        if run is None:
            damaged = (self.folder / "run.json").exists()
            return "run.json cannot be read" if damaged else "not run yet"
        if run.get("fingerprint") != self.fingerprint:
            return "code, claims or parameters have changed"
        if fresh and run["record"]["recorded"]:
            return "trials of its run came from the record"
        return None

    def run(self, options, watch=lambda **state: None):
        """Execute the notebook, write its results to a folder aside, then move that into place.

        The working folder is the notebook's own, as in JupyterLab. Raises papermill's exceptions,
        and RuntimeError where a notebook of the project does not finish its study.
        """
        aside = self.results / ".running" / self.folder.parent.name
        done = aside / self.notebook.stem
        shutil.rmtree(done, ignore_errors=True)
        done.mkdir(parents=True)
        where = {
            "own": self.own,
            "notebook": self.notebook,
            "place": runs.shown(self.folder),
            "headless": True,
            "store": self.results / ".trials",
        }
        options.model_copy(update=where).write(aside)
        values = self.own if self.foreign else self.parameters
        if not self.foreign or "study" in self.code:  # other notebooks do not read `results`
            values = values | {"results": str(aside)}
        book = nbformat.read(self.notebook, 4)
        began = time.time()
        with ThreadPoolExecutor(1) as beside:
            made_of = beside.submit(self._made_of)  # hashing takes as long as starting the kernel
            executed = kernel.execute(
                book, values, self.notebook.parent, aside / "kernel.log", watch
            )
        run = runs.read_run(done)
        if run is None:
            if not self.foreign:
                raise RuntimeError(f"{self.notebook.name} did not call study.finish()")
            run = self._told(began)
        text = kernel.tidy(executed, {str(aside): runs.shown(self.folder.parent)})
        runs.write_text(done / "notebook.ipynb", text)
        runs.write_text(
            done / "parameters.yaml", yaml.safe_dump(self.parameters, allow_unicode=True)
        )
        run |= {
            "seconds": round(time.time() - began, 1),
        } | made_of.result()
        runs.write_run(done, run | ({"notebook": str(self.notebook)} if self.foreign else {}))
        runs.put(done, self.folder)
        shutil.rmtree(aside)

    def check_publishable(self):
        """Raise Refused where the run may not be published.

        It must be finished, of today's code and claims, and made by a clean commit.
        """
        if reason := self.to_do():
            raise parameters.Refused(f"{self.notebook.stem}: {reason}; use `lab run` first")
        if runs.read_run(self.folder)["changes"] is not False:
            raise parameters.Refused(
                f"{runs.shown(self.folder)} was made from uncommitted code: commit, then run"
            )

    def publish(self):
        """Copy the finished run over the published one; returns the folder."""
        final = runs.published(self.profile, self.notebook.stem)
        aside = runs.new_folder(self.results / ".running", self.notebook.stem)
        shutil.copytree(self.folder, aside, dirs_exist_ok=True)
        text = (aside / "notebook.ipynb").read_text("utf-8")
        moved = text.replace(runs.shown(self.folder.parent), runs.shown(final.parent))
        runs.write_text(aside / "notebook.ipynb", moved)
        runs.put(aside, final)
        return final

    def _made_of(self):
        """The hashes in run.json that show later changes of a notebook; {} if it is foreign."""
        if self.foreign:
            return {}
        return {"fingerprint": self.fingerprint, "cells": cells.hash_of(self.notebook)}

    def _told(self, began):
        """The run.json of a notebook that has no study; `began` is in seconds since the epoch."""
        return {
            "status": "done",
            "exercise": self.notebook.stem,
            "profile": self.profile,
            "parameters": self.parameters,
            "own_parameters": self.own,
            "started": datetime.fromtimestamp(began, UTC).isoformat(timespec="seconds"),
            "core_seconds": round(time.time() - began, 1),
            **provenance.commit(),
            **provenance.machine(),
        }


def under_test(exercise):
    """The claims of an exercise as JSON texts."""
    return [
        claim.model_dump_json() for claim in claims.known().values() if claim.exercise == exercise
    ]


def plan(names, profile, folder, overrides=None, *, file=None):
    """The jobs of the named notebooks, or of all notebooks of the project where none is named.

    Parameters come from the profile, then from `file`, then from `overrides`. Raises Refused where
    a value is not allowed, or where a job's folder holds the run of another notebook.
    """
    chosen = list(
        dict.fromkeys([parameters.notebook_of(name) for name in names] or parameters.notebooks())
    )
    if not chosen:
        raise parameters.Refused(parameters.ALONE)
    given = (parameters.read_file(file) if file else {}) | (overrides or {})
    if "results" in given:
        raise parameters.Refused("results: choose the folder with --results")
    given = {key: from_anywhere(value) for key, value in given.items()}
    jobs = []
    for notebook in chosen:
        values = usual = parameters.of_profile(notebook, profile)
        if given:
            values = parameters.validate(
                notebook, values | given, source=str(file or "command line")
            )
            usual = parameters.of_profile(notebook, values.get("profile", profile))
        own = {key: value for key, value in values.items() if value != usual[key]}
        job = Job(
            notebook,
            values.get("profile", ""),
            values,
            folder,
            own=own,
        )
        there = runs.read_run(job.folder)
        if there and there.get("notebook", "") != (str(notebook) if job.foreign else ""):
            raise parameters.Refused(
                f"{runs.shown(job.folder)} holds the run of another notebook: "
                "choose another folder with --results"
            )
        if any(job.folder == other.folder for other in jobs):
            raise parameters.Refused(
                f"two notebooks are called {notebook.stem}: run one alone, with --results"
            )
        jobs.append(job)
    return jobs


def name_of(own):
    """The suffix of a run's folder from its own parameters, such as seeds-10; "" without any.

    A name that cannot hold all values ends in a hash of them.
    """
    words = []
    for key, value in own.items():
        words += [key, *map(str, value if isinstance(value, list) else [value])]
    name = re.sub(r"[^\w.-]+", "-", "-".join(words))
    if len(name) <= 40 and all(re.fullmatch(r"[\w.]+", word) for word in words):
        return name
    return f"{name[:32].rstrip('-')}-{runs.text_hash(json.dumps(own, sort_keys=True))[:6]}"


def from_anywhere(value):
    """The value; an existing path is made absolute, since notebooks run in another folder."""
    if isinstance(value, str) and (os.sep in value or Path(value).suffix) and os.path.exists(value):
        return str(Path(value).resolve())
    return value


@contextlib.contextmanager
def only_one(folder):
    """Lock the results folder inside the block. Raises Refused where another run holds the lock."""
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / ".lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise parameters.Refused(
            f"another `lab run` works on {folder}; wait for it, or choose another --results"
        ) from None
    try:
        yield
    finally:
        lock.release()
