"""Replications run on seeds of their own, and a comparison that was changed after a run is confirmed by them alone.

Of `lab.commands.replicate`.
"""

import json

import pandas as pd
import pytest
from helpers import notebook_with
from small_project import DICE
from typer.testing import CliRunner

from lab.cli import app
from lab.engine import batch, parameters, runs
from lab.engine.record import Record
from lab.ledger import claims, replication
from lab.ledger.replication import BLOCK, confirmed, on_new_seeds
from lab.study import Study

pytestmark = pytest.mark.usefixtures("project")


@pytest.fixture
def planned(tmp_path):
    return lambda **options: on_new_seeds(
        batch.plan([DICE], "quick", tmp_path, options.get("given")), options.get("name")
    )[0]


def finish(job):
    job.folder.mkdir(parents=True)
    runs.write_run(job.folder, {"profile": job.profile, "own_parameters": job.own, "seeds_from": job.seeds_from})


def test_every_replication_has_a_folder_and_a_block_of_seeds_of_its_own(planned, tmp_path):
    first = planned()
    assert first.folder == tmp_path / "runs" / "quick" / f"{DICE}-replication-1" and first.seeds_from == BLOCK
    assert planned() == first, "what was interrupted goes on"
    finish(first)
    second = planned()
    assert (second.name, second.seeds_from) == ("replication-2", 2 * BLOCK)
    assert second.fingerprint != first.fingerprint
    assert planned(given={"seeds": 9}).name == "seeds-9-replication-2"
    finish(planned(name="mine"))
    with pytest.raises(parameters.Refused, match=f"holds a run on the seeds from {2 * BLOCK}.*another --name"):
        planned(name="mine")


def test_seeds_of_the_record_and_of_contributed_replications_are_taken(tmp_path, monkeypatch):
    monkeypatch.setattr("lab.engine.runs.project_root", lambda: tmp_path)
    place = tmp_path / "results" / "machines" / "m" / "runs" / f"{DICE}-replication-2"
    place.mkdir(parents=True)
    runs.write_run(place, {"seeds_from": 2 * BLOCK})
    assert replication.next_number(DICE, tmp_path / "other") == 1
    (tmp_path / "results" / "record").mkdir()
    body = {"trial": "t", "parameters": {"seed": BLOCK + 3}, "code": "c", "kinds": {}, "data": {}}
    (tmp_path / "results" / "record" / f"{DICE}.jsonl").write_text(json.dumps(body) + "\n")
    assert replication.next_number(DICE, tmp_path / "other") == 3


def drawn(seed: int, arm="a"):
    return {"value": float(seed)}


def exact(arm):
    return {"value": 1.0}


def test_every_trial_gets_a_new_seed_and_the_notebook_counts_as_ever(tmp_path, monkeypatch):
    monkeypatch.setattr("lab.study.display", lambda *a, **k: None)
    notebook = parameters.notebook_of("1.1")
    runs.Options(jobs=1, store=tmp_path / "s", notebook=notebook, seeds_from=BLOCK, record=[]).write(tmp_path)
    study = Study("1.1", {"results": str(tmp_path)})
    table = study.sweep(drawn, {"seed": [0, 1], "arm": ["a", "b"]})
    assert table.seed.tolist() == [0, 0, 1, 1] and table.value.tolist() == [BLOCK, BLOCK, BLOCK + 1, BLOCK + 1]
    assert study.sweep(exact, {"arm": ["a"]}).value.tolist() == [1.0]
    assert {each.body["parameters"].get("seed") for each in study.used} == {BLOCK, BLOCK + 1, None}


def test_a_changed_comparison_is_confirmed_by_replications_that_agree():
    plain = claims.ledger()["dice-more-sides"]
    changed = plain.prediction.model_copy(update={"revised": "before: 12 sides minus 4; refuted"})
    revised = plain.model_copy(update={"prediction": changed})

    def contributed(*verdicts, **fields):
        row = {"id": revised.id, "profile": "quick", "seeds_from": BLOCK, "threshold": str(revised.prediction)}
        return pd.DataFrame([row | {"verdict": word} | fields for word in verdicts or ("none",)])

    assert confirmed(revised, "supported", "quick", contributed("supported", "supported")) == "confirmed"
    for found in (
        contributed(),
        contributed("refuted"),
        contributed("supported", "inconclusive"),
        contributed("supported", threshold="another > 0"),
        contributed("supported", profile="full"),
        contributed("supported", seeds_from=0),
    ):
        assert confirmed(revised, "supported", "quick", found) == "not confirmed"
    assert confirmed(revised, "pending", "quick", contributed("pending")) == ""
    assert confirmed(plain, "supported", "quick", contributed("supported")) == ""


MINE = """
import lab

def drawn(seed: int):
    return {"value": float(seed)}

study = lab.study(globals())
study.table("found", study.sweep(drawn, {"seed": list(range(seeds))}))
study.finish()
"""


@pytest.mark.slow
def test_a_notebook_is_replicated_from_the_command_line(tmp_path, monkeypatch):
    monkeypatch.setattr("lab.commands.replicate.home", lambda: tmp_path / "results")
    path = notebook_with(tmp_path, parameters="seeds = 2", run=MINE)
    done = CliRunner().invoke(app, ["replicate", str(path), "--jobs", "1", "-p", "seeds=3"])
    assert done.exit_code == 0, done.output
    folder = tmp_path / "results" / "runs" / "own" / "mine-seeds-3-replication-1"
    found = pd.read_csv(folder / "tables" / "found.csv")
    assert found.seed.tolist() == [0, 1, 2] and found.value.tolist() == [BLOCK, BLOCK + 1, BLOCK + 2]
    assert runs.read_run(folder)["seeds_from"] == BLOCK and Record([]).files == []


def test_what_cannot_be_replicated_is_refused():
    for arguments, named in ((["1.99"], "1.99"), (["1.1", "-p", "nonsuch=1"], "nonsuch"), (["--device", "tpu"], "tpu")):
        done = CliRunner().invoke(app, ["replicate", *arguments])
        assert done.exit_code == 2 and named in done.output
