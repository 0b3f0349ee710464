"""What a run will do is settled before it starts: parameters, folder, name, and what must stay."""

import nbformat
import pytest
from made import DICE

from lab.tools import batch
from lab.trials import parameters, runs

pytestmark = pytest.mark.usefixtures("project")


def planned(folder, *names, profile="quick", **options):
    (job,) = batch.plan(names or [DICE], profile, folder, **options)
    return job


def finish(job):
    """What the run of a job leaves, as far as the next plan asks."""
    job.folder.mkdir(parents=True)
    runs.write_run(job.folder, {"profile": job.profile, "own_parameters": job.own, "parameters": job.parameters})


@pytest.mark.parametrize("given, profile, name", [
    ({}, "quick", ""),
    ({"seeds": 4}, "quick", ""),
    ({"seeds": 5}, "quick", "seeds-5"),
    ({"seeds": 5}, "smoke", "seeds-5"),
    ({"seeds": 5, "sides": [2, 6]}, "quick", "seeds-5-sides-2-6"),
], ids=str)  # fmt: skip
def test_a_run_of_ones_own_parameters_has_a_folder_of_its_own(given, profile, name, tmp_path):
    job = planned(tmp_path, profile=profile, overrides=given)
    assert job.usual == (not name) and job.own == (given if name else {})
    assert job.folder == tmp_path / "runs" / profile / "-".join(filter(None, [DICE, name]))


@pytest.mark.parametrize("recorded, again", [(0, None), (3, "trials of its run came from the record")])
def test_a_run_with_trials_from_the_record_is_not_done_where_all_is_to_be_fresh(recorded, again, tmp_path):
    finish(job := planned(tmp_path))
    run = runs.read_run(job.folder) | {"fingerprint": job.fingerprint, "record": {"recorded": recorded}}
    runs.write_run(job.folder, run)
    assert job.to_do() is None and job.to_do(fresh=True) == again


def test_names_are_short_and_differ(tmp_path):
    values = [{"sides": list(range(64, 64 + 2 * n, 2))} for n in (4, 20, 21)]
    names = [planned(tmp_path, overrides=given).folder.name.removeprefix(f"{DICE}-") for given in values]
    assert names[0] == "sides-64-66-68-70" and len(set(names)) == 3 and max(map(len, names)) <= 40
    said = [batch.name_of({"text": text}) for text in ("a/b", "a b", "a-b")]
    assert len(set(said)) == 3 and not any("/" in name or " " in name for name in said)


def test_notebooks_of_ones_own_do_not_replace_each_other(tmp_path):
    books = [tmp_path / part / "mine.ipynb" for part in ("a", "b")]
    for path in books:
        path.parent.mkdir()
        nbformat.write(nbformat.v4.new_notebook(), path)
    first = planned(tmp_path, str(books[0]))
    assert first.folder == tmp_path / "runs" / "own" / "mine" and first.foreign and first.to_do()
    with pytest.raises(parameters.Refused, match="two notebooks"):
        batch.plan(list(map(str, books)), "quick", tmp_path)
    first.folder.mkdir(parents=True)
    there = {"profile": "", "own_parameters": {}, "parameters": {}, "notebook": str(books[0])}
    runs.write_run(first.folder, there)
    assert planned(tmp_path, str(books[0])) == first
    with pytest.raises(parameters.Refused, match="the run of another notebook"):
        planned(tmp_path, str(books[1]))


def test_a_path_on_the_command_line_is_seen_from_where_it_was_given(tmp_path, monkeypatch):
    (tmp_path / "text.txt").write_text("some text")
    monkeypatch.chdir(tmp_path)
    assert planned(tmp_path, overrides={"text": "text.txt"}).own == {"text": str(tmp_path / "text.txt")}
    assert batch.from_anywhere("text") == "text", "a word"


def test_parameters_from_the_command_line_win_over_the_file_and_the_file_over_the_profile(tmp_path):
    def values(**options):
        return planned(tmp_path, profile="smoke", **options).parameters

    seeds = values()["seeds"]
    file = tmp_path / "mine.yaml"
    file.write_text(f"seeds: {seeds + 1}\n")
    assert values(file=file)["seeds"] == seeds + 1
    assert values(file=file, overrides={"seeds": seeds + 2}) == values() | {"seeds": seeds + 2}
    assert [job.notebook for job in batch.plan([], "quick", tmp_path)] == parameters.notebooks()
    assert len(batch.plan([DICE, DICE[:2]], "quick", tmp_path)) == 1, "named twice, run once"


def test_jobs_are_refused_before_anything_starts(tmp_path):
    with pytest.raises(parameters.Refused, match="dice"):
        planned(tmp_path, profile="smoke", overrides={"dice": -1})
    assert not list(tmp_path.iterdir())
