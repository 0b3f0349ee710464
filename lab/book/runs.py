"""What the book is made from: finished runs, their words, figures and verdicts."""

import json
from dataclasses import dataclass
from pathlib import Path

from lab.engine import parameters, runs
from lab.ledger import summary

SIZES = ("d_model", "n_layers", "context", "batch", "steps", "seeds")


@dataclass(frozen=True)
class Run:
    """A finished run of one notebook in one profile."""

    notebook: Path
    profile: str
    folder: Path
    record: dict  # run.json

    @property
    def stem(self):
        return self.notebook.stem

    @property
    def exercise(self):
        return parameters.exercise_of(self.notebook)

    @property
    def title(self):
        return parameters.title_of(self.notebook).replace("<", "‹")  # the theme prints titles as they are

    @property
    def minutes(self):
        """Core minutes of all that the run shows, trials that were finished before included."""
        return self.record["core_seconds"] / 60

    @property
    def size(self):
        """The parameters that make a run large or small, in words."""
        chosen = {name: self.record["parameters"][name] for name in SIZES if name in self.record["parameters"]}
        return ", ".join(f"{name} {value}" for name, value in chosen.items())

    @property
    def verdicts(self):
        return summary.read_verdicts(self.folder)

    @property
    def counts(self):
        return self.verdicts.verdict.value_counts().to_dict()

    @property
    def figures(self):
        """Stems of the figures, in the order in which the notebook shows them."""
        code = self.notebook.read_text("utf-8")
        stems = [path.stem for path in (self.folder / "figures").glob("*.png")]
        return sorted(stems, key=lambda stem: (code.find(f'\\"{stem}\\"'), stem))

    def summary(self, zh):
        """The paragraph under the title: what is measured, in English or in Chinese."""
        cells = json.loads(self.notebook.read_text("utf-8"))["cells"]
        _, english, chinese = ["".join(c["source"]) for c in cells[:1]][0].split("\n\n", 2)
        return (chinese.removeprefix("**中文摘要**") if zh else english).replace("\n", " ").strip()


def finished_runs():
    """Runs of quick, then of full; in each the exercises in order. ValueError names what is not as a run left it."""
    found = []
    for profile in ("quick", "full"):
        for notebook in parameters.notebooks():
            folder = runs.project_root() / "results" / profile / notebook.stem
            if record := runs.read_run(folder):
                if damaged := runs.damaged(folder, record):
                    raise ValueError(f"{folder}: {', '.join(damaged)} is damaged; `lab run` makes it anew")
                found.append(Run(notebook, profile, folder, record))
    return found
