"""The study of one exercise, which a notebook calls: from its claims to its verdicts."""

import inspect
import os
import sys
import time
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from types import ModuleType

import matplotlib.pyplot as plt
import pandas as pd
from IPython.display import Markdown

from lab import figures, interact, parameters, provenance, runs, trials, workers
from lab.claims import cards, claims
from lab.claims.judge import computed, judge
from lab.shown import display
from lab.tasks.corpus import corpus_hash

ENVIRONMENT = (  # variables LAB_…, by which `lab run` says where trials are kept and run
    "STORE",
    "RECORD",
    "JOBS",
    "CLUSTER",
    "DEVICE",
    "ANYWAY",
    "CHECK",
    "PROGRESS",
)
KEPT = 3  # earlier interactive runs of a notebook that are kept
OWN = "lab-results"  # the folder of results beside the user's own ledger


def study(exercise="", namespace=None, *, ledger=None):
    """Begin the study of an exercise, such as "1.4", or of your own notebook; returns a Study.

    `namespace` is the notebook's globals(); by default the caller's. `study(globals())` names the
    study after its notebook. Declared parameters are checked, converted and written back, so that
    `1e-3`, which YAML reads as text, is a number from here on. Results go to the folder that the
    parameter `results` names, or to results/interactive. Until `finish` they are kept aside, and
    earlier results stay unchanged.

    `ledger` is a file with your own claims, beside the notebook or at a path. With it, results,
    this machine's trials and your own record (`record`) go to the folder `lab-results` beside it,
    unless `results` names another. Raises FileNotFoundError where there is no such file.
    """
    if namespace is None and isinstance(exercise, dict):
        exercise, namespace = "", exercise
    if namespace is None:
        depth = 2 if sys._getframe(1).f_code.co_name == "__call__" else 1
        namespace = sys._getframe(depth).f_globals
    return Study(exercise, namespace, ledger)


