"""Where things are, how they are written (never by halves), and the run file that tells a notebook
how it is run.

results/runs/PROFILE/NN_slug/       what `lab run` leaves: notebook.ipynb  parameters.yaml  run.json  verdicts.csv
                                    tables/*.csv  figures/*.png, *.svg
results/runs/PROFILE/NN_slug-…/     the same of other parameters than the profile's
results/PROFILE/NN_slug/            a published run: git holds it, and only `lab publish` writes it
results/interactive/NN_slug/        a run by hand; NN_slug.1, .2 and .3 are those before it
results/.running/                   runs that are not complete
results/.trials/                    the trial store
"""

import contextlib
import hashlib
import io
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path

import psutil
from pydantic import BaseModel, ConfigDict, Field
from tqdm import tqdm

BAR = "{desc}: {n}/{total} trials [{elapsed}<{remaining}]"
CHECKOUT = (
    Path(__file__).resolve().parents[2]
)  # where the package lies, with what it was tested with


def project_root():
    """The folder of notebooks/, experiments/ and results/: the checkout that this package lives in.

    Where the package is installed alone, it is the working folder: there are no lessons, and
    results go there. LAB_PROJECT in the environment, which kernels and workers inherit, names
    another.
    """
    checkout = CHECKOUT if (CHECKOUT / "notebooks").is_dir() else Path.cwd()
    return Path(os.environ.get("LAB_PROJECT") or checkout)


def place_of_run(profile, name, results=None):
    """Where `lab run` leaves a run of this profile, and name, such as 04_head_count or
    04_head_count-seeds-10.
    """
    return (results or project_root() / "results") / "runs" / (profile or "own") / name


def published(profile, stem):
    """Where the published run of a notebook stands, if there is one."""
    return project_root() / "results" / profile / stem


def homes(profile):
    """The folders that hold the runs of a profile: the published ones, then those of this machine."""
    return project_root() / "results" / profile, project_root() / "results" / "runs" / profile


def latest(profile, stem):
    """The folder of a notebook's run on this machine; that of the published one where none has
    finished here.
    """
    mine = place_of_run(profile, stem)
    return mine if read_run(mine) else published(profile, stem)


def shown(path):
    """A path as people read it: from the project where it lies inside, else whole."""
    path, root = Path(path).resolve(), project_root()
    return path.relative_to(root).as_posix() if path.is_relative_to(root) else str(path)


def own_words(own):
    """What is told of a run's own parameters, "" where they are all the profile's."""
    return (
        "own parameters: " + ", ".join(f"{name} {value}" for name, value in own.items())
        if own
        else ""
    )


# The run file


class Options(BaseModel):
    """How a notebook is run: what the runner tells it besides its parameters.

    By hand, the defaults hold.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    jobs: int = 0  # trials at once; 0: one a core
    device: str = "auto"
    cluster: str = ""  # address of a Dask scheduler
    store: Path = Field(
        default_factory=lambda: project_root() / "results" / ".trials"
    )  # this machine's trials
    record: list[Path] = Field(default_factory=lambda: [project_root() / "results" / "record"])
    fresh: bool = False
    recorded_only: bool = False
    deadline: float | None = None  # unix time at which to end
    headless: bool = False  # nobody looks on: no forms, no sliders
    progress: Path | None = None  # where a sweep tells how far it is
    own: dict = {}  # the parameters that are not the profile's
    language: str = ""  # as LAB_LANGUAGE in the environment says
    notebook: Path | None = None  # what is run; None: whatever calls
    place: str = ""  # where the results will stand when the run is complete

    def write(self, folder):
        """Write the run file into the folder that the notebook is given as its parameter `results`."""
        write_text(Path(folder) / "options.json", self.model_dump_json(indent=1))


def read_options(folder):
    """The run file in a folder, or the defaults where there is none.

    ValueError where it cannot be read.
    """
    path = Path(folder) / "options.json"
    return Options.model_validate_json(path.read_text("utf-8")) if path.exists() else Options()


class Progress:
    """A bar of how far a sweep is, which goes when it is done; for the runner its text, in a file.

    Where all trials are known, there is none.
    """

    def __init__(self, name, file=None):
        self.name, self.file, self.bar = name, file, None
        self.ran = 0  # trials that were not known already

    def __call__(self, done, total):
        if self.bar is None and done < total:
            from IPython import get_ipython

            kernel = getattr(get_ipython(), "kernel", None)  # where stderr is red
            out = io.StringIO() if self.file else sys.stdout if kernel else sys.stderr
            options = {"miniters": 1, "mininterval": 0, "smoothing": 0, "leave": False}
            about = {"desc": self.name, "initial": done, "total": total, "bar_format": BAR}
            self.bar = tqdm(file=out, **about, **options)
        if self.bar is None:
            return
        self.ran += done - self.bar.n
        self.bar.update(done - self.bar.n)
        if self.file:
            write_text(self.file, str(self.bar) if done < total else "")
        if done == total:
            self.bar.close()


# Writing


def put(aside, final, keep=0):
    """The complete run in the folder `aside` takes the place of `final`; the last `keep` runs stay
    as final.1, .2, …
    """
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
    """A folder of this process in `parent`."""
    parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(dir=parent, prefix=f"{name}-{os.getpid()}-"))
    folder.chmod(0o755)
    return folder


def clear(parent, name):
    """Remove what unfinished runs left in `parent` by `new_folder`: of this process, and of those
    that have ended.
    """
    for folder in parent.glob(f"{name}-*-*"):
        process = folder.name.removeprefix(name).split("-")[1]
        if process.isdigit() and (
            int(process) == os.getpid() or not psutil.pid_exists(int(process))
        ):
            shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def replacing(path):
    """A temporary path beside `path` that takes its place when the block ends well, and vanishes
    when it does not.
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
    """CSV in long form; missing values are empty. Floats keep every digit."""
    with replacing(path) as temporary:
        frame.to_csv(temporary, index=False, lineterminator="\n")


def text_hash(text):
    return hashlib.sha256(text.encode()).hexdigest()


def write_run(folder, run):
    """run.json, what is told of a run; written last: a folder that has it is complete."""
    write_text(Path(folder) / "run.json", json.dumps(run, indent=1, ensure_ascii=False))


def read_run(folder):
    """run.json of a finished run, or None where there is none or it cannot be read: an unfinished
    run.
    """
    try:
        run = json.loads((Path(folder) / "run.json").read_text("utf-8"))
    except (OSError, ValueError):
        return None
    return run if isinstance(run, dict) else None
