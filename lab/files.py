"""The project's notebooks and folders, and files that are complete or absent.

notebooks/NN_slug.ipynb             the lessons
results/runs/PROFILE/NN_slug/       a run by `lab run`:
                                    notebook.ipynb  run.json  answers.csv  tables/*.csv  figures/*.png
results/runs/PROFILE/NN_slug-…/     a run by `lab run` with other parameters than the profile's
results/PROFILE/NN_slug/            a published run: git holds it, and only `lab publish` writes it
results/interactive/NN_slug/        the last run by hand
results/.trials/                    the trials of this machine
"""

import contextlib
import json
import os
import re
import subprocess
import tempfile
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1]  # the folder that holds the package
CODE = ("lab", "notebooks", "experiments", "pyproject.toml")  # the numbers of a run depend on it
ALONE = (
    "only the package is installed here; the lessons and their claims are in a checkout of "
    "Transformer Lab"
)


class Refused(ValueError):
    """Raised for input that cannot be run; the message says what is wrong and what is allowed."""

    def _render_traceback_(self):
        """The lines that a notebook shows for this error: the message without a traceback."""
        return [str(self)]


def project_root():
    """The folder of notebooks/, experiments/ and results/: the checkout that holds this package.

    Without a checkout it is the working folder, which has no lessons. The environment variable
    LAB_PROJECT, which kernels and workers inherit, overrides it.
    """
    checkout = CHECKOUT if (CHECKOUT / "notebooks").is_dir() else Path.cwd()
    return Path(os.environ.get("LAB_PROJECT") or checkout)


def shown(path):
    """A path to print: relative to the project if it lies inside, else absolute."""
    path, root = Path(path).resolve(), project_root()
    return path.relative_to(root).as_posix() if path.is_relative_to(root) else str(path)


# Notebooks


def notebooks():
    """The paths of all lessons, in their order."""
    return sorted((project_root() / "notebooks").glob("[0-9][0-9]_*.ipynb"))


def notebook_of(name):
    """The path of the notebook called 1.4, 4, 04, 04_head_count or head_count, or at a path.

    Raises Refused where there is none; the message lists the valid names.
    """
    for path in notebooks():
        number = int(path.stem[:2])
        if name in (f"1.{number}", str(number), path.stem[:2], path.stem, path.stem[3:]):
            return path
    if name.endswith(".ipynb") and os.path.isfile(name):
        return Path(name).resolve()
    listed = ", ".join(f"{exercise_of(path)} ({path.stem})" for path in notebooks())
    valid = f"there are {listed}" if listed else ALONE
    raise Refused(f"there is no exercise {name!r}, nor a notebook at such a path; {valid}")


def exercise_of(notebook):
    """The exercise of a lesson, such as 1.4, or the stem of another notebook."""
    return f"1.{int(notebook.stem[:2])}" if notebook in notebooks() else notebook.stem


def cells_of(notebook):
    """[(cell type, tags, source)] of all cells. Raises Refused where the file is no notebook."""
    try:
        cells = json.loads(notebook.read_text("utf-8"))["cells"]
        return [
            (c["cell_type"], c["metadata"].get("tags", ()), "".join(c["source"])) for c in cells
        ]
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise Refused(f"{notebook}: cannot be read as a notebook: {error!r}") from None


def title_of(notebook):
    """(title, question) of a notebook: its first heading and the paragraph below."""
    texts = [source for kind, _, source in cells_of(notebook) if kind == "markdown"]
    head = next((text for text in texts if text.startswith("#")), f"# {notebook.stem}")
    heading, _, below = head.partition("\n\n")
    question = " ".join(below.partition("<details>")[0].split("\n\n")[0].split())
    return heading.splitlines()[0].lstrip("# "), question.strip("*")


def answer_of(notebook):
    """The lesson's answer: the English text of its Markdown cell tagged `answer`; "" without one."""
    for kind, tags, source in cells_of(notebook):
        if kind == "markdown" and "answer" in tags:
            english = " ".join(re.sub(r"(?s)<details>.*", "", source).split())
            return english.removeprefix("**In short.** ")
    return ""


# Writing


def put(aside, final):
    """Move the complete folder `aside` to `final`, in the place of what is there."""
    final.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=final.parent, prefix=".replaced-") as before:
        if final.exists():
            os.replace(final, Path(before) / final.name)
        os.replace(aside, final)


@contextlib.contextmanager
def replacing(path):
    """Yield a temporary path beside `path`.

    The file at that path replaces `path` when the block ends, and is removed when it raises.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=path.suffix)
    os.close(handle)
    try:
        yield Path(name)
        os.chmod(name, 0o644)
        os.replace(name, path)
    finally:
        Path(name).unlink(missing_ok=True)


def write_text(path, text):
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_table(path, frame):
    """Write a DataFrame as CSV; missing values are empty, and floats keep every digit."""
    with replacing(path) as temporary:
        frame.to_csv(temporary, index=False, lineterminator="\n")


def write_run(folder, run):
    """Write the dict `run` to run.json of a run's folder."""
    write_text(Path(folder) / "run.json", json.dumps(run, indent=1, ensure_ascii=False))


def read_run(folder):
    """The dict in a finished run's run.json; None where the file is missing or cannot be read."""
    try:
        run = json.loads((Path(folder) / "run.json").read_text("utf-8"))
    except (OSError, ValueError):
        return None
    return run if isinstance(run, dict) else None


def latest(profile, stem):
    """The folder of a notebook's finished run on this machine, else of its published run."""
    results = project_root() / "results"
    mine = results / "runs" / profile / stem
    return mine if read_run(mine) else results / profile / stem


# Where a run happens


def commit():
    """{"commit": hash, "changes": whether `CODE` differs from it}; "" and None without git."""

    def git(*arguments):
        command = ["git", "-C", str(project_root()), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        return {
            "commit": git("rev-parse", "HEAD"),
            "changes": bool(git("status", "--porcelain", "--", *CODE)),
        }
    except (OSError, subprocess.CalledProcessError):
        return {"commit": "", "changes": None}
