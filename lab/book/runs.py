"""What the book is made from: finished runs, their words, figures and verdicts."""

import re
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import nbformat

from lab import figures, language
from lab.engine import parameters, runs
from lab.ledger import claims, findings, openings, summary
from lab.ledger.claims import UNGATED

WORDS = ("threshold", "note", "gates", "sizes")  # of a verdict
SECTION = re.compile(r"chapter §1\.(\d)")
EXERCISES = 14  # of the chapter; later notebooks are appendices
SIZES = ("d_model", "n_layers", "context", "batch", "steps", "seeds")


@dataclass(frozen=True)
class Run:
    """A finished run of one notebook in one profile, and where it is told in the reader's language.

    Numbers are those of `folder`; words and figures come from a run of the same parameters in the language, where
    there is one (`lab run --language`).
    """

    notebook: Path
    profile: str
    folder: Path
    about: dict  # run.json

    @property
    def stem(self):
        return self.notebook.stem

    @cached_property
    def exercise(self):
        return parameters.exercise_of(self.notebook)

    @property
    def published(self):
        """Whether it is the one that git holds."""
        return self.folder == runs.published(self.profile, self.stem)

    @property
    def title(self):
        return openings.title(self.notebook).replace("<", "‹")  # the theme prints titles as they are

    @property
    def minutes(self):
        """Core minutes of all that the run shows, trials that were finished before included."""
        return self.about["core_seconds"] / 60

    @property
    def size(self):
        """The parameters that make a run large or small, in words."""
        chosen = {name: self.about["parameters"][name] for name in SIZES if name in self.about["parameters"]}
        return ", ".join(f"{name} {value}" for name, value in chosen.items())

    @cached_property
    def spoken(self):
        """The folder of the run in the reader's language; this run's own where there is none."""
        folder = runs.place_of_run(self.profile, f"{self.stem}-{language.language()}")
        told = runs.read_run(folder)
        alike = told is not None and told["parameters"] == self.about["parameters"]
        return folder if alike else self.folder

    @cached_property
    def verdicts(self):
        """The verdicts, in the words of the reader's language where its run came to the same numbers."""
        table, told = summary.read_verdicts(self.folder), summary.read_verdicts(self.spoken)
        numbers = ["id", "verdict", "effect", "low", "high"]
        same = {tuple(map(str, row[:5])): row[5:] for row in told[[*numbers, *WORDS]].itertuples(index=False)}
        for i, row in enumerate(table[numbers].itertuples(index=False)):
            if found := same.get(tuple(map(str, row))):
                table.loc[i, list(WORDS)] = found
        return table

    @property
    def counts(self):
        """{verdict: how many}, and how many of these have no gate yet."""
        return counted(self.verdicts)

    @cached_property
    def figures(self):
        """Stems of the figures, in the order in which the notebook shows them."""
        return openings.figures(self.notebook, self.folder)

    @cached_property
    def hero(self):
        """The figure that stands for the run; "" where it has none."""
        return findings.hero(self.notebook, self.folder.parent, self.verdicts)

    @cached_property
    def section(self):
        """The section of the chapter, 1 to 6, that most sources of its claims name."""
        mine = [claim for claim in claims.ledger().values() if claim.exercise == self.exercise]
        named = Counter(number for claim in mine for source in claim.sources for number in SECTION.findall(source))
        return int(named.most_common(1)[0][0]) if named else 0

    @property
    def number(self):
        """The number of its notebook, by which the exercises are in order."""
        return int(self.stem[:2])

    @property
    def appendix(self):
        """Whether it is none of the chapter's own exercises."""
        return self.number > EXERCISES

    def picture(self, stem):
        """The PNG of a figure, in the reader's language where it was drawn so."""
        path = self.spoken / "figures" / f"{stem}.png"
        return path if path.exists() else self.folder / "figures" / f"{stem}.png"

    def caption(self, stem):
        """The caption of a figure in the reader's language; without one, its name in words."""
        return language.in_language(*figures.captions_in(self.picture(stem))) or stem.replace("_", " ")

    def read(self):
        """The executed notebook, its prose in the reader's language alone."""
        book = nbformat.read(self.spoken / "notebook.ipynb", 4)
        return language.translated(book, language.language(), alone=True)


def counted(verdicts):
    """{verdict: how many} of a table, in its order of frequency, then how many of these are not yet gated."""
    bare = int((verdicts.gates == UNGATED).sum())
    return verdicts.verdict.value_counts().to_dict() | ({UNGATED: bare} if bare else {})


def finished_runs():
    """Runs of quick, then of full; in each the exercises in order, those of this machine before the published ones.

    ValueError names what is not as a run left it.
    """
    found = []
    for profile in ("quick", "full"):
        for notebook in parameters.notebooks():
            folder = runs.latest(profile, notebook.stem)
            if about := runs.read_run(folder):
                found.append(Run(notebook, profile, folder, about))
    return found


def in_order(found):
    """One run a notebook, quick where there is one: by section of the chapter, its exercises, then its appendices."""
    shown = {run.stem: run for run in reversed(found)}
    return sorted(shown.values(), key=lambda run: (run.section, run.appendix, run.number))
