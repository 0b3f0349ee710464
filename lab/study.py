"""What a notebook calls: a study of one exercise, from its claims to its verdicts, and the form of guesses."""

import base64
import json
import math
import os
import sys
import time
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from types import ModuleType

import matplotlib.pyplot as plt
import pandas as pd
from IPython.display import Markdown, display

from lab import figures
from lab.engine import checks, fingerprint, parameters, provenance, runs, trials
from lab.engine.device import available
from lab.engine.record import Record
from lab.ledger import claims, rests
from lab.tasks.corpus import corpus_hash

KEPT = 3  # earlier runs by hand


def study(exercise, namespace=None):
    """Begin the study of an exercise, such as "1.4", or of a notebook of one's own, with the notebook's globals().

    `study(globals())` names it after its notebook. Declared parameters are checked and converted (what is refused is
    named with what is allowed) and put back, so that `1e-3`, text in YAML, is a number from here on. Results go to
    the folder `results`, or to results/interactive; until `finish` they are kept aside and nothing earlier is touched.
    """
    return Study("", exercise) if namespace is None else Study(exercise, namespace)


class Study:
    def __init__(self, exercise, namespace):
        place = namespace.get("results") if isinstance(namespace.get("results"), str) else ""
        home = runs.project_root() / (place or "results/interactive")
        self.options = runs.read_options(home)
        self.notebook = self.options.notebook or notebook_of(exercise)
        self.exercise = exercise or self.notebook.stem
        self.parameters, usual = parameters_in(namespace, self.notebook)
        namespace.update(self.parameters)
        self.profile = self.parameters.get("profile", "")
        changed = {name: value for name, value in self.parameters.items() if value != usual[name]}
        self.own = self.options.own if self.options.notebook else changed
        self.final = home / self.notebook.stem
        self.place = self.options.place or runs.shown(self.final)
        self.folder = self.final if self.options.notebook else runs.new_folder(home / ".running", self.final.name)
        self._keep = 0 if place else KEPT
        self.ledger = {c.id: c for c in claims.ledger().values() if c.exercise == self.exercise}
        self.guesses = Guesses(c for c in self.ledger.values() if not c.open)
        self._verdicts, self._started, self._run, self.used = {}, time.time(), None, []
        self._commit = provenance.commit()  # whose code this process has loaded
        self._saved = 0.0  # core seconds of trials beyond the time spent waiting for them
        for part in ("tables", "figures"):
            (self.folder / part).mkdir(parents=True, exist_ok=True)

    def claims(self):
        """The claims under test and what each predicts; in a live notebook with a form for the reader's guesses."""
        if self.ledger and not self.options.headless:
            display(self.guesses.form())
        rows = [(c.id, c.priority, c.claim, c.claim_zh, str(c.prediction or c.expected)) for c in self.ledger.values()]
        table = pd.DataFrame(rows, columns=["id", "priority", "claim", "论断", "prediction"])
        return table.style.hide(axis="index").set_properties(**{"text-align": "left"})

    def sweep(self, trial, grid, *, jobs=None, threads=1, timing=False):
        """The trial at every point of the grid, a row each; see engine.trials.sweep. jobs=1 for undisturbed timings.

        Trials of the smoke profile run here unless `--jobs` says otherwise: workers take longer to start than they do.
        """
        began, options = time.time(), self.options
        at_once = options.jobs or (self.profile != "smoke" and os.cpu_count()) or 1
        table = trials.sweep(
            trial,
            grid,
            sources=self.sources,
            jobs=jobs or at_once,
            cluster=None if jobs == 1 else options.cluster or None,
            threads=threads,
            device=options.device,
            timing=timing,
            progress=Progress(trial.__name__, options.progress),
            used=self.used,
        )
        self._saved += table.attrs["core_seconds"] - (time.time() - began)
        return table

    @cached_property
    def sources(self):
        """Where finished trials come from: this machine's store, then the record, then a run now."""
        options = self.options
        return trials.Sources(
            store=options.store,
            record=Record([] if options.fresh else options.record),
            data={"corpus": corpus_hash},
            root=runs.project_root(),
            recorded_only=options.recorded_only,
            deadline=options.deadline or math.inf,
            traced=options.traced,
            sample=json.loads(options.sample.read_text()) if options.sample else None,
        )

    @property
    def corpus_hash(self):
        """Of the text that the notebook reads, if it reads one."""
        return corpus_hash(self.parameters["corpus"]) if "corpus" in self.parameters else ""

    def table(self, stem, frame):
        """Keep a table as tables/stem.csv and hand it back as it will be read."""
        path = self.folder / "tables" / f"{stem}.csv"
        runs.write_table(path, frame)
        self._seal()
        return pd.read_csv(path)

    def figure(self, stem, frame, plot):
        """Keep the table, draw the figure from the kept table alone, and keep it as PNG and SVG."""
        figure = figures.draw(plot, self.table(stem, frame))
        show(figures.save(figure, self.folder / "figures" / stem))
        plt.close(figure)
        self._seal()

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
        if not self.options.headless:
            panel.update()
            live = panel._repr_mimebundle_()
        show(drawn(**{child.description: child.value for child in panel.children[:-1]}), live)

    def judge(self, claim, measured, *, figure="", table="", note=""):
        """Judge a claim of this exercise from what was measured; smoke runs are not judged.

        Where the parameters took away an arm that the claim compares, it is `not run at these values`. `measured` and
        `note` may be functions without arguments, for what cannot be computed then: they are not called.
        """
        if claim not in self.ledger:
            known = ", ".join(sorted(self.ledger)) or "none: claims stand in experiments/claims.yaml"
            raise KeyError(f"{claim!r} is no claim of {self.exercise}; it has {known}")
        about = self.ledger[claim]
        if absent := about.absent(self.parameters):
            verdict = about.unjudged.model_copy(update={"verdict": claims.NOT_RUN, "note": f"without {absent}"})
        else:
            for folder, stem, suffix in (("figures", figure, ".png"), ("tables", table or figure, ".csv")):
                if stem and not (self.folder / folder / f"{stem}{suffix}").exists():
                    raise FileNotFoundError(f"{claim}: {folder}/{stem}{suffix} was not produced")
            measured, note = (value() if callable(value) else value for value in (measured, note))
            verdict = claims.judge(about, measured, figure=figure, table=table or figure, note=note)
        if self.profile == "smoke":
            verdict = verdict.model_copy(update={"verdict": "not judged"})
        self._verdicts[claim] = verdict
        own = f" ({runs.own_words(self.own)})" if self.own else ""
        found = "" if verdict.effect != verdict.effect else f": {verdict.effect:.4g}"
        found += "" if verdict.low != verdict.low else f" [{verdict.low:.4g}, {verdict.high:.4g}], n = {verdict.n}"
        unit = f" {verdict.unit}" if found else ""
        display(Markdown(f"**{claim}: {verdict.verdict}**{own}{found}{unit}  \n"
                         f"predicted: {verdict.threshold}. {verdict.note}"))  # fmt: skip

    def finish(self):
        """Write verdicts.csv and run.json, and put the run in its place; returns the table of verdicts.

        Every claim but the open ones is judged; RuntimeError names those that are not.
        """
        missing = sorted(c.id for c in self.ledger.values() if not c.open and c.id not in self._verdicts)
        if missing:
            raise RuntimeError(f"not judged yet: {', '.join(missing)}")
        findings = self._check()
        origins = checks.origins(self.used)
        told = checks.told(origins, findings)
        display(Markdown(told))
        verdicts = [self._verdicts.get(c.id, c.unjudged) for c in self.ledger.values()]
        table = pd.DataFrame([v.model_dump() for v in verdicts], columns=list(claims.Verdict.model_fields))
        runs.write_table(self.folder / "verdicts.csv", table.astype({"n": "Int64"}))
        if score := self.guesses.score(verdicts):
            display(Markdown(score))
        self._run = {
            "status": "done",
            "exercise": self.exercise,
            "profile": self.profile,
            "parameters": {name: value for name, value in self.parameters.items() if name != "results"},
            "own_parameters": self.own,
            "corpus": self.corpus_hash,
            "started": datetime.fromtimestamp(self._started, UTC).isoformat(timespec="seconds"),
            "seconds": round(time.time() - self._started, 1),
            "core_seconds": round(time.time() - self._started + self._saved, 1),
            "record": origins | {"told": told, "checks": [str(each) for each in findings]},
            "kinds": {name: fingerprint.kind_hash(name) for name in sorted(self._kinds())},
            **self._commit,
            **provenance.machine(),
        }
        self._seal()
        if self.folder != self.final:
            runs.put(self.folder, self.final, self._keep)
            runs.clear(self.folder.parent, self.final.name)
            self.folder = self.final
        display(Markdown(f"Results: `{self.place}`"))
        if not verdicts:
            return None
        words = table[["id", "verdict", "effect", "low", "high", "unit", "n", "threshold", "note"]].style
        words = words.set_caption(runs.own_words(self.own)) if self.own else words
        return words.hide(axis="index").format(precision=4, na_rep="").set_properties(**{"text-align": "left"})

    def _check(self):
        """Findings of the spot checks; what rests on a trial that does not come out as recorded is marked so."""
        if not self.options.check or not any(each.origin == "record" for each in self.used):
            return []
        cursor = Path(self.options.store) / ".checked" / self.notebook.stem
        findings = checks.spot_check(self.used, self.options.check, cursor, device=available(self.options.device))
        wrong = {each.trial for each in checks.alarms(findings)}
        behind = rests.sweeps_behind(self.notebook) if wrong else {}
        for name, verdict in self._verdicts.items():
            if wrong & behind.get(name, set()) or "all" in wrong:
                note = f"{verdict.verdict} by the record, which a run here does not confirm. {verdict.note}"
                self._verdicts[name] = verdict.model_copy(update={"verdict": claims.NOT_REPRODUCED, "note": note})
        return findings

    def _kinds(self):
        return {name for each in self.used for name in each.body["kinds"]}

    def _seal(self):
        """run.json of a finished run, whose checksums then hold for what was added to it as well."""
        if self._run:
            runs.write_run(self.folder, self._run)


