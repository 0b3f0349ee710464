"""What machines contribute: timings of clean, finished runs, one verdict a machine, told where machines differ.

Of `lab.commands.machines`.
"""

from types import SimpleNamespace

import made
import pytest
from typer.testing import CliRunner

from lab.book import board
from lab.cli import app
from lab.engine import runs
from lab.ledger import claims, machines
from lab.ledger.claims import Verdict
from lab.ledger.machines import CannotContribute

TIMED, OTHER = "one-is-faster", "one-is-smaller"
RUN = {
    "machine": "AMD EPYC 7B13 Processor, 2 cores, Linux x86_64",
    "parameters": {"seeds": 5, "results": "/home/somebody/x"},
}


def lab(*arguments):
    return CliRunner().invoke(app, [str(a) for a in arguments])


@pytest.fixture
def project(tmp_path, monkeypatch):
    return made.project(tmp_path, monkeypatch)


@pytest.fixture
def finish(project):
    """finish(word, **run): a run of a timing and another claim, in results/runs of the project; its folder."""

    def finish(word="supported", **run):
        said = [made.verdict(name, word, low=1.2, high=1.8, table=name) for name in (TIMED, OTHER)]
        return made.finish(project, *said, place="runs/quick/02_second", **RUN | run)

    return finish


def test_timings_of_a_run_are_kept_with_their_tables_and_nothing_of_the_person(finish, project):
    place = machines.contribute(finish())
    assert place == project / "results" / "machines" / "amd-epyc-7b13-2-cores" / "quick" / "02_second"
    assert [path.name for path in (place / "tables").iterdir()] == [f"{TIMED}.csv"]
    assert "somebody" not in (place / "run.json").read_text() and runs.read_run(place)["commit"] == "c0ffee"
    assert not list((project / "results" / "machines").rglob(".*"))
    (row,) = machines.contributed().to_dict("records")
    assert (row["id"], row["machine"], row["figure"]) == (TIMED, "amd-epyc-7b13-2-cores", "")


REFUSED = {
    "smoke": ({"profile": "smoke"}, "smoke judges nothing"),
    "an unclean tree": ({"changes": True}, "commit, then run"),
    "no commit": ({"changes": None}, "commit, then run"),
    "own parameters": ({"own_parameters": {"seeds": 9}}, "seeds 9: another comparison"),
    "a notebook of one's own": ({"notebook": "/x/mine.ipynb"}, "runs of the lessons"),
    "nothing judged": ({"word": "not run at these values"}, "judges no timing"),
}


@pytest.mark.parametrize("run, said", REFUSED.values(), ids=REFUSED)
def test_what_says_nothing_of_a_machine_is_refused_in_words(run, said, finish, project):
    folder = finish(**run)
    with pytest.raises(CannotContribute, match=said):
        machines.contribute(folder)
    done = lab("machines", "add", folder)
    assert done.exit_code == 2 and said in done.output
    assert not (project / "results" / "machines").exists()


def test_an_unfinished_and_a_damaged_run_are_refused(finish):
    folder = finish()
    (folder / "tables" / f"{TIMED}.csv").write_text("changed")
    with pytest.raises(CannotContribute, match="not as the run left it"):
        machines.contribute(folder)
    (folder / "run.json").unlink()
    with pytest.raises(CannotContribute, match="no finished run"):
        machines.contribute(folder)


def test_a_name_is_readable_and_belongs_to_one_machine(finish):
    for machine, card, name in (
        (
            "Intel(R) Xeon(R) Platinum 8481C CPU @ 2.70GHz, 8 cores, Linux x86_64",
            "",
            "intel-xeon-platinum-8481c-8-cores",
        ),
        ("Apple M2, 8 cores, Darwin arm64", "", "apple-m2-8-cores"),
        ("AMD EPYC, 16 cores, Linux x86_64", "NVIDIA H100 80GB HBM3", "nvidia-h100-80gb-hbm3"),
    ):
        assert machines.name_of({"machine": machine, "card": card}) == name
    machines.contribute(finish(), "mine")
    machines.contribute(finish("refuted"), "mine")
    assert list(machines.contributed().verdict) == ["refuted"], "a later run of the machine takes the earlier's place"
    with pytest.raises(CannotContribute, match="another machine, AMD .*choose a --name"):
        machines.contribute(finish(machine="Apple M2, 8 cores, Darwin arm64"), "mine")
    with pytest.raises(CannotContribute, match="--name '../x'"):
        machines.contribute(finish(), "../x")


def test_where_machines_differ_is_told_in_list_readme_and_scoreboard(finish, project):
    assert "no machine has contributed" in lab("machines").output
    finish()
    assert lab("machines", "add").exit_code == 0
    finish("refuted", machine="Apple M2, 8 cores, Darwin arm64")
    assert lab("machines", "add").exit_code == 0
    said = "amd-epyc-7b13-2-cores: supported 1.5 [1.2, 1.8]; apple-m2-8-cores: refuted 1.5 [1.2, 1.8]"
    assert f"{TIMED} (quick): machines differ: {said}" in lab("machines").output
    text = (project / "results" / "README.md").read_text()
    assert f"| **{TIMED}** (quick) | supported 1.5 [1.2, 1.8] | refuted 1.5 [1.2, 1.8] |" in text
    timings = machines.timings()

    def told(name):
        run = SimpleNamespace(profile="quick", size="", about={"machine": "here"})
        verdict = Verdict(id=name, exercise="1.2", verdict="refuted")
        return board.places(claims.ledger()[name], run, verdict, machines.contributed(), timings)

    timed, other = ("\n".join(told(name)) for name in (TIMED, OTHER))
    assert "machines differ: amd" in timed and "machine" not in other


def test_a_damaged_contribution_is_named(finish):
    place = machines.contribute(finish())
    (place / "verdicts.csv").write_text("x")
    with pytest.raises(ValueError, match="verdicts.csv is damaged"):
        machines.contributed()
    done = lab("machines")
    assert done.exit_code == 2 and "is damaged" in done.output


def test_what_is_committed_of_other_machines_was_made_by_commits_alone():
    assert all(not row.commit.endswith("+changes") for row in machines.contributed().itertuples())
