"""Your idea, judged: one call that trains all arms fairly, checks the gates, draws the figure and
shows whether a prediction holds.

    lab.compare(arms={"rotary": "rotary", "mine": Mine}, predict="mine - rotary > 0.05")

It works from any folder: a script, a notebook, an installed package. `lab.recipes.standard` holds
the tasks by name.
"""

import functools
import inspect
import json
import re
import sys
from dataclasses import dataclass, fields
from pathlib import Path
from types import ModuleType

import matplotlib.pyplot as plt
import pandas as pd

from lab import charts, figures, study
from lab.claims import cards
from lab.claims.claims import Line, OwnClaim
from lab.claims.predictions import asked_in_words, comparison_of, read_prediction
from lab.language import tr
from lab.measure.fairness import UnfairComparison, check_arms
from lab.models.gpt import ModelConfig
from lab.names import near
from lab.recipes.arms import OF_TASK, configured, seam_of
from lab.recipes.byte_model import ngram_baselines
from lab.recipes.comparison import SIGNS, problem, schedule_of, switched, trained
from lab.recipes.standard import STANDARD, standard
from lab.training import TrainConfig
from lab.trials import entry_points

RATE_SEED = 10_000  # the seed of trainings that choose a learning rate


@dataclass(frozen=True, repr=False)
class Comparison:
    """The result of `compare`: a line for each prediction, the table of runs, and their folder.

    The table has a row for each arm, seed and length.
    """

    lines: list[Line]
    table: pd.DataFrame
    folder: Path

    @property
    def verdict(self):
        """The label of the first prediction: supported, refuted, undecided or out of reach."""
        return self.lines[0].label

    def __repr__(self):
        words = ", ".join(line.label for line in self.lines)
        return f"<Comparison: {words}; .table has {len(self.table)} rows, .folder is {self.folder}>"


