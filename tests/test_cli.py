"""The command `lab`: what it answers, with which exit code, and that a refusal leaves no trace.

Of `lab.terminal`.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from filelock import FileLock
from typer.testing import CliRunner

from lab import cli
from lab.cli import app
from lab.engine import batch, parameters
from lab.engine.runs import project_root
from lab.ledger import summary
from lab.ledger.claims import VERDICTS, ledger

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
    "no folder for results": ([FIRST, "--results", ""], ["--results", "a folder is wanted"]),
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

    monkeypatch.setattr("lab.terminal.run_all", interrupted)
    result = lab("run", "--results", place)
    assert result.exit_code == 130 and "the same command goes on" in result.output
    with FileLock(project_root() / place / ".lock", timeout=0):
        pass


# The other commands


@pytest.mark.parametrize("text, value", [("0", 0), ("90", 90), ("30s", 30), ("1.5m", 90), ("2h", 7200)])
def test_times_are_read_with_their_unit(text, value):
    assert cli.seconds(text) == value


def test_what_is_no_time_is_refused(place, jobs):
    for option in ("--check", "--budget"):
        result = lab("run", "--results", place, option, "soon")
        assert result.exit_code == 2 and "'soon' is no time" in result.output and not jobs


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
