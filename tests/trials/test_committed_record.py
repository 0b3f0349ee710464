"""What must hold of recorded numbers, whatever they are."""

import math

import pytest

from lab import files
from lab.files import project_root
from lab.trials.rows import canonical, of_body
from lab.trials.store import File

LABELS = {"machine", "arithmetic", "device", "threads", "torch", "python", "commit", "date"}

FILES = sorted((project_root() / "results" / "record").glob("*.jsonl"))
SHARES = ("accuracy", "exact", "share")  # columns of these names, or that end so, lie within [0, 1]
each_file = pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)


@each_file
def test_every_row_says_who_made_it_and_from_what(path):
    file = File(path, strict=True)
    assert file.trials and path.stem in {notebook.stem for notebook in files.notebooks()}
    for run in file.runs.values():
        assert LABELS <= run.keys() and len(run["commit"]) == 40
    for body in file.trials:
        assert body["labels"] and body["parts"] and body["seconds"] > 0
        assert all(not name.startswith("/") for name in body["data"]), "a path of one machine"


@each_file
def test_identities_over_all_rows(path):
    batches = {}
    for body in File(path).trials:
        rows = of_body(body)
        assert len(rows) == body["n"]
        steps, losses = [step for step, _ in body["curve"]], [loss for _, loss in body["curve"]]
        assert steps == sorted(set(steps)) and steps[:1] in ([], [0])
        for row in rows:
            for name, value in row.items():
                if name.split("_")[-1] in SHARES and value is not None:
                    assert 0 <= value <= 1, (body["parameters"], name)
            if row.get("diverged") is False and row.get("training_loss") is not None:
                assert math.isfinite(row["training_loss"]) and None not in losses
            if body["curve"] and "data_hash" in row:
                same = [row["data_hash"], body["parameters"].get("seed"), body["parameters"].get("batch")]
                assert batches.setdefault(canonical(same), body["batch"]) == body["batch"], "equal data, equal batch"