class Study:
    """The claims, sweeps, tables, figures and verdicts of one exercise; `lab.study` makes it."""

    def __init__(self, exercise, namespace, ledger=None, notebook=None):
        place = namespace.get("results") if isinstance(namespace.get("results"), str) else ""
        beside = found_beside(ledger) if isinstance(ledger, str | Path) else None
        if beside:
            home = beside.parent / (place or OWN)
        else:
            home = runs.project_root() / (place or "results/interactive")
        self.options = runs.read_options(home)
        if ledger is not None and not self.options.notebook:
            kept = {"store": home / ".trials", "record": [*self.options.record, home / "record"]}
            self.options = self.options.model_copy(update=kept)
        named = beside.with_suffix(".ipynb") if beside and not exercise else None
        if not (named and named.exists()):
            named = notebook_of(exercise or (beside.stem if beside else ""))
        self.notebook = notebook or self.options.notebook or named
        self.exercise = exercise or self.notebook.stem
        self.kept_as = self.notebook.stem  # stem of the file that stores its trials
        self.parameters, usual = parameters.in_namespace(namespace, self.notebook)
        namespace.update(self.parameters)
        self.profile = self.parameters.get("profile", "")
        changed = {name: value for name, value in self.parameters.items() if value != usual[name]}
        self.own = self.options.own if self.options.notebook else changed
        self.final = home / self.notebook.stem
        self.shown_as = self.options.place or runs.shown(self.final)
        try:
            if self.options.notebook:
                self.folder = self.final
            else:
                self.folder = runs.new_folder(home / ".running", self.final.name)
        except OSError as error:
            raise parameters.Refused(
                f"{error.filename}: {error.strerror}; name a folder that can be written to "
                f"as the parameter results, such as {Path.home() / OWN}"
            ) from None
        self._keep = 0 if place and ledger is None else KEPT
        if ledger is None:
            self.ledger = {c.id: c for c in claims.known().values() if c.exercise == self.exercise}
        else:
            own = claims.own_ledger(beside).values() if beside else ledger
            self.ledger = {c.id: c for c in own if c.exercise in ("", self.exercise)}
        self._ledger_hash = claims.ledger_hash(self.notebook) if ledger is None else ""
        self._started = time.time()
        self._lines = {}  # {claim: [Line]}
        self._commit = provenance.commit()  # the commit whose code this process has loaded
        for part in ("tables", "figures"):
            (self.folder / part).mkdir(parents=True, exist_ok=True)

    def claims(self):
        """The table of the claims under test with their predictions."""
        rows = []
        for claim in self.ledger.values():
            for part in claim.parts:
                rows.append((claim.claim, cards.part_in_words(part), cards.expected(claim, part)))
            if not claim.parts:
                rows.append((claim.claim, claim.expected or claim.open, ""))
        table = pd.DataFrame(rows, columns=["claim", "what is measured", "predicted"])
        return table.style.hide(axis="index").set_properties(**{"text-align": "left"})

    def sweep(self, trial, grid, *, jobs=None, threads=1, timing=False, processes=0):
        """A DataFrame of the trial's rows at every point of the grid; see trials.sweep.

        A smoke run uses no worker processes unless `--jobs` says so, since these take longer to
        start than its trials take, and it keeps no times.
        """
        if timing and processes and self.profile == "smoke":
            return trials.rehearsed(trial, grid, min(processes, 2))
        try:
            return trials.sweep(
                trial,
                grid,
                self.place,
                jobs=jobs,
                threads=threads,
                timing=timing,
                processes=processes,
            )
        except KeyboardInterrupt:
            print("Stopped: what is finished is kept; run the cell again to go on.")
            raise

    @cached_property
    def place(self):
        """Where this study's trials are kept and run."""
        told = {name: os.environ.get(f"LAB_{name}", "") for name in ENVIRONMENT}
        home = runs.project_root() / "results"
        record = told["RECORD"] or home / "record"
        return trials.Place(
            self.kept_as,
            store=told["STORE"] or home / ".trials",
            record=None if record == "none" else record,
            jobs=int(told["JOBS"] or 0) or (1 if self.profile == "smoke" else workers.cores()),
            cluster=told["CLUSTER"],
            device=told["DEVICE"] or "auto",
            anyway=bool(told["ANYWAY"]),
            check=Path(told["CHECK"]) if told["CHECK"] else None,
            progress=Path(told["PROGRESS"]) if told["PROGRESS"] else None,
        )

    @property
    def corpus_hash(self):
        """The hash of the corpus that the notebook reads; "" where it reads none."""
        return corpus_hash(self.parameters["corpus"]) if "corpus" in self.parameters else ""

    def table(self, stem, frame):
        """Write a table to tables/stem.csv; returns it as read back from there."""
        path = self.folder / "tables" / f"{stem}.csv"
        runs.write_table(path, frame)
        return pd.read_csv(path)

    def figure(self, stem, frame, plot):
        """Write the table, draw the figure plot(table) from the written one, save it and show it.

        The figure is saved as PNG and, except in the smoke profile, as SVG. The docstring of `plot`
        is the caption, which says what to look for. It is shown below the figure, is its
        alternative text, and is saved in the PNG.
        """
        caption = figures.caption_of(plot)
        figure = figures.draw(plot, self.table(stem, frame))
        picture = figures.save(
            figure, self.folder / "figures" / stem, caption, vector=self.profile != "smoke"
        )
        figures.show(picture, caption)
        plt.close(figure)

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
        lines = self.place.lines(trial.__name__)
        found = interact.Runs(trial, draw, lines, self.place.device)
        interact.live(found, controls, point, button, self._live)

    @property
    def _live(self):
        return interact.is_live() and not self.options.headless

    def say(self, english, chinese="", **values):
        """Show a sentence with numbers from tables, as Markdown; the Chinese one is folded.

        Example: say("It ends at {found:.2f}.", "最终为 {found:.2f}。", found=...). str.format fills
        the placeholders.
        """
        told = [text.format(**values) if values else text for text in (english, chinese)]
        if told[1]:
            told[1] = f"<details><summary>中文</summary>\n\n{told[1]}\n\n</details>"
        if text := "\n\n".join(filter(None, told)):
            display(Markdown(text))

    def told(self, claim, part=None, **sentences):
        """The pair of sentences for a claim's label, such as supported=("Yes.", "是。"), for `say`.

        The label is that of the named part, by default the first. A label without sentences gives
        ("", ""). Prose chosen in this way cannot contradict a verdict.
        """
        lines = self._lines[claim]
        label = next(line.label for line in lines if part in (None, line.part))
        return sentences.get(label.replace(" ", "_"), ("", ""))

    def judge(self, claim, measured, *, rates=None, figure="", table="", note=""):
        """Judge a claim of this exercise and show its card; smoke runs are not judged.

        `measured` is a table with a row for each seed and arm, or {name of a part: table}. `rates`
        is the table of a sweep of learning rates, where a gate needs it. A part without a `measure`
        takes an Interval, an exact statement a number or a sympy expression: see lab.claims.judge.

        A cell whose arm is missing at these parameters is `not run at these values`. `measured` and
        `note` may be functions without arguments, which are not called where the parameters leave
        out values that the claim needs. Where the function `measured` raises NotFinite, the claim
        is undecided.
        """
        about = self._claim(claim)
        if absent := about.absent(self.parameters):
            told = f"without {absent}"
            lines = about.without_answer(claims.NOT_RUN, told)
        else:
            self._check_produced(claim, figure, table or figure)
            measured = computed(measured) if callable(measured) else measured
            note = note() if callable(note) else note
            where = {"figure": figure, "table": table or figure, "note": note}
            lines = judge(about, measured, rates=rates, **where)
        if self.profile == "smoke":
            told = {"answer": "not judged", "label": "not judged"}
            lines = [line.model_copy(update=told) for line in lines]
        self._lines[claim] = lines
        display(Markdown(cards.card(about, lines, runs.own_words(self.own))))

    def _check_produced(self, claim, figure, table):
        for folder, stem, suffix in (("figures", figure, ".png"), ("tables", table, ".csv")):
            if stem and not (self.folder / folder / f"{stem}{suffix}").exists():
                raise FileNotFoundError(f"{claim}: {folder}/{stem}{suffix} was not produced")

    @property
    def comparisons(self):
        """{claim/part: hash of its comparison}, which is stored with every trial that runs."""
        return {
            f"{claim.id}/{part.name}": part.digest
            for claim in self.ledger.values()
            for part in claim.parts
            if part.measure
        }

    def _claim(self, claim):
        if claim not in self.ledger:
            known = ", ".join(sorted(self.ledger)) or "none: write claims in experiments/claims"
            raise KeyError(f"{claim!r} is no claim of {self.exercise}; it has {known}")
        return self.ledger[claim]

    def lines(self, claim):
        """The lines of a judged claim, one for each cell."""
        return self._lines[claim]

    def finish(self):
        """Write verdicts.csv and run.json, move the run into place, and return a table of verdicts.

        Raises RuntimeError where a claim that is not open was not judged.
        """
        missing = sorted(
            c.id for c in self.ledger.values() if not c.open and c.id not in self._lines
        )
        if missing:
            raise RuntimeError(f"not judged yet: {', '.join(missing)}")
        display(Markdown(told := self.place.told()))
        lines = [line for c in self.ledger.values() for line in self._lines.get(c.id, c.unjudged)]
        columns = list(claims.Line.model_fields)
        table = pd.DataFrame([line.model_dump() for line in lines], columns=columns)
        runs.write_table(self.folder / "verdicts.csv", table.astype({"n": "Int64"}))
        run = {
            "status": "done",
            "exercise": self.exercise,
            "profile": self.profile,
            "parameters": {
                name: value for name, value in self.parameters.items() if name != "results"
            },
            "own_parameters": self.own,
            "corpus": self.corpus_hash,
            "ledger": self._ledger_hash,
            "started": datetime.fromtimestamp(self._started, UTC).isoformat(timespec="seconds"),
            "seconds": round(time.time() - self._started, 1),
            "core_seconds": self.place.core_seconds(),
            "trials": {file: list(lines) for file, lines in self.place.used.items()},
            "told": told,
            **self._commit,
            **provenance.machine(),
        }
        runs.write_run(self.folder, run)
        if self.folder != self.final:
            runs.put(self.folder, self.final, self._keep)
            runs.clear(self.folder.parent, self.final.name)
            self.folder = self.final
        display(Markdown(f"Results: `{self.shown_as}`"))
        if not lines:
            return None
        return self._found(lines)

    def _found(self, lines):
        """The table of verdicts with a row for each part."""
        rows = []
        names = ["claim", "part", "label", "effect", "predicted"]
        for line in {(line.id, line.part): line for line in reversed(lines)}.values():
            claim = self.ledger[line.id]
            effect = cards.measured(line) if line.cells < 2 else ""
            rows.append((claim.claim, line.part, cards.label(line), effect, cards.bar(line)))
        shown = pd.DataFrame(rows[::-1], columns=names)
        if not shown[names[1]].any():
            shown = shown.drop(columns=names[1])
        style = shown.style.set_caption(runs.own_words(self.own)) if self.own else shown.style
        return style.hide(axis="index").set_properties(**{"text-align": "left"})


