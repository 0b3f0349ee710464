"""What a run will do is settled before it starts: parameters, folder, name, and what must stay."""

import nbformat
import pytest

from lab.engine import batch, parameters, runs
from lab.engine.runs import project_root

NAMES = [notebook.stem for notebook in parameters.notebooks()]
FIRST = NAMES[0]
SEEDS = parameters.of_profile(parameters.notebooks()[0], "quick")["seeds"]


def planned(folder, *names, profile="quick", **options):
    (job,) = batch.plan(names or [FIRST], profile, folder, **options)
    return job


def finish(job):
    """What the run of a job leaves, as far as the next plan asks."""
    job.folder.mkdir(parents=True)
    runs.write_run(job.folder, {"profile": job.profile, "own_parameters": job.own, "parameters": job.parameters})


@pytest.mark.parametrize("given, profile, name", [
    ({}, "quick", None),
    ({"seeds": SEEDS}, "quick", None),
    ({"seeds": SEEDS + 1}, "quick", f"seeds-{SEEDS + 1}"),
    ({"seeds": SEEDS + 1}, "smoke", f"smoke-seeds-{SEEDS + 1}"),
    ({"seeds": SEEDS + 1, "heads": [1, 2]}, "quick", f"heads-1-2-seeds-{SEEDS + 1}"),
], ids=str)  # fmt: skip
def test_a_run_of_ones_own_parameters_has_a_folder_of_its_own(given, profile, name, tmp_path):
    job = planned(tmp_path, profile=profile, overrides=given)
    assert job.name == name
    if name is None:
        assert job.folder == tmp_path / profile / FIRST and job.own == {}
    else:
        assert job.folder == tmp_path / "runs" / f"{FIRST}-{name}" and job.own == given
    assert planned(tmp_path, overrides=given, name="mine").folder == tmp_path / "runs" / f"{FIRST}-mine"


def test_names_are_short_and_differ(tmp_path):
    values = [{"lengths": list(range(64, 64 + n))} for n in (4, 20, 21)]
    names = [planned(tmp_path, overrides=given).name for given in values]
    assert names[0] == "lengths-64-65-66-67" and len(set(names)) == 3 and max(map(len, names)) <= 40
    said = [batch.name_of({"corpus": text}, "quick") for text in ("a/b", "a b", "a-b")]
    assert len(set(said)) == 3 and not any("/" in name or " " in name for name in said)


def test_the_same_name_for_other_parameters_is_refused(tmp_path):
    mine = planned(tmp_path, overrides={"seeds": SEEDS + 1}, name="mine")
    finish(mine)
    assert planned(tmp_path, overrides={"seeds": SEEDS + 1}, name="mine") == mine
    for other in ({"overrides": {"seeds": SEEDS + 2}}, {"overrides": {"seeds": SEEDS + 1}, "profile": "smoke"}, {}):
        with pytest.raises(parameters.Refused, match=f"holds a run of quick with own parameters: seeds {SEEDS + 1}"):
            planned(tmp_path, name="mine", **other)
    for wrong in ("../mine", ".mine", "a b", ""):
        with pytest.raises(parameters.Refused, match="--name"):
            planned(tmp_path, name=wrong)


def test_notebooks_of_ones_own_do_not_replace_each_other(tmp_path):
    books = [tmp_path / part / "mine.ipynb" for part in ("a", "b")]
    for path in books:
        path.parent.mkdir()
        nbformat.write(nbformat.v4.new_notebook(), path)
    first = planned(tmp_path, str(books[0]))
    assert first.folder == tmp_path / "runs" / "mine" and first.foreign and first.to_do()
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
    own = planned(tmp_path, "1.2", overrides={"corpus": "text.txt", "text": "text"}).own
    assert own == {"corpus": str(tmp_path / "text.txt"), "text": "text"}


def test_parameters_from_the_command_line_win_over_the_file_and_the_file_over_the_profile(tmp_path):
    def values(**options):
        return planned(tmp_path, profile="smoke", **options).parameters

    seeds = values()["seeds"]
    file = tmp_path / "mine.yaml"
    file.write_text(f"seeds: {seeds + 1}\n")
    assert values(file=file)["seeds"] == seeds + 1
    assert values(file=file, overrides={"seeds": seeds + 2}) == values() | {"seeds": seeds + 2}
    everything = batch.plan([], "quick", project_root() / "results")
    assert [job.notebook.stem for job in everything] == NAMES
    assert len(batch.plan([FIRST, FIRST[:2]], "quick", project_root() / "results")) == 1, "named twice, run once"
