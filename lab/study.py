"""The study of one exercise, which a notebook calls: from its claims to its verdicts."""

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

import matplotlib.pyplot as plt
import pandas as pd
import psutil
from IPython.display import Markdown

from lab import figures, files, interact, parameters, zoo
from lab.claims import cards, claims
from lab.claims.judge import computed, judge
from lab.shown import Progress, display
from lab.tasks.corpus import corpus_hash
from lab.trials import sittings, sweep
from lab.trials.rows import key

DATA = {"corpus": corpus_hash, "reference": zoo.reference_hash}  # {data source: its hash function}
BUSY = 30  # percent of all cores used by other programs, above which a timing warns


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
    """The claims, sweeps, tables, figures and verdicts of one exercise; `lab.study` makes it."""

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
            self.ledger = {c.id: c for c in claims.known().values() if c.exercise == exercise}
        else:
            home = self.notebook.parent / (namespace.get("results") or "lab-results")
            own = self.notebook.with_name(f"{exercise}.yaml")
            self.ledger = claims.own_ledger(own) if own.exists() else {}
        self.final = Path(variable("RUN", home / self.notebook.stem))
        self.folder = Path(variable("RUN") or self._aside())
        self._started, self.used = time.time(), []
        self._timings = []  # bodies of trials that were timed in separate processes
        self._lines = {}  # {claim: [Line]}
        self._commit = files.commit()  # the commit whose code this process has loaded
        self._saved = 0.0  # core seconds of trials beyond the time spent waiting for them
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
        """A DataFrame of the trial's rows at every point of the grid; see trials.sweep.sweep.

        Trials of the smoke profile run in this process unless `--jobs` says otherwise, since
        workers take longer to start than these trials take to run.

        `timing` marks trials that read clocks or measure memory. They run one at a time and are
        never recorded. Without `processes`, each runs once in this process. With `processes`, which
        clocks need, all points run in that many fresh processes, one after another, and again in
        another sitting, which is a run at least an hour later: see trials.sittings. The rows then
        have the columns `repeat`, the number of the process, and `sitting`. The smoke profile makes
        at most two repetitions, in this process.
        """
        busy = psutil.cpu_percent(0.3) if timing else 0
        began = time.time()
        at_once = int(variable("JOBS", 0)) or (self.profile != "smoke" and os.cpu_count()) or 1
        progress = Progress(trial.__name__, variable("PROGRESS"))
        try:
            if processes:
                table = self._timed(trial, grid, processes, progress, threads)
            else:
                table = sweep.sweep(
                    trial,
                    grid,
                    sources=self.sources,
                    jobs=jobs or at_once,
                    cluster=None if jobs == 1 else variable("CLUSTER") or None,
                    threads=threads,
                    device=variable("DEVICE", "auto"),
                    timing=timing,
                    progress=progress,
                    used=self.used,
                )
        except KeyboardInterrupt:
            print("Stopped: what is finished is kept; run the cell again to go on.")
            raise
        if busy > BUSY and progress.ran:
            self.say(
                f"Other programs take {busy:.0f} percent of this machine: its times may be wrong."
            )
        self._saved += table.attrs["core_seconds"] - (time.time() - began)
        return table

    def _timed(self, trial, grid, processes, progress, threads):
        where = {"device": variable("DEVICE", "auto"), "threads": threads}
        if self.profile == "smoke":
            return sittings.rehearsed(trial, grid, min(processes, 2), **where)
        kept = {"sources": self.sources, "progress": progress, "used": self._timings}
        return sittings.sweep(trial, grid, processes, **where, **kept)

    @cached_property
    def sources(self):
        """The sources of trials: this machine's store, then the record, then running them now."""
        results = files.project_root() / "results"
        record = variable("RECORD", results / "record")
        return sweep.Sources(
            self.kept_as,
            store=Path(variable("STORE", results / ".trials")),
            record=[] if record == "none" else [Path(record)],
            data=DATA,
            comparisons=self.comparisons,
            root=files.project_root(),
        )

    def _recorded(self, name):
        """The bodies of the recorded trials with this name."""
        return [
            body for file in self.sources.recorded for body in file.trials if body["trial"] == name
        ]

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
        caption = figures.caption_of(plot)
        figure = figures.draw(plot, self.table(stem, frame))
        picture = figures.save(figure, self.folder / "figures" / stem, caption)
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
        used = [each.body for each in self.used if each.trial.__name__ == trial.__name__]
        bodies = [*used, *self._recorded(trial.__name__)]
        seed = 1 + max((body["parameters"].get("seed", -1) for body in bodies), default=-1)
        found = interact.Runs(trial, draw, used, seed, variable("DEVICE", "auto"))
        interact.live(found, controls, point, button, self._live)

    @property
    def _live(self):
        return interact.is_live() and not variable("RUN")

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
            lines = [self._labelled(about, line, measured) for line in lines]
        if self.profile == "smoke":
            told = {"answer": "not judged", "label": "not judged"}
            lines = [line.model_copy(update=told) for line in lines]
        self._lines[claim] = lines
        display(Markdown(cards.card(about, lines, own_words(self.own))))

    def _check_produced(self, claim, figure, table):
        for folder, stem, suffix in (("figures", figure, ".png"), ("tables", table, ".csv")):
            if stem and not (self.folder / folder / f"{stem}{suffix}").exists():
                raise FileNotFoundError(f"{claim}: {folder}/{stem}{suffix} was not produced")

    def _labelled(self, about, line, measured):
        """The line with `fixed`, and with the machine among its sizes where it is a timing."""
        told = {}
        if about.timing:
            told["sizes"] = ", ".join(filter(None, [line.sizes, files.machine_name()]))
        part = next(part for part in about.parts if part.name == line.part)
        if part.measure:
            table = measured[part.name] if isinstance(measured, dict) else measured
            told["fixed"] = "before" if self._fixed_before(about, part, table) else "exploratory"
        return line.model_copy(update=told)

    def _fixed_before(self, about, part, table):
        """Whether all trials with the table's seeds or sittings first ran under this comparison."""
        key = f"{about.id}/{part.name}"
        if "sitting" in table:
            column, bodies = "sitting", self._timings
        else:
            column, bodies = "seed", [each.body for each in self.used]
        values = set(table[column])
        bodies = [body for body in bodies if body["parameters"].get(column) in values]
        said = [body["labels"].get("comparisons", {}).get(key) for body in bodies]
        return bool(said) and set(said) == {part.digest}

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
        display(Markdown(told := told_of(self.used)))
        lines = [line for c in self.ledger.values() for line in self._lines.get(c.id, c.unjudged)]
        columns = list(claims.Line.model_fields)
        table = pd.DataFrame([line.model_dump() for line in lines], columns=columns)
        files.write_table(self.folder / "verdicts.csv", table.astype({"n": "Int64"}))
        self._write_run(told)
        if self.folder != self.final:
            files.put(self.folder, self.final)
            self.folder = self.final
        display(Markdown(f"Results: `{files.shown(self.final)}`"))
        if not lines:
            return None
        return self._found(lines)

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
            "machine": files.machine_name(),
            "started": datetime.fromtimestamp(self._started, UTC).isoformat(timespec="seconds"),
            "seconds": round(time.time() - self._started, 1),
            "core_seconds": round(time.time() - self._started + self._saved, 1),
            "record": record_of(self.used),
            "told": told,
        }
        files.write_run(self.folder, run)

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
        style = shown.style.set_caption(own_words(self.own)) if self.own else shown.style
        return style.hide(axis="index").set_properties(**{"text-align": "left"})


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


