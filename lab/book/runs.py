"""The finished runs that the book shows, with their prose, figures and answers."""

from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from re import findall

import nbformat

from lab import figures, language
from lab.claims import claims, report
from lab.trials import parameters, runs

EXERCISES = 14  # the chapter's exercises; later notebooks are appendices


@dataclass(frozen=True)
class Run:
    """A finished run of one notebook in one profile.

    Its numbers come from `folder`. Its prose and figures come from a run with the same parameters
    in the reader's language (`lab run --language`), where there is one.
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
        """Whether it is the published run, which is under git."""
        return self.folder == runs.published(self.profile, self.stem)

    @property
    def title(self):
        title, _ = report.opening(self.notebook)
        return title.replace("<", "‹")  # the theme does not escape titles

    @property
    def question(self):
        _, question = report.opening(self.notebook)
        return question

    @cached_property
    def spoken(self):
        """The folder of the run in the reader's language, else of this run."""
        folder = runs.place_of_run(self.profile, f"{self.stem}-{language.language()}")
        about = runs.read_run(folder)
        if about is None or about["parameters"] != self.about["parameters"]:
            return self.folder
        return folder

    @cached_property
    def lines(self):
        return claims.read_verdicts(self.folder)

    @cached_property
    def hero(self):
        """The stem of the figure that represents the run; "" where it has none."""
        return report.hero(self.notebook, self.folder, self.lines.figure)

    @cached_property
    def section(self):
        """The section of the chapter, 1 to 6, that most sources of its claims name, else 0."""
        named = Counter()
        for claim in claims.ledger().values():
            if claim.exercise == self.exercise:
                named.update(findall(r"chapter §1\.(\d)", " ".join(claim.sources)))
        return int(named.most_common(1)[0][0]) if named else 0

    @property
    def number(self):
        """The number of its notebook, by which exercises are sorted."""
        return int(self.stem[:2])

    def picture(self, stem):
        """The path of a figure's PNG, in the reader's language where there is one."""
        path = self.spoken / "figures" / f"{stem}.png"
        return path if path.exists() else self.folder / "figures" / f"{stem}.png"

    def caption(self, stem):
        """The caption of a figure in the reader's language, else its name in words."""
        both = figures.captions_in(self.picture(stem))
        return language.in_language(*both) or stem.replace("_", " ")

    def read(self):
        """The executed notebook, with prose in the reader's language only."""
        notebook = nbformat.read(self.spoken / "notebook.ipynb", 4)
        return language.translated(notebook, language.language(), alone=True)


def finished_runs():
    """[Run] of quick, then of full; a run of this machine replaces the published one."""
    found = []
    for profile in ("quick", "full"):
        for notebook in parameters.notebooks():
            folder = runs.latest(profile, notebook.stem)
            if about := runs.read_run(folder):
                found.append(Run(notebook, profile, folder, about))
    return found


def in_order(found):
    """One run for each notebook, quick before full; by section, exercises before appendices."""
    shown = {run.stem: run for run in reversed(found)}
    return sorted(shown.values(), key=lambda r: (r.section, r.number > EXERCISES, r.number))
