"""The command `lab`: what it answers, with which exit code, and that a refusal leaves no trace."""

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import nbformat
import pandas as pd
import pytest
from filelock import FileLock
from typer.testing import CliRunner

from lab import cli
from lab.cli import app
from lab.engine import batch, parameters, runs
from lab.engine.runs import project_root
from lab.ledger import summary
from lab.ledger.claims import VERDICTS, Verdict, ledger

NAMES = [notebook.stem for notebook in parameters.notebooks()]
FIRST = NAMES[0]


def lab(*arguments):
    return CliRunner().invoke(app, [str(a) for a in arguments])


@pytest.fixture
def place():
    """A folder below results/ that is not there yet, as the command line names it; removed afterwards."""
    with tempfile.TemporaryDirectory(dir=project_root() / "results", prefix=".test-") as folder:
        yield (Path(folder) / "new").relative_to(project_root()).as_posix()


@pytest.fixture
def jobs(monkeypatch):
    """Runs of three notebooks that do not exist, the second of which fails; the list of those that were started."""
    started = []

    class Invented(batch.Job):
        fingerprint = "invented"

        def run(self, options, watch):
            started.append(self.notebook.stem)
            watch(cell=1, cells=1)
            if self.notebook.stem == "02_fails":
                raise RuntimeError("something broke")
            self.folder.mkdir(parents=True)

    def plan(names, profile, folder, overrides=None, **options):
        return [Invented(Path(f"{stem}.ipynb"), profile, {}, folder) for stem in ("01_works", "02_fails", "03_works")]

    monkeypatch.setattr(batch, "plan", plan)
    return started


def tree(folder):
    return {p: p.stat().st_mtime_ns for p in folder.rglob("*")}


REFUSED = {  # arguments; what the answer names
    "unknown exercise": (["1.99"], ["1.99", *NAMES]),
    "unknown exercise after a known one": ([FIRST, "nonsuch"], ["nonsuch", *NAMES]),
    "unknown profile": ([FIRST, "--profile", "huge"], ["huge", "smoke, quick, full"]),
    "unknown parameter": ([FIRST, "-p", "nonsuch=1"], ["command line", "nonsuch", "profile"]),
    "misspelt parameter": ([FIRST, "-p", "profil=smoke"], ["did you mean 'profile'?"]),
    "wrong value": ([FIRST, "-p", "profile=7"], ["command line", "profile", "7"]),
    "no equals sign": ([FIRST, "-p", "profile"], ["profile", "NAME=VALUE"]),
    "results as a parameter": ([FIRST, "-p", "results=results/x"], ["--results"]),
    "missing file": ([FIRST, "-f", "no/such.yaml"], ["no/such.yaml"]),
    "folder for a file": ([FIRST, "-f", "experiments"], ["experiments"]),
    "negative jobs": ([FIRST, "--jobs", "-1"], ["--jobs"]),
    "unknown device": ([FIRST, "--device", "tpu"], ["tpu", "cpu"]),
    "unknown option": ([FIRST, "--nonsuch"], ["--nonsuch"]),
}


@pytest.mark.parametrize("arguments, named", REFUSED.values(), ids=REFUSED)
def test_what_cannot_run_is_refused_and_nothing_is_written(arguments, named, place):
    before = tree(project_root() / "experiments"), tree((project_root() / place).parent)
    result = lab("run", "--results", place, *arguments)
    assert result.exit_code == 2, result.output
    for word in named:
        assert word in result.output
    assert "Traceback" not in result.output
    assert (tree(project_root() / "experiments"), tree((project_root() / place).parent)) == before


