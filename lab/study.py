"""The study of one exercise, which a notebook calls: from its questions to its answers."""

import inspect
import os
import re
import sys
import tempfile
import time
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from types import ModuleType

import pandas as pd
from IPython import get_ipython
from IPython.display import Markdown, display

from lab import charts, claims, files, interact, parameters, trials, workers
from lab.device import machine
from lab.measure.statistics import NotFinite

READERS = (
    "JPY_SESSION_NAME",
    "VSCODE_PID",
)  # JupyterLab and VS Code give their kernels one of these


def study(exercise, namespace):
    """Begin the study of an exercise, such as "1.4", or of your own notebook, by its name.

    `namespace` is the notebook's globals(). Declared parameters are checked and written back: the
    text 1e-3 becomes a number, and what still has its default takes the value of the profile.

    Results go to results/interactive, or to the folder that the parameter `results` names; until
    `finish` they are kept aside. The study of your own notebook mine.ipynb, lab.study("mine",
    globals()), finds its claims in mine.yaml, if there is one, and puts its results into
    lab-results; both stand beside the notebook.
    """
    try:
        return Study(exercise, namespace)
    except files.Refused as error:
        namespace["study"] = Stopped(error)  # an earlier study would go on with other values
        raise


class Stopped:
    """What stands in for a study that was refused: later cells show why."""

    def __init__(self, error):
        self._error = error

    def __getattr__(self, name):
        raise self._error


