"""What must hold of recorded numbers, whatever they are; and the tables that follow from them are those committed."""

import ast
import json
import math

import pandas as pd
import pytest
from typer.testing import CliRunner

from lab.cli import app
from lab.engine import parameters, store
from lab.engine.record import LABELS, File
from lab.engine.runs import project_root
from lab.ledger.rests import sweeps_behind

FILES = sorted((project_root() / "results" / "record").glob("*.jsonl"))
SHARES = ("accuracy", "exact", "share")  # columns of these names, or that end so, lie within [0, 1]
each_file = pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)


@each_file
def test_every_row_says_who_made_it_and_from_what(path):
    file = File(path)
    assert file.trials and path.stem in {notebook.stem for notebook in parameters.notebooks()}
    for run in file.runs.values():
        assert set(LABELS) <= run.keys() and len(run["commit"]) == 40
    for body in file.trials:
        assert body["run"] in file.runs and file.codes[body["code"]]["parts"] and body["seconds"] > 0
        assert all(not name.startswith("/") for name in body["data"]), "a path of one machine"


@each_file
def test_identities_over_all_rows(path):
    batches = {}
    for body in File(path).trials:
        rows = store.rows(body)
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
                assert batches.setdefault(store.canonical(same), body["batch"]) == body["batch"], (
                    "equal data, equal batch"
                )


def timed(notebook):
    """Names of the trials that a notebook times."""
    for cell in json.loads(notebook.read_text("utf-8"))["cells"]:
        for node in ast.walk(ast.parse("".join(cell["source"]))) if cell["cell_type"] == "code" else ():
            if isinstance(node, ast.Call) and any(k.arg == "timing" for k in node.keywords):
                yield node.args[0].id


@pytest.mark.slow
@each_file
def test_the_record_alone_gives_the_committed_tables(path, tmp_path):
    """No row is stale, and nothing is in a table that the record, or an exact computation, does not give."""
    done = CliRunner().invoke(app, ["run", path.stem, "--recorded-only", "--check", "0", "--results", str(tmp_path)])
    assert done.exit_code == 0, done.output
    notebook = parameters.notebook_of(path.stem)
    clocks, behind = set(timed(notebook)), sweeps_behind(notebook)
    made, committed = (sorted((root / "quick" / path.stem / "tables").glob("*.csv"))
                       for root in (tmp_path, project_root() / "results"))  # fmt: skip
    assert [table.name for table in made] == [table.name for table in committed]
    for new, old in zip(made, committed, strict=True):
        if not clocks & behind.get(f"table {new.stem}", set()):
            exact = {"check_exact": False, "rtol": 1e-9, "atol": 1e-12}  # exact parts follow numpy's rounding
            pd.testing.assert_frame_equal(pd.read_csv(new), pd.read_csv(old), **exact)