def test_results_go_to_any_folder_which_is_made(jobs, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for given, place in {"new/here": tmp_path / "new" / "here", tmp_path / "whole": tmp_path / "whole"}.items():
        assert lab("run", "--results", given).exit_code == 1, "of the notebook that fails"
        assert sorted(p.name for p in (place / "quick").iterdir()) == [
            "01_works",
            "03_works",
            "README.md",
            "claims.csv",
        ]


def test_a_bad_file_of_parameters_is_refused_by_name(place, tmp_path):
    for text, named in {"- a\n": "mapping", "nonsuch: 1\n": "nonsuch", "profile: [": "cannot be read"}.items():
        (tmp_path / "mine.yaml").write_text(text)
        result = lab("run", FIRST, "--results", place, "-f", tmp_path / "mine.yaml")
        assert result.exit_code == 2 and named in result.output and "mine.yaml" in result.output.replace("\n", "")
    assert not (project_root() / place).exists()


def test_a_second_run_on_the_same_results_is_refused(place, jobs):
    folder = project_root() / place
    with batch.only_one(folder):
        before = tree(folder)
        command = [sys.executable, "-m", "lab.cli", "run", FIRST, "--profile", "smoke", "--results", place]
        other = subprocess.run(command, capture_output=True, text=True)
        assert other.returncode == 2 and "another `lab run`" in other.stderr and place in other.stderr
        assert tree(folder) == before
    with FileLock(folder / ".lock", timeout=0):  # given back
        pass
    assert not jobs, "the other process was the one that was refused"


def test_a_failed_notebook_makes_the_exit_code_1_and_stops_no_other(place, jobs):
    result = lab("run", "--results", place)
    assert result.exit_code == 1
    assert jobs == ["01_works", "02_fails", "03_works"]
    assert "02_fails: FAILED" in result.output and "something broke" in result.output
    assert "1 of 3 failed (02_fails)" in result.output
    assert (project_root() / place / "quick" / "claims.csv").exists()
    assert lab("run", "--results", place).exit_code == 1, "the folder is free again"


def test_runs_that_end_well_have_the_exit_code_0(place, jobs, monkeypatch):
    plan = batch.plan
    monkeypatch.setattr(batch, "plan", lambda *a, **k: [j for j in plan(*a, **k) if j.notebook.stem != "02_fails"])
    result = lab("run", "--results", place)
    assert result.exit_code == 0, result.output
    assert jobs == ["01_works", "03_works"] and "FAILED" not in result.output


def test_a_folder_that_cannot_be_written_is_named(place, jobs):
    (project_root() / place).write_text("a file stands here")
    result = lab("run", "--results", f"{place}/below")
    assert result.exit_code == 1 and place in result.output and "Traceback" not in result.output
    assert not jobs and (project_root() / place).read_text() == "a file stands here"


def test_ctrl_c_says_how_to_go_on(place, jobs, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("lab.cli.run_all", interrupted)
    result = lab("run", "--results", place)
    assert result.exit_code == 130 and "the same command goes on" in result.output
    with FileLock(project_root() / place / ".lock", timeout=0):
        pass


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


# Runs of one's own parameters


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


@pytest.mark.parametrize("text, value", [("0", 0), ("90", 90), ("30s", 30), ("1.5m", 90), ("2h", 7200)])
def test_times_are_read_with_their_unit(text, value):
    assert cli.seconds(text) == value


def test_what_is_no_time_is_refused(place, jobs):
    for option in ("--check", "--budget"):
        result = lab("run", "--results", place, option, "soon")
        assert result.exit_code == 2 and "'soon' is no time" in result.output and not jobs


# Two runs side by side


@pytest.fixture
def pair(tmp_path, monkeypatch):
    """Two runs below the results of a project: other seeds, one verdict turned, one effect moved, one the same."""
    monkeypatch.setattr("lab.engine.runs.project_root", lambda: tmp_path)
    claims = list(ledger().values())[:3]
    for name, seeds, verdicts, effects in (
        ("quick/04_x", 5, "srs", (1, 2, 3)),
        ("runs/04_x-mine", 9, "ssr", (1, 2.5, 3)),
    ):
        words = {"s": "supported", "r": "refuted"}
        rows = [Verdict(id=c.id, exercise="1.4", verdict=words[v], effect=e, low=e - 0.5, high=e + 0.5, unit="nats")
                for c, v, e in zip(claims, verdicts, effects, strict=True)]  # fmt: skip
        (tmp_path / "results" / name).mkdir(parents=True)
        pd.DataFrame([row.model_dump() for row in rows]).to_csv(tmp_path / "results" / name / "verdicts.csv")
        runs.write_run(tmp_path / "results" / name, {"parameters": {"profile": "quick", "seeds": seeds}})
    return tmp_path / "results", [claim.id for claim in claims]


def test_two_runs_side_by_side_what_differs_first(pair):
    results, (same, turned, also_turned) = pair
    for names in (("quick/04_x", "04_x-mine"), (results / "quick" / "04_x", "runs/04_x-mine")):
        done = lab("diff", *names)
        assert done.exit_code == 0, done.output
        lines = done.output.splitlines()
        assert lines[0].endswith("results/quick/04_x") and lines[1].endswith("results/runs/04_x-mine")
        (seeds,) = (line for line in lines if line.split()[:1] == ["seeds"])
        assert seeds.split() == ["seeds", "5", "9"]
        (row,) = (line for line in lines if line.split()[:1] == [turned])
        assert "refuted  2 [1.5, 2.5] nats" in row and "supported  2.5 [2, 3] nats" in row
        at = {title: lines.index(title) for title in lines if title and title[0] != " "}
        order = ["parameters that differ", "verdicts that differ", "the same verdict and effect", "the same parameters"]
        assert [title for title in sorted(at, key=at.get) if title in order] == order
        assert at["the same verdict and effect"] < next(i for i, x in enumerate(lines) if x.split()[:1] == [same])


def test_a_run_that_is_not_there_is_answered_by_those_that_are(pair):
    results, _ = pair
    done = lab("diff", "quick/04_x", "nonsuch")
    assert done.exit_code == 2 and "nonsuch" in done.output and "runs/04_x-mine" in done.output
    (results / "runs" / "04_x-mine" / "run.json").write_text("{")
    done = lab("diff", "quick/04_x", "04_x-mine")
    assert done.exit_code == 2 and "damaged" in done.output
    shutil.copytree(results / "quick" / "04_x", results / "full" / "04_x")
    done = lab("diff", "04_x", "04_x-mine")
    assert done.exit_code == 2 and "say which" in done.output and "results/full/04_x" in done.output


# The other commands


def test_list_names_every_exercise():
    result = lab("list")
    assert result.exit_code == 0
    for stem in NAMES:
        assert stem in result.output and f"1.{int(stem[:2])}" in result.output


def test_claims_are_listed_and_chosen():
    everything, by_id = lab("claims"), ledger()
    waiting = "pending" in set(summary.collect(project_root() / "results" / "quick").verdict)
    assert everything.exit_code == waiting and f"{len(by_id)} claims" in everything.output
    assert all(name in everything.output for name in by_id)
    some = lab("claims", "--exercise", "1.4")
    mine = [name for name, c in by_id.items() if c.exercise == "1.4"]
    assert some.exit_code == 0, "all of this exercise is judged"
    assert f"{len(mine)} claims" in some.output
    shown = {word for line in some.output.splitlines() for word in line.split()}
    assert shown & set(by_id) == set(mine)
    pending = lab("claims", "--exercise", "1.4", "--verdict", "pending")
    assert pending.exit_code == 0 and "supported" not in pending.output and "0 claims" in pending.output


@pytest.mark.parametrize("arguments, named", [
    (["--verdict", "maybe"], VERDICTS),
    (["--profile", "huge"], parameters.PROFILES),
    (["--exercise", "1.99"], ["1.1", "1.14"]),
], ids=str)  # fmt: skip
def test_a_wrong_choice_of_claims_lists_the_right_ones(arguments, named):
    result = lab("claims", *arguments)
    assert result.exit_code == 2 and arguments[1] in result.output
    assert all(name in result.output for name in named)


def test_doctor_finds_this_environment_in_order():
    result = lab("doctor")
    assert sys.executable in result.output and str(project_root()) in result.output
    assert result.exit_code == (1 if "problem" in result.output else 0)


def test_clean_removes_what_interrupted_runs_left_and_the_trials_only_when_asked(tmp_path, monkeypatch):
    monkeypatch.setattr("lab.engine.runs.project_root", lambda: tmp_path)
    for name in (".running", "interactive", ".trials", "quick"):
        (tmp_path / "results" / name / "deep").mkdir(parents=True)
    assert lab("clean").exit_code == 0
    assert sorted(p.name for p in (tmp_path / "results").iterdir()) == [".trials", "quick"]
    assert lab("clean", "--trials").exit_code == 0
    assert [p.name for p in (tmp_path / "results").iterdir()] == ["quick"]


def test_help_is_quick_and_loads_no_torch():
    code = "import json, sys\nfrom lab.cli import app\ntry: app()\nfinally: json.dump(list(sys.modules), sys.stderr)"
    for arguments, word in (["--help"], "run"), (["run", "--help"], "--profile"):
        done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True)
        assert done.returncode == 0 and word in done.stdout
        assert not {"torch", "pandas", "matplotlib", "numpy"} & set(json.loads(done.stderr))


def test_no_command_at_all_shows_the_help():
    result = lab()
    assert "Usage" in result.output and "claims" in result.output
