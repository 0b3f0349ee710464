"""The interface for notebooks: sweeps, tables, figures, claims and answers of an exercise."""

import inspect
import os
import re
import sys
import tempfile
import time
from datetime import UTC, datetime
from functools import cached_property
from math import inf
from pathlib import Path
from types import ModuleType

import pandas as pd
from IPython import get_ipython
from IPython.display import Markdown, display

from lab import charts, claims, files, interact, parameters, trials, workers
from lab.device import machine
from lab.measure.statistics import NotFinite

FRONTENDS = ("JPY_SESSION_NAME", "VSCODE_PID")  # environment variables of JupyterLab and VS Code


class Study:
    """The study of an exercise, such as "1.4", or of your own notebook, by its name.

    Notebooks write `study = lab.study("1.4", globals())`. Declared parameters are validated and
    updated in place: the string "1e-3" becomes a float, and the profile overrides defaults.

    `finish` writes the results to results/interactive, or to the folder in the parameter `results`.
    For your own notebook mine.ipynb, call lab.study("mine", globals()). Its claims are read from
    mine.yaml, if it exists, and its results are written to lab-results, both in the notebook's
    folder. Raises Refused for invalid parameters.
    """

    def __init__(self, exercise, namespace):
        self.exercise = exercise
        lesson = files.notebook_of(exercise) if re.fullmatch(r"1\.\d+", exercise) else None
        own = notebook_here() or Path.cwd() / f"{exercise}.ipynb"
        self.notebook = Path(variable("NOTEBOOK", lesson)) if lesson else own
        self.cache_name = lesson.stem if lesson else exercise
        self.parameters, self.own = parameters.in_namespace(namespace, self.notebook)
        namespace.update(self.parameters)
        self.profile = self.parameters.get("profile", "")
        if lesson:
            home = files.project_root() / (namespace.get("results") or "results/interactive")
            ledger = claims.folder() / f"{lesson.stem}.yaml"
        else:
            home = self.notebook.parent / (namespace.get("results") or "lab-results")
            ledger = self.notebook.with_name(f"{exercise}.yaml")
        self.ledger = claims.read(ledger) if ledger.exists() else {}
        self.home = files.project_root() / "results" if lesson else home
        self.final = Path(variable("RUN", home / self.notebook.stem))
        self.folder = Path(variable("RUN") or self._aside())
        self._started = time.time()
        self._lines = {}  # {claim: its lines}
        self._shown = False  # whether a scorecard already shows the answers
        self._faults = {}  # {figure: layout faults}
        self._commit = files.commit()  # of the loaded code
        for part in ("tables", "figures"):
            (self.folder / part).mkdir(parents=True, exist_ok=True)

    def _aside(self):
        """A temporary folder for the run, removed when the kernel exits."""
        try:
            self.final.parent.mkdir(parents=True, exist_ok=True)
            where = {"dir": self.final.parent, "prefix": f".{self.final.name}-"}
            self._running = tempfile.TemporaryDirectory(**where, ignore_cleanup_errors=True)
        except OSError as error:
            raise files.Refused(
                f"{error.filename}: {error.strerror}; set `results` to a writable folder"
            ) from None
        os.chmod(self._running.name, 0o755)
        return self._running.name

    def claims(self):
        """The claims as a table: quote, question, and the effects that mean yes."""
        rows = []
        for claim in self.ledger.values():
            for part in claim.parts:
                bar = "" if claim.kind == "question" else claims.format_bar(part)
                rows.append((claim.sentence, part.question, bar))
            if claim.open:
                rows.append((claim.sentence, claim.open, ""))
        table = pd.DataFrame(rows, columns=["what the book says", "question", "yes if"])
        return table.style.hide(axis="index").set_properties(**{"text-align": "left"})

    def sweep(self, trial, grid, *, threads=1, timing=False, processes=0):
        """Run the trial at every point of the grid. Returns a DataFrame; see trials.sweep.

        Smoke runs start no worker processes unless `--jobs` is set. A smoke run ignores
        `processes`: it runs every point once, in this process.
        """
        if processes and self.profile == "smoke":
            return trials.sweep(trial, grid, self.place, timing=True).assign(repeat=0)
        options = {"threads": threads, "timing": timing, "processes": processes}
        try:
            return trials.sweep(trial, grid, self.place, **options)
        except KeyboardInterrupt:
            print("Stopped: finished trials are cached; run the cell again to resume.")
            raise

    @cached_property
    def place(self):
        """Where the trials of this study are cached and run, by default or as set by `lab run`."""
        record = variable("RECORD", self.home / "record")
        check = variable("CHECK")
        return trials.Place(
            self.cache_name,
            store=Path(variable("STORE", self.home / ".trials")),
            record=None if record == "none" else Path(record),
            jobs=int(variable("JOBS", 1 if self.profile == "smoke" else workers.cores())),
            cluster=variable("CLUSTER"),
            device=variable("DEVICE", "auto"),
            anyway=bool(variable("ANYWAY")),
            check=Path(check) if check else None,
            progress=variable("PROGRESS"),
        )

    def best_rates(self, tried, by, score, within=0.0):
        """The best learning rate of each condition: {condition: rate}.

        tried: a table with columns learning_rate, `by` and `score`, where lower is better. `by` is
        a column, whose values are the conditions, or a list of columns, with tuples as conditions.
        Scores of the same condition and rate, such as those of several seeds, are averaged; a
        missing score counts as infinite. Rates whose score is at most `within` (in units of
        `score`) above the lowest count as tied. The result is their median or, of two middle rates,
        the lower.

        Shows a warning that names the conditions whose lowest score is at the smallest or largest
        rate tried, since a better rate may lie beyond. Smoke runs, which try few rates, skip it.
        """
        columns = [by] if isinstance(by, str) else by
        scores = tried.assign(**{score: tried[score].fillna(inf)})
        means = scores.groupby([*columns, "learning_rate"], as_index=False)[score].mean()
        means["behind"] = means[score] - means.groupby(by)[score].transform("min")
        lowest = middle_rates(means[means.behind <= 0], by)
        grid = means.groupby(by).learning_rate.agg(["min", "max"]).loc[lowest.index]
        at_edge = lowest[(lowest == grid["min"]) | (lowest == grid["max"])]
        if self.profile != "smoke" and len(at_edge):
            self.say(
                "A better learning rate may lie beyond those tried: best at the edge ({edges}).",
                "更好的学习率可能在所试范围之外：最佳值位于边缘（{edges}）。",
                edges=", ".join(f"{words(arm)} {rate:g}" for arm, rate in at_edge.items()),
            )
        return middle_rates(means[means.behind <= within], by).to_dict()

    def table(self, stem, frame):
        """Write a table to tables/stem.csv. Returns it as read from the file."""
        path = self.folder / "tables" / f"{stem}.csv"
        files.write_table(path, frame)
        return pd.read_csv(path)

    def figure(self, stem, frame, plot):
        """Save a table and the figure that plot(table) draws, and show the figure.

        The docstring of `plot` is the caption, the alternative text and the PNG metadata.
        """
        caption = " ".join((inspect.getdoc(plot) or "").split())
        with charts.drawn(plot, self.table(stem, frame)) as figure:
            picture = charts.png(figure, caption)
            self._faults |= {stem: faults} if (faults := charts.faults(figure)) else {}
        (self.folder / "figures" / f"{stem}.png").write_bytes(picture)
        charts.show(picture, caption)

    def play(self, plot, **controls):
        """Show plot(**values) with sliders, using ipywidgets.interact.

        A control is an ipywidget or an abbreviation: (low, high, step) or a list of choices.
        Without a frontend, as under papermill, only the initial figure is shown.
        """
        interact.play(plot, controls, self._live)

    def live(self, trial, draw, *, point=None, button="Train now", **controls):
        """Show a button that runs the trial and calls draw(rows).

        `rows` is a DataFrame of all runs that the button started, newest last. Without a frontend
        there is no button, and `draw` gets an empty DataFrame. Controls are as in `play`. Runs are
        neither cached nor judged. A parameter of a run comes from the first of these that has it:

        * point(**controls) if `point` is a function, else the controls, then the dict `point`
        * a new `seed` for each run
        * its value in this study's sweeps of the trial, if it was the same at every point
        * the default of the trial
        """
        lines, options = self.place.lines(trial.__name__), {"point": point, "button": button}
        options |= {"device": self.place.device, "live": self._live}
        interact.live(trial, draw, lines, controls, **options)

    @property
    def _live(self):
        """Whether a frontend is connected."""
        return any(name in os.environ for name in FRONTENDS) and not variable("RUN")

    def say(self, english, chinese="", **values):
        """Show a Markdown sentence, formatted by str.format, with its Chinese version folded.

        Example: say("It ends at {loss:.2f}.", "最终为 {loss:.2f}。", loss=...).
        """
        texts = [text.format(**values) if values else text for text in (english, chinese)]
        if texts[1]:
            texts[1] = f"<details><summary>中文</summary>\n\n{texts[1]}\n\n</details>"
        if text := "\n\n".join(filter(None, texts)):
            show(text)

    def judge(self, claim, measured, *, figure="", table="", note=""):
        """Judge a claim and show its card; smoke runs are not judged.

        `measured` is a table with one row per seed, arm and condition, or another value described
        in claims.judge, or a function that returns it; if this raises NotFinite, the answer is
        unclear.
        """
        entry, lines = self._judge(claim, measured, figure, table, note)
        show(claims.card(entry, lines))

    def _judge(self, claim, measured, figure, table="", note=""):
        """Judge a claim; returns (claim, its lines)."""
        entry = self._claim(claim)
        if self.profile == "smoke":
            lines = claims.unanswered(entry, claims.NOT_JUDGED)
            lines = lines.assign(figure=figure, table=table or figure)
        else:
            where = {"figure": figure, "table": table or figure, "note": note}
            try:
                measured = measured() if callable(measured) else measured
                lines = claims.judge(entry, measured, **where)
            except NotFinite:
                lines = claims.unanswered(entry, claims.UNCLEAR, "some numbers are not finite")
        self._lines[claim] = lines
        return entry, lines

    def _claim(self, claim):
        if claim not in self.ledger:
            known = ", ".join(sorted(self.ledger)) or "none"
            raise KeyError(f"{self.exercise} has no claim {claim!r}; its claims: {known}")
        return self.ledger[claim]

    def lines(self, claim):
        """The lines of a judged claim, a DataFrame: one per part, condition and compared pair."""
        return self._lines[claim]

    def effect(self, claim, part="", where=""):
        """The effect of `part` of a judged claim, in its line for `where`, such as "task copy".

        NaN if there is no such line.
        """
        lines = self._lines[claim]
        return lines[(lines.part == part) & (lines["where"] == where)].effect.mean()

    def told(self, numbers, *facts):
        """Compare numbers in the lesson's text with this run, and show those that differ.

        `numbers` maps a number as in the text, such as "-0.02" or "3.5 %", to its value (0.035) in
        this run. The value must round to the printed number, ignoring signs; None or NaN means that
        this run did not measure it. `facts` are conditions that the text relies on. Does nothing in
        smoke runs.
        """
        if self.profile == "smoke":
            return
        text = files.prose_of(self.notebook) if self.notebook.exists() else ""
        wrong = [f"condition {i} of this cell fails" for i, fact in enumerate(facts, 1) if not fact]
        for words, value in numbers.items():
            if text and words not in text:
                wrong.append(f"{words} is not in the text")
            if value is None or value != value:
                wrong.append(f"{words} was not measured in this run")
            elif not claims.rounds_to(value, words):
                shown = f"{value:.2%}" if "%" in words else f"{value:.4g}"
                wrong.append(f"{words} is {shown} in this run")
        if wrong:
            self.say(f"The text differs from this run: {'; '.join(wrong)}.")

    def scorecard(self, measured, *, figure="", words=None):
        """Judge {claim: table} and show all answers in one table; `finish` then shows none.

        The tables are as in `judge`. `figure` names a saved figure of the measurements, and `words`
        is a function that says what a line means.
        """
        for claim, table in measured.items():
            self._judge(claim, table, figure)
        lines = pd.concat([self._lines[claim] for claim in measured])
        show(claims.lesson_card(lines, words))
        self._shown = True

    def finish(self):
        """Show all answers, write answers.csv and run.json, and move the run to its final folder.

        Raises RuntimeError if a claim has neither been judged nor marked as `open`.
        """
        missing = [c.id for c in self.ledger.values() if not c.open and c.id not in self._lines]
        if missing:
            raise RuntimeError(f"not judged yet: {', '.join(missing)}")
        lines = [
            self._lines.get(name, claims.unanswered(claim, "open", claim.open))
            for name, claim in self.ledger.items()
        ]
        lines = pd.concat(lines or [claims.line_table([])], ignore_index=True)
        if len(lines) and not self._shown:
            show(claims.lesson_card(lines))
        claims.write_answers(self.folder, self.exercise, lines)
        origins = self.place.origins()
        run = {
            "notebook": self.notebook.stem,
            "profile": self.profile,
            "parameters": self.parameters,
            "own": self.own,
            **self._commit,
            "machine": machine(),
            "started": datetime.fromtimestamp(self._started, UTC).isoformat(timespec="seconds"),
            "seconds": round(time.time() - self._started, 1),
            "trials": {file: list(lines) for file, lines in self.place.used.items()},
            "told": origins,
            "faults": self._faults,
        }
        files.write_run(self.folder, run)
        if self.folder != self.final:
            files.put(self.folder, self.final)
            self.folder = self.final
        show(f"{origins} Results: `{files.shown(self.final)}`.")