def own_words(own):
    """The parameters of a run that differ from the profile's, in words; "" where none differs."""
    if not own:
        return ""
    return "own parameters: " + ", ".join(f"{name} {value}" for name, value in own.items())


def told_of(used):
    """Where the trials of a run come from, in one line."""
    words = {"record": "from the record", "store": "from this machine", "run": "run now"}
    counts = [(sum(each.origin == origin for each in used), words[origin]) for origin in words]
    told = ", ".join(f"{n} {said}" for n, said in counts if n) or "none"
    labels = [each.body["labels"] for each in used if each.origin == "record"]
    machines = sorted({label["machine"] for label in labels if label.get("machine")})
    return f"Trials: {told}." + (f" Recorded on {'; '.join(machines)}." if machines else "")


def record_of(used):
    """What `lab record` reads of a run: {trial: its code and the keys of points that ran here}."""
    trials = {}
    for each in used:
        state = trials.setdefault(each.trial.__name__, {"code": each.body["code"], "points": []})
        if each.origin != "record":
            state["points"].append(key(each.body["parameters"]))
    return {"trials": trials}


class _Callable(ModuleType):
    """Makes this module callable, so that `lab.study("1.4", globals())` calls its function."""

    def __call__(self, exercise, namespace):
        return study(exercise, namespace)


sys.modules[__name__].__class__ = _Callable
sys.modules[__name__].__signature__ = inspect.signature(study)