def notebook_of(exercise):
    """The notebook of an exercise; else the notebook of one's own as Jupyter names it, or as it is called here."""
    if any(exercise == parameters.exercise_of(path) for path in parameters.notebooks()):
        return parameters.notebook_of(exercise)
    session = Path(os.environ.get("JPY_SESSION_NAME", ""))  # set by JupyterLab
    return session if session.suffix == ".ipynb" and session.exists() else Path(f"{exercise or 'notebook'}.ipynb")


def parameters_in(namespace, notebook):
    """The parameters in a notebook's globals(), converted, and those of its profile. Refused where one is not allowed.

    Where the notebook cannot be read, they are its numbers, words and lists.
    """
    if not notebook.exists():
        found = {
            name: value
            for name, value in namespace.items()
            if not name.startswith("_") and name != "In" and isinstance(value, (int, float, str, list))
        }
        return found, found
    declared = set(parameters.read_declared(notebook)) | set(parameters.injected(namespace))
    declared -= {"results"}  # where to is no part of what
    values = {name: namespace[name] for name in declared if name in namespace}
    values = parameters.validate(notebook, values, source="notebook")
    values.pop("results", None)
    return values, parameters.of_profile(notebook, values.get("profile", "quick"))


def show(picture, live=None):
    """Display the bytes of a PNG, whatever the backend; `live` is shown in its place where widgets run."""
    shown = {"image/png": base64.b64encode(picture).decode(), "text/plain": "a figure"}
    display(shown | (live or {}), raw=True)


class Progress:
    """Tells how far a sweep is: the runner through a small file, else the reader with a line every few seconds."""

    def __init__(self, name, file=None):
        self.name, self.file, self.began, self.told = name, file, time.time(), 0.0

    def __call__(self, done, total, workers, left):
        if self.file:
            state = {"sweep": self.name, "done": done, "total": total, "workers": workers, "left": left}
            runs.write_text(self.file, json.dumps(state))
        elif done == total or time.time() - self.told > 5:
            self.told = time.time()
            ahead = f", about {left:.0f} s left" if left else ""
            print(f"{self.name}: {done}/{total} trials, {self.told - self.began:.0f} s{ahead}", file=sys.stderr)


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

    def __call__(self, exercise, namespace=None):
        return study(exercise, namespace)


sys.modules[__name__].__class__ = _Callable