def middle_rates(runs, by):
    """The median learning rate of each group; of two middle rates the lower."""
    return runs.groupby(by).learning_rate.quantile(0.5, interpolation="lower")


def words(condition):
    """Format a value, or a tuple of values, as words."""
    return " ".join(map(str, condition)) if isinstance(condition, tuple) else str(condition)


def show(markdown):
    """Display Markdown in a notebook; print it elsewhere."""
    if get_ipython() is None:
        print(markdown)
    else:
        display(Markdown(markdown))


def variable(name, default=""):
    """The environment variable LAB_{name}, set by `lab run`, or the default."""
    return os.environ.get(f"LAB_{name}") or default


def notebook_here():
    """The path of the running notebook, from `lab run` or JupyterLab; None if unknown."""
    names = (variable("NOTEBOOK"), os.environ.get("JPY_SESSION_NAME", ""))
    paths = [Path(name) for name in names if name.endswith(".ipynb")]
    return next((path.resolve() for path in paths if path.is_file()), None)


class Stopped:
    """Placeholder for a study with invalid parameters: any use raises the error again.

    So a later cell that uses the study shows the message too.
    """

    def __init__(self, error):
        self._error = error

    def __getattr__(self, name):
        raise self._error


class _Callable(ModuleType):
    """Makes this module callable: `lab.study("1.4", globals())` returns a `Study`."""

    def __call__(self, exercise, namespace):
        try:
            return Study(exercise, namespace)
        except files.Refused as error:
            namespace["study"] = Stopped(error)
            raise


sys.modules[__name__].__class__ = _Callable