class Study:
    """The questions, sweeps, tables, figures and answers of one exercise; `lab.study` makes it."""

    def __init__(self, exercise, namespace):
        self.exercise = exercise
        lesson = files.notebook_of(exercise) if re.fullmatch(r"1\.\d+", exercise) else None
        self.notebook = lesson_here(lesson) if lesson else own_notebook(exercise)
        self.kept_as = lesson.stem if lesson else exercise  # stem of the file of its trials
        self.parameters, self.own = parameters.in_namespace(namespace, self.notebook)
        namespace.update(self.parameters)
        self.profile = self.parameters.get("profile", "")
        if lesson:
            home = files.project_root() / (namespace.get("results") or "results/interactive")
            own = claims.folder() / f"{lesson.stem}.yaml"
        else:
            home = self.notebook.parent / (namespace.get("results") or "lab-results")
            own = self.notebook.with_name(f"{exercise}.yaml")
        self.ledger = claims.read(own) if own.exists() else {}
        self.home = files.project_root() / "results" if lesson else home
        self.final = Path(variable("RUN", home / self.notebook.stem))
        self.folder = Path(variable("RUN") or self._aside())
        self._started = time.time()
        self._lines = {}  # {claim: its lines}
        self._faults = {}  # {figure: what a reader would stumble over}
        self._commit = files.commit()  # the commit whose code this process has loaded
        for part in ("tables", "figures"):
            (self.folder / part).mkdir(parents=True, exist_ok=True)

    def _aside(self):
        """A folder for the run until it is complete; it vanishes with the kernel."""
        try:
            self.final.parent.mkdir(parents=True, exist_ok=True)
            where = {"dir": self.final.parent, "prefix": f".{self.final.name}-"}
            self._running = tempfile.TemporaryDirectory(**where, ignore_cleanup_errors=True)
        except OSError as error:
            raise files.Refused(
                f"{error.filename}: {error.strerror}; name a folder that can be written to "
                "as the parameter results"
            ) from None
        os.chmod(self._running.name, 0o755)
        return self._running.name

    def claims(self):
        """The table of the questions that are asked here, with the effects that mean yes."""
        rows = []
        for claim in self.ledger.values():
            for part in claim.parts:
                bar = "" if claim.kind == "question" else claims.format_bar(part)
                rows.append((claim.sentence, part.question, bar))
            if claim.open:
                rows.append((claim.sentence, claim.open, ""))
        table = pd.DataFrame(rows, columns=["what the book says", "question", "yes if"])
        return table.style.hide(axis="index").set_properties(**{"text-align": "left"})

    def sweep(self, trial, grid, *, jobs=None, threads=1, timing=False, processes=0):
        """A DataFrame of the trial's rows at every point of the grid; see trials.sweep.

        A smoke run uses no worker processes unless `--jobs` says so, since these take longer to
        start than its trials take, and it keeps no times.
        """
        if processes and self.profile == "smoke":
            return trials.dry_run(trial, grid, min(processes, 2))
        how = {"jobs": jobs, "threads": threads, "timing": timing, "processes": processes}
        try:
            return trials.sweep(trial, grid, self.place, **how)
        except KeyboardInterrupt:
            print("Stopped: what is finished is kept; run the cell again to go on.")
            raise

    @cached_property
    def place(self):
        """Where this study's trials are kept and run, as `lab run` says."""
        record = variable("RECORD", self.home / "record")
        check, progress = variable("CHECK"), variable("PROGRESS")
        return trials.Place(
            self.kept_as,
            store=Path(variable("STORE", self.home / ".trials")),
            record=None if record == "none" else Path(record),
            jobs=int(variable("JOBS", 1 if self.profile == "smoke" else workers.cores())),
            cluster=variable("CLUSTER"),
            device=variable("DEVICE", "auto"),
            anyway=bool(variable("ANYWAY")),
            check=Path(check) if check else None,
            progress=Path(progress) if progress else None,
        )

    def table(self, stem, frame):
        """Write a table to tables/stem.csv; returns it as read back from there."""
        path = self.folder / "tables" / f"{stem}.csv"
        files.write_table(path, frame)
        return pd.read_csv(path)

    def figure(self, stem, frame, plot):
        """Write the table, draw the figure plot(table) from the written one, save it and show it.

        The docstring of `plot` is the caption, which says what to look for. It is shown below the
        figure, is its alternative text, and is saved in the PNG.
        """
        caption = " ".join((inspect.getdoc(plot) or "").split())
        with charts.drawn(plot, self.table(stem, frame)) as figure:
            picture = charts.png(figure, caption)
            self._faults |= {stem: faults} if (faults := charts.faults(figure)) else {}
        (self.folder / "figures" / f"{stem}.png").write_bytes(picture)
        charts.show(picture, caption)

    def play(self, plot, **controls):
        """Show sliders that redraw plot(**values), by `interact` of ipywidgets.

        A control is an ipywidget, or an abbreviation of `interact`: (low, high, step) or a list of
        choices. Where no reader can move it, as under papermill, the first state is shown.
        """
        interact.play(plot, controls, self._live)

    def live(self, trial, draw, *, point=None, button="Train now", **controls):
        """Show a button that runs the trial and draws draw(rows), by `interact_manual`.

        `rows` is a DataFrame of all runs of this button, newest last; before the first run it has
        the columns only. Controls are as in `play`. The parameters of a run are point(**values)
        where `point` is a function, else the values of the controls on top of the dict `point`. A
        parameter that is missing there has the value that all of this study's sweeps of the trial
        share, or its default. The `seed` is one that no stored row has. The rows enter no table,
        verdict or record.
        """
        lines, how = self.place.lines(trial.__name__), {"point": point, "button": button}
        how |= {"device": self.place.device, "live": self._live}
        interact.live(trial, draw, lines, controls, **how)

    @property
    def _live(self):
        """Whether a reader can move a slider of this kernel."""
        return any(name in os.environ for name in READERS) and not variable("RUN")

    def say(self, english, chinese="", **values):
        """Show a sentence with numbers from tables, as Markdown; the Chinese one is folded.

        Example: say("It ends at {found:.2f}.", "最终为 {found:.2f}。", found=...). str.format fills
        the placeholders.
        """
        told = [text.format(**values) if values else text for text in (english, chinese)]
        if told[1]:
            told[1] = f"<details><summary>中文</summary>\n\n{told[1]}\n\n</details>"
        if text := "\n\n".join(filter(None, told)):
            show(text)

    def judge(self, claim, measured, *, figure="", table="", note=""):
        """Judge a claim of this exercise and show its card; smoke runs are not judged.

        `measured` is a table with a row for each seed and arm, or {name of a part: table}. A part
        without a `measure` takes an Interval, an exact statement a number or a sympy expression:
        see lab.claims. `measured` and `note` may be functions without arguments; where `measured`
        raises NotFinite, the answer is unclear.
        """
        about = self._claim(claim)
        self._check_produced(claim, figure, table or figure)
        if self.profile == "smoke":
            lines = claims.unanswered(about, claims.NOT_JUDGED)
        else:
            try:
                measured = measured() if callable(measured) else measured
                note = note() if callable(note) else note
                where = {"figure": figure, "table": table or figure, "note": note}
                lines = claims.judge(about, measured, **where)
            except NotFinite:
                lines = claims.unanswered(about, claims.UNCLEAR, "some numbers are not finite")
        self._lines[claim] = lines
        show(claims.card(about, lines))

    def _check_produced(self, claim, figure, table):
        for folder, stem, suffix in (("figures", figure, ".png"), ("tables", table, ".csv")):
            if stem and not (self.folder / folder / f"{stem}{suffix}").exists():
                raise FileNotFoundError(f"{claim}: {folder}/{stem}{suffix} was not produced")

    def _claim(self, claim):
        if claim not in self.ledger:
            known = ", ".join(sorted(self.ledger)) or "none: write claims in experiments/claims"
            raise KeyError(f"{claim!r} is no claim of {self.exercise}; it has {known}")
        return self.ledger[claim]

    def lines(self, claim):
        """The lines of a judged claim, a DataFrame with a row for each condition."""
        return self._lines[claim]

    def effect(self, claim, part="", where=""):
        """The effect of a judged line, NaN where there is none at these parameters."""
        lines = self._lines[claim]
        return lines[(lines.part == part) & (lines["where"] == where)].effect.mean()

    def told(self, numbers, *facts):
        """Compare the numbers in the lesson's answer with this run, and show what differs.

        `numbers` maps a number as it stands in the answer, such as "3.5 %" or "-0.02", to its value
        in this run; it agrees where the value rounds to it. `facts` are conditions that the answer
        rests on. Nothing is stopped, and a smoke run is not compared.
        """
        if self.profile == "smoke":
            return
        answer = files.answer_of(self.notebook) if self.notebook.exists() else ""
        wrong = [f"fact {i} does not hold" for i, fact in enumerate(facts, 1) if not fact]
        for words, value in numbers.items():
            if answer and words not in answer:
                wrong.append(f"{words} is not in the answer")
            if not claims.rounds_to(value, words):
                wrong.append(f"{words} is {value:.4g} in this run")
        agree = "The numbers of the answer agree with this run."
        self.say(f"The answer differs from this run: {'; '.join(wrong)}." if wrong else agree)

    def scorecard(self):
        """Show one table of all answers of the lesson."""
        show(claims.scorecard(self._all_lines()))

    def _all_lines(self):
        found = [
            self._lines.get(name, claims.unanswered(claim, "open", claim.open))
            for name, claim in self.ledger.items()
        ]
        return (
            pd.concat(found, ignore_index=True) if found else pd.DataFrame(columns=claims.COLUMNS)
        )

    def finish(self):
        """Write answers.csv and run.json, move the run into place, and show all answers.

        Raises RuntimeError where a claim that is not open was not judged.
        """
        missing = [c.id for c in self.ledger.values() if not c.open and c.id not in self._lines]
        if missing:
            raise RuntimeError(f"not judged yet: {', '.join(missing)}")
        lines = self._all_lines()
        if len(lines):
            self.scorecard()
        claims.write_answers(self.folder, self.exercise, lines)
        self._write_run(told := self.place.origins())
        if self.folder != self.final:
            files.put(self.folder, self.final)
            self.folder = self.final
        show(f"{told} Results: `{files.shown(self.final)}`.")

    def _write_run(self, told):
        """Write run.json; `told` says where the trials come from."""
        there = self.notebook.exists()
        run = {
            "status": "done",
            "notebook": self.notebook.stem,
            "title": files.title_of(self.notebook)[0] if there else self.exercise,
            "answer": files.answer_of(self.notebook) if there else "",
            "profile": self.profile,
            "parameters": self.parameters,
            "own": self.own,
            **self._commit,
            "machine": machine(),
            "started": datetime.fromtimestamp(self._started, UTC).isoformat(timespec="seconds"),
            "seconds": round(time.time() - self._started, 1),
            "core_seconds": self.place.core_seconds(),
            "trials": {file: list(lines) for file, lines in self.place.used.items()},
            "told": told,
            "faults": self._faults,
        }
        files.write_run(self.folder, run)


