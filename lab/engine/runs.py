"""Where things are, and how they are written: never by halves.

results/PROFILE/NN_slug/  notebook.ipynb  parameters.yaml  run.json  verdicts.csv  tables/*.csv  figures/*.png, *.svg
results/PROFILE/          claims.csv  README.md
results/.trials/          the trial store
"""

import contextlib
import hashlib
import json
import os
import tempfile
from pathlib import Path


def project_root():
    """The checkout that this package lives in: the folder of notebooks/, experiments/ and results/."""
    return Path(__file__).resolve().parents[2]


def inside_project(path):
    """The absolute form of a results folder given relative to the project. ValueError outside the folder results/."""
    root = project_root() / "results"
    resolved = (project_root() / path).resolve()
    if not resolved.is_relative_to(root.resolve()):
        raise ValueError(f"{str(path)!r} lies outside the project's results; allowed are results and folders below it")
    return resolved


def trial_store():
    return Path(os.environ.get("LAB_STORE") or project_root() / "results" / ".trials")


@contextlib.contextmanager
def replacing(path):
    """A temporary path beside `path` that takes its place when the block ends well, and vanishes when it does not."""
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


def file_hashes(folder):
    """{relative path: sha256} of what a run produced, run.json aside, and the SVG of each PNG, which git leaves out."""
    files = sorted(p for p in Path(folder).rglob("*") if p.is_file() and p.name != "run.json" and p.suffix != ".svg")
    return {p.relative_to(folder).as_posix(): hashlib.sha256(p.read_bytes()).hexdigest() for p in files}


def damaged(folder, run):
    """Names of the files that are not as the run left them."""
    left, there = run.get("files", {}), file_hashes(folder)
    return sorted(name for name in left | there if left.get(name) != there.get(name))


def write_run(folder, run):
    """run.json: what is told of a run, the checksums of its files, and the checksum of it all."""
    run = run | {"files": file_hashes(folder)}
    sealed = {"sha256": text_hash(json.dumps(run))} | run
    write_text(Path(folder) / "run.json", json.dumps(sealed, indent=1, ensure_ascii=False))


def read_run(folder):
    """run.json of a finished run, or None when there is none or it is damaged: an unfinished run."""
    try:
        run = json.loads((Path(folder) / "run.json").read_text("utf-8"))
        seal = run.pop("sha256", None)  # None: from before runs were sealed
    except (OSError, ValueError, AttributeError):
        return None
    return run if seal in (None, text_hash(json.dumps(run))) else None
