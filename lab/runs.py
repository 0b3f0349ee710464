"""The folders of runs, writing files all at once, and the run file with a notebook's options.

results/runs/PROFILE/NN_slug/       a run by `lab run`:
                                    notebook.ipynb  parameters.yaml  run.json  verdicts.csv
                                    tables/*.csv  figures/*.png, *.svg
results/runs/PROFILE/NN_slug-…/     a run by `lab run` with other parameters than the profile's
results/PROFILE/NN_slug/            a published run: git holds it, and only `lab publish` writes it
results/interactive/NN_slug/        a run by hand; NN_slug.1, .2 and .3 are the runs before it
results/.running/                   runs that are not complete
results/.trials/                    the trial store
"""

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
from pathlib import Path

import psutil
from pydantic import BaseModel, ConfigDict, Field

BAR = "{desc}: {n}/{total} trials [{elapsed}<{remaining}]"
CHECKOUT = Path(__file__).resolve().parents[1]  # the folder that holds the package


def project_root():
    """The folder of notebooks/, experiments/ and results/: the checkout that holds this package.

    Where the package is installed without a checkout, it is the working folder, which has no
    lessons. The environment variable LAB_PROJECT, which kernels and workers inherit, overrides it.
    """
    checkout = CHECKOUT if (CHECKOUT / "notebooks").is_dir() else Path.cwd()
    return Path(os.environ.get("LAB_PROJECT") or checkout)


def place_of_run(profile, name, results=None):
    """The folder of a run by `lab run`, named such as 04_head_count or 04_head_count-seeds-10."""
    return (results or project_root() / "results") / "runs" / (profile or "own") / name


def published(profile, stem):
    """The folder for the published run of a notebook; it may not exist."""
    return project_root() / "results" / profile / stem


def latest(profile, stem):
    """The folder of a notebook's finished run on this machine, else of its published run."""
    mine = place_of_run(profile, stem)
    return mine if read_run(mine) else published(profile, stem)


def shown(path):
    """A path to print: relative to the project if it lies inside, else absolute."""
    path, root = Path(path).resolve(), project_root()
    return path.relative_to(root).as_posix() if path.is_relative_to(root) else str(path)


def own_words(own):
    """The parameters of a run that differ from the profile's, in words; "" where none differs."""
    if not own:
        return ""
    return "own parameters: " + ", ".join(f"{name} {value}" for name, value in own.items())


# The run file


class Options(BaseModel):
    """The options that the runner passes to a notebook besides its parameters.

    A notebook that is run by hand uses the defaults.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    jobs: int = 0  # trials at once; 0: as many as cores
    device: str = "auto"
    cluster: str = ""  # address of a Dask scheduler
    # This machine's trials.
    store: Path = Field(default_factory=lambda: project_root() / "results" / ".trials")
    record: list[Path] = Field(default_factory=lambda: [project_root() / "results" / "record"])
    fresh: bool = False
    headless: bool = False  # True shows no sliders
    progress: Path | None = None  # file that a sweep writes its progress to
    own: dict = {}  # the parameters that differ from the profile's
    notebook: Path | None = None  # the notebook that runs; None: the one that reads the options
    place: str = ""  # the folder of the results when the run is complete

    def write(self, folder):
        """Write the run file into `folder`, which the notebook gets as its parameter `results`."""
        write_text(Path(folder) / "options.json", self.model_dump_json(indent=1))


def read_options(folder):
    """The `Options` of the run file in a folder, or the defaults where there is none.

    Raises ValueError where the file cannot be read.
    """
    path = Path(folder) / "options.json"
    return Options.model_validate_json(path.read_text("utf-8")) if path.exists() else Options()


# Writing


def put(aside, final, keep=0):
    """Move the complete run `aside` to `final`; the last `keep` runs become final.1, final.2, …"""
    final.parent.mkdir(parents=True, exist_ok=True)
    earlier = [final, *(final.with_name(f"{final.name}.{i}") for i in range(1, keep + 1))]
    last = Path(tempfile.mkdtemp(dir=aside.parent, prefix=".replaced-"))
    if earlier[-1].exists():
        os.replace(earlier[-1], last)
    for newer, older in zip(earlier[-2::-1], earlier[:0:-1], strict=True):
        if newer.exists():
            os.replace(newer, older)
    os.replace(aside, final)
    shutil.rmtree(last)


def new_folder(parent, name):
    """Create and return a folder in `parent` for an unfinished run of this process."""
    parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(dir=parent, prefix=f"{name}-{os.getpid()}-"))
    folder.chmod(0o755)
    return folder


def clear(parent, name):
    """Remove the folders that `new_folder` made in `parent` for this process and for ended ones."""
    for folder in parent.glob(f"{name}-*-*"):
        process = folder.name.removeprefix(name).split("-")[1]
        if not process.isdigit():
            continue
        if int(process) == os.getpid() or not psutil.pid_exists(int(process)):
            shutil.rmtree(folder, ignore_errors=True)


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


def text_hash(text):
    return hashlib.sha256(text.encode()).hexdigest()


def write_run(folder, run):
    """Write the dict `run` to run.json, the last file of a run: its folder is complete now."""
    write_text(Path(folder) / "run.json", json.dumps(run, indent=1, ensure_ascii=False))


def read_run(folder):
    """The dict in a finished run's run.json; None where the file is missing or cannot be read."""
    try:
        run = json.loads((Path(folder) / "run.json").read_text("utf-8"))
    except (OSError, ValueError):
        return None
    return run if isinstance(run, dict) else None