def compare(
    task="copy",
    arms=None,
    *,
    predict="",
    seeds=5,
    seam="",
    measure="",
    length=None,
    mark=None,
    reference="",
    rates=(),
    parameters_within=0.05,
    because="",
    name="",
    results=study.OWN,
    record=(),
    jobs=None,
    **settings,
):
    """Train every arm on the task with the same seeds and data, judge the predictions, and return
    a Comparison.

    task     copy, recall, sums or code (the next byte of program text), or a dataclass that
             inherits from lab.tasks.task.Task
    arms     {name: arm}: a kind ("rotary", {"kind": "rotary", "base": 500}), a class of a seam
             (Position, Mixer, Mask, Norm, ...), a dict of ModelConfig's fields, a ModelConfig, or
             an nn.Module class built from a ModelConfig
    predict  "mine - rotary > 0.05", with < or with = 0 ± 0.02, or several in a list; `because` is
             the reason for this bar
    seeds    the number of runs of each arm, paired by seed
    rates    learning rates, of which each arm gets its best, found on a separate seed
    seam     the seam of the arms, needed where a word such as "none" is a kind of several seams
    measure  accuracy, exact or loss (nats per answer); by default the task's own
    length   the test length that is compared; by default the longest
    mark     the value of the measure that the arm `reference` has to reach in training; the
             reference is by default the second arm of a prediction
    settings further fields of the task, of ModelConfig and of TrainConfig (steps, d_model, longest
             ...), and `lengths`, the test lengths

    A card says whether its prediction was fixed before these runs. Finished trials are stored in
    RESULTS/.trials. Trials of the project's record and of the folders `record` are reused.

    Raises ValueError where a name is unknown, with a suggestion, and UnfairComparison where two
    arms give the same outputs or arms did not read the same data.
    """
    entry_points.load()
    known = set(inspect.signature(compare).parameters) - {"settings"} | {"lengths"}
    about = standard(near(task, STANDARD, "task") if isinstance(task, str) else task)
    plan = Plan(*about, settings, known)
    if not isinstance(arms, dict) or len(arms) < 2:
        raise ValueError(
            "arms: give a dict of two arms or more, such as {'rotary': 'rotary', 'mine': Mine}"
        )
    if not (isinstance(seeds, int) and seeds >= 2):
        raise ValueError(f"seeds {seeds!r}: give two runs of each arm or more")
    plan.arms = {arm: configured(arm, choice, seam_of(arms, seam)) for arm, choice in arms.items()}
    plan.measure = near(measure or plan.about.measure, SIGNS, "measure")
    plan.mark = mark
    if mark is None and (plan.measure == "loss") == (plan.about.measure == "loss"):
        plan.mark = plan.usual_mark()
    if plan.mark is None:
        raise ValueError("mark: give the value that the reference has to reach in training")
    plan.length = plan.lengths[-1] if length is None and plan.lengths else length
    if plan.lengths and plan.length not in plan.lengths:
        raise ValueError(
            f"length {length} is not among the test lengths {plan.lengths}: give lengths=[...]"
        )
    reference = reference and near(reference, arms, "reference")
    predictions = [predict] if isinstance(predict, str) else predict
    wanted = [read_prediction(each, arms) for each in predictions]
    plan.check_different()
    place = Path(results).expanduser().resolve()
    name = name or f"{plan.task}-{'-'.join(arms)}"
    title = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    predicted = [plan.claim(title, each, reference, because, bool(rates)) for each in wanted]
    mine = study.Study(
        title,
        {"results": str(place), "seeds": seeds, "task": plan.task} | plan.schedule,
        ledger=predicted,
        notebook=place / f"{title}.ipynb",
    )
    mine.kept_as = "compare"  # one file for all comparisons, so that they share arms
    folders = [record] if isinstance(record, str | Path) else record
    mine.options.record.extend(Path(folder).resolve() for folder in folders)
    for claim in predicted:
        what = f"{claim.parts[0].asked} {cards.expected(claim, claim.parts[0])}"
        mine.say(tr("Predicted: {what}.", what=what))
    tried, best = plan.rates(mine, rates) if rates else (None, {})
    table = plan.rows(mine.sweep(trained, plan.points(range(seeds), best), jobs=jobs))
    end = plan.checked(table)
    first, second, *_ = wanted[0]
    drawn = plan.drawn(table, end, first, second)

    def panels(rows):
        """Left: what each arm has learned by training step. Right: the compared measure, a dot for
        each seed.

        左图：各方案随训练步数学到了多少；右图：所比较的量，每个种子一个点。
        """
        draw(rows, plan, wanted[0])

    mine.figure("comparison", drawn, panels)
    mine.table("runs", end)
    note = plan.sizes_in_words(end, parameters_within)
    for claim in predicted:
        mine.judge(claim.id, end, rates=tried, figure="comparison", table="runs", note=note)
    mine.finish()
    return Comparison([mine.lines(claim.id)[0] for claim in predicted], end, mine.final)


# The comparison that was asked for


