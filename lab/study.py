"""What a notebook calls: a study of one exercise, from its claims to its verdicts, and the form of guesses."""

import base64
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from types import ModuleType

import matplotlib.pyplot as plt
import pandas as pd
from IPython.display import Markdown, display

from lab import figures
from lab.engine import parameters, runs, trials
from lab.engine.device import device
from lab.ledger import claims


def study(exercise, namespace):
    """Begin the study of an exercise, such as "1.4", with the parameters in a notebook's globals().

    They are checked and converted (what is refused is named with what is allowed) and put back, so that `1e-3`, text
    in YAML, is a number from here on. Results go to `results`, or to results/interactive.
    """
    return Study(exercise, namespace)


class Study:
    def __init__(self, exercise, namespace):
        self.exercise = exercise
        self.notebook = parameters.notebook_of(exercise)
        declared = parameters.read_declared(self.notebook)
        values = {name: namespace[name] for name in [*declared, *parameters.injected(namespace)] if name in namespace}
        self.parameters = parameters.validate(self.notebook, values, source="notebook")
        namespace.update(self.parameters)
        self.profile = self.parameters["profile"]
        self.folder = runs.inside_project(self.parameters["results"] or "results/interactive") / self.notebook.stem
        self.ledger = {c.id: c for c in claims.ledger().values() if c.exercise == exercise}
        self.guesses = Guesses(c for c in self.ledger.values() if not c.open)
        self._verdicts, self._started = {}, time.time()
        self._saved = 0.0  # core seconds of trials beyond the time spent waiting for them
        for part in ("tables", "figures"):
            shutil.rmtree(self.folder / part, ignore_errors=True)
            (self.folder / part).mkdir(parents=True)
        for name in ("run.json", "verdicts.csv"):
            (self.folder / name).unlink(missing_ok=True)

    def claims(self):
        """The claims under test and what each predicts; in a live notebook with a form for the reader's guesses."""
        if not os.environ.get("LAB_PROGRESS"):
            display(self.guesses.form())
        rows = [(c.id, c.priority, c.claim, c.claim_zh, str(c.prediction or c.expected)) for c in self.ledger.values()]
        table = pd.DataFrame(rows, columns=["id", "priority", "claim", "论断", "prediction"])
        return table.style.hide(axis="index").set_properties(**{"text-align": "left"})

    def sweep(self, trial, grid, *, jobs=None, threads=1):
        """The trial at every point of the grid, a row each; see engine.trials.sweep. jobs=1 for undisturbed timings.

        Trials of the smoke profile run here unless LAB_JOBS says otherwise: workers take longer to start than they do.
        """
        began = time.time()
        at_once = int(os.environ.get("LAB_JOBS") or (self.profile != "smoke" and os.cpu_count()) or 1)
        table = trials.sweep(
            trial,
            grid,
            store=runs.trial_store(),
            jobs=jobs or at_once,
            cluster=None if jobs == 1 else os.environ.get("LAB_CLUSTER") or None,
            threads=threads,
            device=os.environ.get("LAB_DEVICE") or "auto",
            data=self.corpus_hash,
            progress=Progress(trial.__name__),
        )
        self._saved += table.attrs["core_seconds"] - (time.time() - began)
        return table

    @property
    def corpus_hash(self):
        """Of the text that the notebook reads, if it reads one."""
        if "corpus" not in self.parameters:
            return ""
        from lab.tasks.code import read_corpus  # loads torch, which the runner does without

        return read_corpus(self.parameters["corpus"])[1]

    def table(self, stem, frame):
        """Keep a table as tables/stem.csv and hand it back as it will be read."""
        path = self.folder / "tables" / f"{stem}.csv"
        runs.write_table(path, frame)
        return pd.read_csv(path)

    def figure(self, stem, frame, plot):
        """Keep the table, draw the figure from the kept table alone, and keep it as PNG and SVG."""
        figure = figures.draw(plot, self.table(stem, frame))
        show(figures.save(figure, self.folder / "figures" / stem))
        plt.close(figure)

    def play(self, plot, **controls):
        """Sliders that redraw plot(**values) in JupyterLab; a static twin in their first state stands where none run.

        A control is an ipywidget, or an abbreviation such as (low, high, step) or a list of choices.
        """
        from ipywidgets import interactive

        def drawn(**values):
            picture = figures.png(figure := figures.draw(lambda _: plot(**values), None))
            plt.close(figure)
            return picture

        panel, live = interactive(lambda **values: show(drawn(**values)), **controls), {}
        if not os.environ.get("LAB_PROGRESS"):
            panel.update()
            live = panel._repr_mimebundle_()
        show(drawn(**{child.description: child.value for child in panel.children[:-1]}), live)

    def judge(self, claim, measured, *, figure="", table="", note=""):
        """Judge a claim of this exercise from what was measured; smoke runs are not judged."""
        if claim not in self.ledger:
            raise KeyError(
                f"{claim!r} is no claim of exercise {self.exercise}; it has {', '.join(sorted(self.ledger))}"
            )
        where = {"figure": figure, "table": table or figure, "note": note}
        for folder, stem, suffix in (("figures", figure, ".png"), ("tables", table or figure, ".csv")):
            if stem and not (self.folder / folder / f"{stem}{suffix}").exists():
                raise FileNotFoundError(f"{claim}: {folder}/{stem}{suffix} was not produced")
        verdict = claims.judge(self.ledger[claim], measured, **where)
        if self.profile == "smoke":
            verdict = verdict.model_copy(update={"verdict": "not judged"})
        self._verdicts[claim] = verdict
        interval = "" if verdict.low != verdict.low else f" [{verdict.low:.4g}, {verdict.high:.4g}], n = {verdict.n}"
        display(Markdown(f"**{claim}: {verdict.verdict}**: {verdict.effect:.4g}{interval} {verdict.unit}  \n"
                         f"predicted: {verdict.threshold}. {verdict.note}"))  # fmt: skip

    def finish(self):
        """Write verdicts.csv and run.json; returns the table of verdicts. Every claim but the open ones is judged."""
        missing = sorted(c.id for c in self.ledger.values() if not c.open and c.id not in self._verdicts)
        if missing:
            raise RuntimeError(f"not judged yet: {', '.join(missing)}")
        verdicts = [self._verdicts.get(c.id, c.unjudged) for c in self.ledger.values()]
        table = pd.DataFrame([v.model_dump() for v in verdicts]).astype({"n": "Int64"})
        runs.write_table(self.folder / "verdicts.csv", table)
        if score := self.guesses.score(verdicts):
            display(Markdown(score))
        run = {
            "status": "done",
            "exercise": self.exercise,
            "profile": self.profile,
            "parameters": self.parameters,
            "corpus": self.corpus_hash,
            "started": datetime.fromtimestamp(self._started, UTC).isoformat(timespec="seconds"),
            "seconds": round(time.time() - self._started, 1),
            "core_seconds": round(time.time() - self._started + self._saved, 1),
            **provenance(),
        }
        runs.write_run(self.folder, run)
        shown = table[["id", "verdict", "effect", "low", "high", "unit", "n", "threshold", "note"]]
        return shown.style.hide(axis="index").format(precision=4, na_rep="").set_properties(**{"text-align": "left"})