def show(markdown):
    """Display Markdown in a notebook; print it elsewhere."""
    if get_ipython() is None:
        print(markdown)
    else:
        display(Markdown(markdown))


def variable(name, default=""):
    """What `lab run` tells this kernel in the environment variable LAB_NAME, or the default."""
    return os.environ.get(f"LAB_{name}") or default


def notebook_here():
    """The path of the notebook that runs, as `lab run`, JupyterLab or papermill names it; or None."""
    names = (variable("NOTEBOOK"), os.environ.get("JPY_SESSION_NAME", ""))
    named = [Path(name) for name in names if name.endswith(".ipynb")]
    return next((path.resolve() for path in named if path.is_file()), None)


def lesson_here(lesson):
    """The path of the notebook with a lesson: the one that runs, else the project's."""
    return Path(variable("NOTEBOOK", lesson))


def own_notebook(name):
    """The path of one's own notebook, which need not exist outside JupyterLab and `lab run`.

    Raises Refused where the notebook that runs has another name.
    """
    here = notebook_here()
    if here is None:
        return Path.cwd() / f"{name}.ipynb"
    if here.stem != name:
        raise files.Refused(
            f'this notebook is called {here.stem}: write lab.study("{here.stem}", globals())'
        )
    return here


class _Callable(ModuleType):
    """Makes this module callable, so that `lab.study("1.4", globals())` calls its function."""

    def __call__(self, exercise, namespace):
        return study(exercise, namespace)


sys.modules[__name__].__class__ = _Callable
sys.modules[__name__].__signature__ = inspect.signature(study)