class Plan:
    """The settings of a comparison: those of the task's recipe, updated by the given ones."""

    def __init__(self, task, about, settings, known=()):
        options = {each.name for each in fields(about.task) if each.init}
        model = set(ModelConfig.model_fields) - OF_TASK
        for name in settings:
            near(name, {*options, *model, *TrainConfig.model_fields, *known}, "setting")

        def given(names):
            return {name: value for name, value in settings.items() if name in names}

        self.task, self.about = task, about
        self.options = about.options | given(options)
        self.model = about.model | given(model)
        self.schedule = about.schedule | given(TrainConfig.model_fields)
        self.lengths = []
        if self.trained_at:
            usual = [n * self.trained_at // about.lengths[0] for n in about.lengths or ()]
            self.lengths = sorted({*settings.get("lengths", usual), self.trained_at})

    @property
    def asked(self):
        """The task with its options, as a trial takes it."""
        return {"kind": self.task} | self.options

    @property
    def trained_at(self):
        """The longest trained length; None where the task has none."""
        return getattr(problem(self.asked), "longest", None)

    def usual_mark(self):
        """The mark of the recipe: a number, or None.

        Where the recipe names an n-gram table, the mark is the table's validation loss in nats per
        byte, rounded to three decimals. The table counts the bytes that seed 0 trains on.
        """
        if not isinstance(self.about.mark, str):
            return self.about.mark
        tables = ngram_baselines(problem(self.asked), schedule_of(self.schedule), 0)
        return round(tables[self.about.mark], 3)

    def points(self, seeds, rates=None):
        """A point for each arm and seed."""
        same = {"task": self.asked, "measure": self.measure, "pass_at": self.mark}
        same["lengths"] = sorted(self.lengths, key=lambda n: n != self.trained_at)  # trained first
        points = []
        for arm, changes in self.arms.items():
            schedule = self.schedule | (rates or {}).get(arm, {})
            about = same | {"config": self.model | changes, "schedule": schedule}
            points += [about | {"seed": seed} for seed in seeds]
        return points

    def check_different(self):
        """Raise UnfairComparison where two arms give equal outputs before and after two steps."""
        seen = {}
        for arm, point in zip(self.arms, self.points([0]), strict=True):
            found = switched(point["task"], point["config"], point["schedule"], point["lengths"])
            if found in seen:
                same = [json.dumps(self.arms[each], default=str) for each in (seen[found], arm)]
                raise UnfairComparison(
                    f"arms {seen[found]!r} and {arm!r} give the same outputs, before training and "
                    f"after two steps ({same[0]} and {same[1]}): they do not differ"
                )
            seen[found] = arm

    def claim(self, title, asked, reference, because, with_rates):
        """The OwnClaim of a prediction; its id contains a hash of the comparison."""
        first, second, *predicted = asked
        loss = self.measure == "loss"
        low = {"accuracy": problem(self.asked).marks().chance, "exact": 0.0}.get(self.measure)
        learned = {"measure": "learned", "below" if loss else "above": self.mark}
        needs = {"learned": learned}
        if low is not None:
            needs["headroom"] = {"measure": self.measure, "floor": low, "ceiling": 1.0}
        needs["budget"] = {"same": ["data_hash", "steps", "batch"]}
        if with_rates:
            best = "lowest" if loss else "highest"
            needs["rate"] = {"column": "learning_rate", "by": "learned", "best": best}
            needs["rate"] |= {"within": 0.01}
        needs["no answer"] = {"told": "leak"}
        body = {
            "id": title,
            "exercise": title,
            "claim": f"{self.task}: {asked_in_words(asked)}",
            "metric": self.what(),
            "question": f"{first} - {second}, {self.what()}",
            "measure": self.measure,
            "compare": {"arm": [first, second]},
            "reference": {"arm": reference or second},
            "needs": needs,
            "sizes": ["d_model", "n_layers", "steps"],
            "unit": "nats an answer" if loss else "",
        }
        body |= comparison_of(*predicted)
        body |= {"because": because} if because else {}
        body |= {"rows": {"length": self.length}} if self.lengths else {}
        about = OwnClaim(**body)
        return about.model_copy(update={"id": f"{title}-{about.parts[0].digest[:8]}"})

    def what(self):
        """The compared measure in words."""
        what = f"{self.measure} on {self.task}"
        if self.lengths:
            what += f" at length {self.length}, after training up to {self.trained_at}"
        return what

    # The runs

    def rates(self, mine, rates):
        """(rows of the last step of a sweep of learning rates, {arm: {"learning_rate": best}}).

        `mine` is the Study of the comparison.
        """
        points = []
        for rate in rates:
            tried = {arm: {"learning_rate": float(rate)} for arm in self.arms}
            points += self.points([RATE_SEED], tried)
        rows = self.checked(self.rows(mine.sweep(trained, points)), fair=False)
        rows = rows[rows.length == self.length] if self.lengths else rows
        learned = rows.groupby("arm").learned
        chosen = rows.loc[learned.idxmin() if self.measure == "loss" else learned.idxmax()]
        best = dict(zip(chosen.arm, chosen.learning_rate, strict=True))
        return rows, {arm: {"learning_rate": float(rate)} for arm, rate in best.items()}

    def rows(self, table):
        """The rows of a sweep with the name of their arm in place of its configuration."""
        known = {}
        for arm, changes in self.arms.items():
            known[json.dumps(self.model | changes, sort_keys=True)] = arm
        arm = [known[json.dumps(config, sort_keys=True)] for config in table.config]
        kept = table.drop(columns=["task", "config", "schedule", "lengths", "measure", "pass_at"])
        return kept.assign(
            arm=arm,
            d_model=[c["d_model"] for c in table.config],
            n_layers=[c["n_layers"] for c in table.config],
        )

    def checked(self, table, fair=True):
        """The rows of the last step, one for each arm, seed and length, with a column `learned`.

        `learned` is the measure at the longest trained length. Raises UnfairComparison where an arm
        diverged or, with `fair`, where arms may not be compared.
        """
        if table.diverged.any():
            gone = table[table.diverged].iloc[0]
            raise UnfairComparison(
                f"arm {gone.arm!r} diverged at seed {gone.seed}: lower its learning rate"
            )
        end = table[table.step == table.steps]
        if fair:
            check_arms(end.drop_duplicates(["arm", "seed"]), "arm", fingerprint="outputs")
        at = end[end.length == self.trained_at] if self.lengths else end
        learned = at.set_index(["arm", "seed", "learning_rate"])[self.measure]
        keys = pd.MultiIndex.from_frame(end[["arm", "seed", "learning_rate"]])
        return end.assign(learned=learned.reindex(keys).to_numpy())

    def sizes_in_words(self, end, within):
        """The parameter counts of the arms in words, and whether they differ by over `within`."""
        counts = end.groupby("arm", sort=False).parameters.first()
        apart = counts.max() / counts.min() - 1
        told = ", ".join(f"{arm} {count:,}" for arm, count in counts.items())
        if apart <= within:
            return tr("parameters: {told}", told=told)
        return tr(
            "parameters are {apart:.0%} apart, more than {within:.0%}: {told}",
            apart=apart,
            within=within,
            told=told,
        )

    def drawn(self, table, end, first, second):
        """The table of the figure, with the columns panel, arm, seed, x and y."""
        curves = table[table.length == self.trained_at] if self.lengths else table
        parts = [curves.assign(panel="curve", x=curves.step, y=curves[self.measure])]
        if self.lengths:
            parts += [end.assign(panel="compared", x=end.length, y=end[self.measure])]
        else:
            wide = end.pivot(index="seed", columns="arm", values=self.measure)
            for arm in [first, *self.arms]:
                if arm != second:
                    gap = (wide[arm] - wide[second]).rename("y").reset_index()
                    name = f"{arm} - {second}"
                    parts.append(gap.assign(panel="compared", arm=name, x=0))
        return pd.concat(parts)[["panel", "arm", "seed", "x", "y"]].drop_duplicates()


def draw(rows, plan, asked):
    """Draw two panels: what the arms learn, and the compared measure."""
    *_, bar, _ = asked
    _, (left, right) = plt.subplots(1, 2, figsize=(8.4, 3.5))
    curve, compared = rows[rows.panel == "curve"], rows[rows.panel == "compared"]
    word = {
        "accuracy": "accuracy",
        "exact": "texts with all answers right",
        "loss": "nats an answer",
    }
    said = {"title": "Did they learn?", "xlabel": "optimiser steps", "ylabel": word[plan.measure]}
    charts.by_arm(left, curve, "x", "y", "arm", **said)
    charts.marks(left, {"mark": plan.mark})
    if plan.lengths:
        title = "At lengths beyond those of training, the dashed line"
        said |= {"title": title, "xlabel": "length of the test"}
        charts.by_arm(right, compared, "x", "y", "arm", **said)
        right.axvline(plan.trained_at, **figures.PREDICTION)
        right.set_xticks(plan.lengths)
    else:
        said = {"title": "How large is the difference?", "xlabel": word[plan.measure]}
        charts.forest(right, compared, "y", "arm", bar=bar, **said)


class _Callable(ModuleType):
    """Makes this module callable, so that `lab.compare(...)` calls its function."""

    @functools.wraps(compare)
    def __call__(self, *arguments, **options):
        return compare(*arguments, **options)


sys.modules[__name__].__class__ = _Callable
sys.modules[__name__].__signature__ = inspect.signature(compare)