def show(picture, live=None):
    """Display the bytes of a PNG, whatever the backend; `live` is shown in its place where widgets run."""
    shown = {"image/png": base64.b64encode(picture).decode(), "text/plain": "a figure"}
    display(shown | (live or {}), raw=True)


class Progress:
    """Tells how far a sweep is: the runner through a small file, else the reader with a line every few seconds."""

    def __init__(self, name):
        self.name, self.began, self.told = name, time.time(), 0.0
        self.file = os.environ.get("LAB_PROGRESS")

    def __call__(self, done, total, workers):
        if self.file:
            state = {"sweep": self.name, "done": done, "total": total, "workers": workers}
            runs.write_text(Path(self.file), json.dumps(state))
        elif done == total or time.time() - self.told > 5:
            self.told = time.time()
            print(f"{self.name}: {done}/{total} trials, {self.told - self.began:.0f} s", file=sys.stderr)


def provenance():
    """Where a run happened: commit, versions, machine, device, threads, whose products of matrices its trials use."""
    import torch

    from lab.engine import arithmetic

    def git(*arguments):
        command = ["git", "-C", str(runs.project_root()), *arguments]
        return subprocess.run(command, capture_output=True, text=True).stdout.strip()

    packages = ("torch", "numpy", "pandas", "matplotlib", "papermill", "jupyterlab")
    return {
        "commit": git("rev-parse", "HEAD") + ("+changes" if git("status", "--porcelain", "lab", "notebooks") else ""),
        "versions": {"python": platform.python_version()} | {name: metadata.version(name) for name in packages},
        "machine": f"{processor()}, {os.cpu_count()} cores, {platform.system()} {platform.machine()}",
        "device": str(device()),
        "threads": torch.get_num_threads(),
        "products": "oneDNN" if arithmetic.replaceable() else "torch's own",
    }


def processor():
    """The processor's name, as far as the system tells."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or "unknown processor"


MEANS = {"supported": "holds", "proved": "holds", "refuted": "fails", "disproved": "fails", "inconclusive": "undecided"}


class Guesses:
    """One choice a claim: holds, fails or undecided; what is left empty is not scored."""

    def __init__(self, claims):
        from ipywidgets import Dropdown, Layout

        options = ["", *dict.fromkeys(MEANS.values())]
        style = {"style": {"description_width": "24em"}, "layout": Layout(width="36em")}
        self.boxes = {claim.id: Dropdown(options=options, description=claim.id, **style) for claim in claims}

    def form(self):
        from ipywidgets import HTML, Accordion, VBox

        said = HTML("What will be measured? Guess before you run on; the last cell counts what you got right.")
        return Accordion([VBox([said, *self.boxes.values()])], titles=("Predict before you run",))

    def score(self, verdicts):
        """A sentence for a list of verdicts: how many guesses were right, and which were not; "" without guesses."""
        found = {verdict.id: MEANS.get(verdict.verdict) for verdict in verdicts}
        made = {name: box.value for name, box in self.boxes.items() if box.value and found.get(name)}
        if not made:
            return ""
        wrong = [f"{name}: {guess}, measured: {found[name]}" for name, guess in made.items() if guess != found[name]]
        return f"{len(made) - len(wrong)} of {len(made)} guesses were right" + "".join(f"\n* {line}" for line in wrong)


class _Callable(ModuleType):
    """So that `lab.study("1.4", globals())` works although this module bears the name of its function."""

    def __call__(self, exercise, namespace):
        return study(exercise, namespace)


sys.modules[__name__].__class__ = _Callable