def found_beside(ledger):
    """The path of a ledger: beside the notebook in JupyterLab, in the working folder, or as given.

    A notebook that is moved with its ledger finds it there, even if it names the old absolute path.
    Raises FileNotFoundError where there is no such file.
    """
    session, given = Path(os.environ.get("JPY_SESSION_NAME", "")), Path(ledger).expanduser()
    folders = [session.parent] * (session.suffix == ".ipynb") + [Path.cwd()]
    places = [folder / (given.name if given.is_absolute() else given) for folder in folders] + [
        given
    ]
    if found := next((path for path in places if path.is_file()), None):
        return found.resolve()
    raise FileNotFoundError(
        f"there is no ledger {ledger}; looked at {', '.join(dict.fromkeys(map(str, places)))}"
    )


def notebook_of(exercise):
    """The path of the notebook of an exercise, else of the notebook open in JupyterLab.

    Outside JupyterLab it is EXERCISE.ipynb, which need not exist.
    """
    if any(exercise == parameters.exercise_of(path) for path in parameters.notebooks()):
        return parameters.notebook_of(exercise)
    session = Path(os.environ.get("JPY_SESSION_NAME", ""))  # set by JupyterLab
    if session.suffix == ".ipynb" and session.exists():
        return session
    return Path(f"{exercise or 'notebook'}.ipynb")


class _Callable(ModuleType):
    """Makes this module callable, so that `lab.study("1.4", globals())` calls its function."""

    def __call__(self, exercise="", namespace=None, *, ledger=None):
        return study(exercise, namespace, ledger=ledger)


sys.modules[__name__].__class__ = _Callable
sys.modules[__name__].__signature__ = inspect.signature(study)
