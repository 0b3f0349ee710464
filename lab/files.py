"""Project layout and files.

notebooks/NN_slug.ipynb             lessons
results/runs/PROFILE/NN_slug/       output of `lab run`:
                                    notebook.ipynb run.json answers.csv tables/*.csv figures/*.png
results/runs/PROFILE/NN_slug-…/     output of `lab run` with parameters that differ from the profile
results/quick/NN_slug/              published run, in git; written only by `lab publish`
results/interactive/NN_slug/        last interactive run
results/record/NN_slug/             rows that published runs used, in git; see CONTRIBUTING.md
results/.trials/                    local cache of trials
"""

import json
import os
import re
import subprocess
import tempfile
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1]  # the repository
CODE = ("lab", "notebooks", "experiments", "pyproject.toml")  # paths that results depend on


class Refused(ValueError):
    """Raised for invalid input; the message names the error and the valid input."""

    def _render_traceback_(self):
        """IPython hook: show the message without a traceback."""
        return [str(self)]


def project_root():
    """The folder of notebooks/, experiments/ and results/: this checkout, or LAB_PROJECT if set."""
    return Path(os.environ.get("LAB_PROJECT") or CHECKOUT)


def shown(path):
    """Format a path for printing: relative to the project root if possible, else absolute."""
    path, root = Path(path).resolve(), project_root()
    return path.relative_to(root).as_posix() if path.is_relative_to(root) else str(path)


# Notebooks


def notebooks():
    """The paths of all lessons, the numbered notebooks, in order."""
    return sorted((project_root() / "notebooks").glob("[0-9][0-9]_*.ipynb"))


def notebook_of(name):
    """The path of a notebook, given as 1.4, 4, 04, 04_head_count, head_count or a path.

    Raises Refused if there is no such notebook; the message lists the valid names.
    """
    for path in notebooks():
        number = int(path.stem[:2])
        if name in (f"1.{number}", str(number), path.stem[:2], path.stem, path.stem[3:]):
            return path
    if name.endswith(".ipynb") and os.path.isfile(name):
        return Path(name).resolve()
    names = ", ".join(f"{exercise_of(path)} ({path.stem})" for path in notebooks())
    raise Refused(
        f"{name!r} is neither an exercise nor the path of a notebook; choose from {names}"
    )


def exercise_of(notebook):
    """The exercise of a lesson, such as 1.4; the stem of any other notebook."""
    return f"1.{int(notebook.stem[:2])}" if notebook in notebooks() else notebook.stem


def cells_of(notebook):
    """[(cell type, tags, source)] of all cells. Raises Refused if the file is not a notebook."""
    try:
        cells = json.loads(notebook.read_text("utf-8"))["cells"]
        return [
            (c["cell_type"], c["metadata"].get("tags", ()), "".join(c["source"])) for c in cells
        ]
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise Refused(f"{notebook}: cannot be read as a notebook: {error!r}") from None


def title_of(notebook):
    """(title, question) of a notebook: its first heading and the next paragraph."""
    texts = [source for kind, _, source in cells_of(notebook) if kind == "markdown"]
    head = next((text for text in texts if text.startswith("#")), f"# {notebook.stem}")
    heading, _, below = head.partition("\n\n")
    question = " ".join(below.partition("<details>")[0].split("\n\n")[0].split())
    return heading.splitlines()[0].lstrip("# "), question.strip("*")


def answer_of(notebook):
    """The English text of the Markdown cell tagged `answer`; "" if there is none."""
    for kind, tags, source in cells_of(notebook):
        if kind == "markdown" and "answer" in tags:
            english = " ".join(re.sub(r"(?s)<details>.*", "", source).split())
            return english.removeprefix("**In short.** ")
    return ""


def prose_of(notebook):
    """All Markdown cells of a notebook, joined by newlines."""
    return "\n".join(source for kind, _, source in cells_of(notebook) if kind == "markdown")


# Writing


def put(aside, final):
    """Replace the folder `final` with the folder `aside`."""
    final.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=final.parent, prefix=".replaced-") as before:
        if final.exists():
            os.replace(final, Path(before) / final.name)
        os.replace(aside, final)


def write_text(path, text):
    """Write a text file, in a new folder if necessary."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, "utf-8")


def write_table(path, frame):
    """Write a DataFrame as CSV, with floats at full precision."""
    path.parent.mkdir(parents=True, exist_ok=True)
    frame.to_csv(path, index=False, lineterminator="\n")


def write_run(folder, run):
    """Write the dict `run` to run.json."""
    write_text(folder / "run.json", json.dumps(run, indent=1, ensure_ascii=False))


def read_run(folder):
    """The dict in run.json; None if the file is missing or invalid."""
    try:
        return json.loads((folder / "run.json").read_text("utf-8"))
    except (OSError, ValueError):
        return None


def latest(profile, stem):
    """The folder of a notebook's local run if there is one, else of its published run."""
    results = project_root() / "results"
    local = results / "runs" / profile / stem
    return local if read_run(local) else results / profile / stem


# Git


def commit():
    """{"commit": hash, "changes": whether the paths in `CODE` have uncommitted changes}.

    The values are "" and None without git.
    """
    git = ["git", "-C", project_root()]
    options = {"capture_output": True, "text": True, "check": True}
    try:
        head = subprocess.run([*git, "rev-parse", "HEAD"], **options).stdout.strip()
        changes = subprocess.run([*git, "status", "--porcelain", "--", *CODE], **options).stdout
    except (OSError, subprocess.CalledProcessError):
        return {"commit": "", "changes": None}
    return {"commit": head, "changes": bool(changes)}
