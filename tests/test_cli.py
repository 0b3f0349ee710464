"""The command `lab`: what it answers, with which exit code, and that a refusal leaves no trace.

Of `lab.commands.terminal`, `lab.commands.arguments`, `lab.commands.execution`, `lab.commands.upkeep` and
`lab.commands.worker`.
"""

import errno
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import small_project
from filelock import FileLock
from rich.console import Console
from small_project import DICE
from typer.main import get_command
from typer.testing import CliRunner

from lab import cli
from lab.cli import app
from lab.commands import terminal, upkeep
from lab.commands.execution import mended
from lab.engine import batch, parameters, runs
from lab.engine.runs import Progress, project_root
from lab.ledger.claims import VERDICTS, ledger

pytestmark = pytest.mark.usefixtures("project")
NAMES = [DICE, "02_coins"]


def lab(*arguments):
    return CliRunner().invoke(app, [str(a) for a in arguments])


@pytest.fixture
def place(tmp_path):
    """A folder for results that is not there yet."""
    return tmp_path / "new"


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
    "unknown exercise after a known one": ([DICE, "nonsuch"], ["nonsuch", *NAMES]),
    "unknown profile": ([DICE, "--profile", "huge"], ["huge", "smoke, quick, full"]),
    "unknown parameter": ([DICE, "-p", "nonsuch=1"], ["command line", "nonsuch", "profile"]),
    "misspelt parameter": ([DICE, "-p", "profil=smoke"], ["did you mean 'profile'?"]),
    "wrong value": ([DICE, "-p", "profile=7"], ["command line", "profile", "7"]),
    "no equals sign": ([DICE, "-p", "profile"], ["profile", "NAME=VALUE"]),
    "results as a parameter": ([DICE, "-p", "results=results/x"], ["--results"]),
    "no folder for results": ([DICE, "--results", ""], ["--results", "a folder is wanted"]),
    "missing file": ([DICE, "-f", "no/such.yaml"], ["no/such.yaml"]),
    "folder for a file": ([DICE, "-f", "tests"], ["tests"]),
    "negative jobs": ([DICE, "--jobs", "-1"], ["--jobs"]),
    "unknown device": ([DICE, "--device", "tpu"], ["tpu", "cpu"]),
    "unknown option": ([DICE, "--nonsuch"], ["--nonsuch"]),
}


@pytest.mark.parametrize("arguments, named", REFUSED.values(), ids=REFUSED)
def test_what_cannot_run_is_refused_and_nothing_is_written(arguments, named, place):
    before = tree(project_root() / "experiments"), tree(place.parent)
    result = lab("run", "--results", place, *arguments)
    assert result.exit_code == 2, result.output
    for word in named:
        assert word in result.output
    assert "Traceback" not in result.output
    assert (tree(project_root() / "experiments"), tree(place.parent)) == before


def test_results_go_to_any_folder_which_is_made(jobs, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for given, place in {"new/here": tmp_path / "new" / "here", tmp_path / "whole": tmp_path / "whole"}.items():
        assert lab("run", "--results", given).exit_code == 1, "of the notebook that fails"
        assert sorted(p.name for p in (place / "runs" / "quick").iterdir()) == [
            "01_works",
            "03_works",
            "README.md",
            "README.zh.md",
            "claims.csv",
        ]


def test_a_bad_file_of_parameters_is_refused_by_name(place, tmp_path):
    for text, named in {"- a\n": "mapping", "nonsuch: 1\n": "nonsuch", "profile: [": "cannot be read"}.items():
        (tmp_path / "mine.yaml").write_text(text)
        result = lab("run", DICE, "--results", place, "-f", tmp_path / "mine.yaml")
        assert result.exit_code == 2 and named in result.output and "mine.yaml" in result.output.replace("\n", "")
    assert not place.exists()


def test_a_second_run_on_the_same_results_is_refused(place, jobs):
    folder = place
    with batch.only_one(folder):
        before = tree(folder)
        command = [sys.executable, "-m", "lab.cli", "run", DICE, "--profile", "smoke", "--results", str(place)]
        other = subprocess.run(command, capture_output=True, text=True)
        assert other.returncode == 2 and "another `lab run`" in other.stderr and str(place) in other.stderr
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
    assert (place / "runs" / "quick" / "claims.csv").exists()
    assert lab("run", "--results", place).exit_code == 1, "the folder is free again"


def test_runs_that_end_well_have_the_exit_code_0(place, jobs, monkeypatch):
    plan = batch.plan
    monkeypatch.setattr(batch, "plan", lambda *a, **k: [j for j in plan(*a, **k) if j.notebook.stem != "02_fails"])
    result = lab("run", "--results", place)
    assert result.exit_code == 0, result.output
    assert jobs == ["01_works", "03_works"] and "FAILED" not in result.output


def test_a_folder_that_cannot_be_written_is_named(place, jobs):
    place.write_text("a file stands here")
    result = lab("run", "--results", f"{place}/below")
    assert result.exit_code == 1 and str(place) in result.output and "Traceback" not in result.output
    assert not jobs and place.read_text() == "a file stands here"


def test_ctrl_c_says_how_to_go_on(place, jobs, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("lab.commands.terminal.run_all", interrupted)
    result = lab("run", "--results", place)
    assert result.exit_code == 130 and "the same command goes on" in result.output
    with FileLock(place / ".lock", timeout=0):
        pass


# The other commands


@pytest.mark.parametrize("text, value", [("0", 0), ("90s", 90), ("30s", 30), ("1.5m", 90), ("2h", 7200)])
def test_times_are_read_with_their_unit(text, value):
    assert cli.seconds(text) == value


def test_what_is_no_time_is_refused(place, jobs):
    for option in ("--check", "--budget"):
        result = lab("run", "--results", place, option, "soon")
        assert result.exit_code == 2 and "'soon' is no time" in result.output and not jobs
        result = lab("run", "--results", place, option, "1")
        assert result.exit_code == 2 and "say the unit: 30s, 10m, 2h" in result.output and not jobs


@pytest.fixture(scope="module")
def dice_ran(project):
    return small_project.ran(project)


def test_claims_are_listed_and_chosen(dice_ran):
    everything, by_id = lab("claims"), ledger()
    assert everything.exit_code == 1 and f"{len(by_id)} claims" in everything.output, "of coins nothing is judged yet"
    assert all(name in everything.output for name in by_id)
    some = lab("claims", "--exercise", "1.1")
    mine = [name for name, c in by_id.items() if c.exercise == "1.1"]
    assert some.exit_code == 0, "all of this exercise is judged"
    assert f"{len(mine)} claims" in some.output
    shown = {word for line in some.output.splitlines() for word in line.split()}
    assert shown & set(by_id) == set(mine)
    pending = lab("claims", "--exercise", "1.1", "--verdict", "pending")
    assert pending.exit_code == 0 and "supported" not in pending.output and "0 claims" in pending.output


def test_a_claim_is_listed_by_its_earlier_id(dice_ran):
    shown = lab("claims", "dice-of-old")
    assert shown.exit_code == 0 and "dice-more-sides" in shown.output
    assert re.search(r"\n1 claims: 1 \w+\n$", shown.output)
    unknown = lab("claims", "dice-more-side")
    assert unknown.exit_code == 2 and "dice-more-sides" in unknown.output


@pytest.mark.parametrize("arguments, named", [
    (["--verdict", "maybe"], VERDICTS),
    (["--profile", "huge"], parameters.PROFILES),
    (["--exercise", "1.99"], ["1.1", "1.2"]),
], ids=str)  # fmt: skip
def test_a_wrong_choice_of_claims_lists_the_right_ones(arguments, named):
    result = lab("claims", *arguments)
    assert result.exit_code == 2 and arguments[1] in result.output
    assert all(name in result.output for name in named)


def test_doctor_finds_this_environment_in_order():
    result = lab("doctor")
    assert sys.executable in result.output and str(project_root()) in result.output
    assert result.exit_code == (1 if "problem" in result.output else 0)


def test_clean_removes_what_unfinished_runs_left_and_more_only_where_an_option_names_it(tmp_path, monkeypatch):
    monkeypatch.setenv("LAB_PROJECT", str(tmp_path))
    for name in (".running", "interactive", ".trials", "runs", "quick", "record"):
        (tmp_path / "results" / name / "deep").mkdir(parents=True)
        (tmp_path / "results" / name / "deep" / "file").write_bytes(bytes(2_000_000))

    def there():
        return {path.name for path in (tmp_path / "results").iterdir()} - {".lock"}

    everything = there()
    said = lab("clean", "--dry-run", "--trials").output.splitlines()
    assert [line.split()[:2] for line in said if line.startswith("would")] == [["would", "go"]] * 2
    assert all("2.0 MB" in line for line in said) and there() == everything
    said = lab("clean").output
    assert "stays     results/interactive  2.0 MB  runs made by hand; --interactive removes it" in said
    assert there() == everything - {".running"}
    for option, goes in (("interactive", "interactive"), ("trials", ".trials"), ("runs", "runs")):
        assert lab("clean", f"--{option}").exit_code == 0
        everything -= {goes, ".running"}
        assert there() == everything
    assert everything == {"quick", "record"}


def test_clean_keeps_the_newest_trials_of_a_size(tmp_path, monkeypatch):
    monkeypatch.setattr("lab.engine.runs.project_root", lambda: tmp_path)
    store = tmp_path / "results" / ".trials"
    for age, name in enumerate(("a/new.json", "models/middle.safetensors", "b/old.json")):
        (store / name).parent.mkdir(parents=True, exist_ok=True)
        (store / name).write_bytes(b"x" * 1000)
        os.utime(store / name, (1000 - age, 1000 - age))
    assert "removed 1 files" in lab("clean", "--keep", "2kB").output
    assert sorted(p.name for p in store.glob("*/*")) == ["middle.safetensors", "new.json"]
    assert "removed 0 files" in lab("clean", "--keep", "2 GB").output
    for wrong in (["--keep", "much"], ["--keep", "2GB", "--trials"]):
        assert lab("clean", *wrong).exit_code == 2 and len(list(store.glob("*/*"))) == 2


def test_help_is_quick_and_loads_no_torch():
    code = "import json, sys\nfrom lab.cli import app\ntry: app()\nfinally: json.dump(list(sys.modules), sys.stderr)"
    for arguments, word in (["--help"], "run"), (["run", "--help"], "--profile"):
        done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True)
        assert done.returncode == 0 and word in done.stdout
        assert not {"torch", "pandas", "matplotlib", "numpy"} & set(json.loads(done.stderr))


def test_no_command_at_all_says_the_five_things_that_one_can_do():
    result = lab()
    shown = re.findall(r"^  lab (\w+)", result.output, re.MULTILINE)
    assert result.exit_code == 0 and len(shown) == 5
    assert set(shown) <= set(get_command(app).commands) and "lab list" in result.output


def test_a_worker_has_the_settings_of_workers_here():
    """In a process with them Dask's own configuration says what lab.engine.workers says."""
    from lab.commands import worker
    from lab.engine import workers

    asked = f"[os.environ['MALLOC_TRIM_THRESHOLD_'], *[config.get(name) for name in {list(workers.QUIET)}]]"
    script = f"import os, json, distributed; from dask import config; print(json.dumps({asked}))"
    environment = os.environ | worker.settings("1")
    said = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert json.loads(said.stdout) == [str(2**30), *workers.QUIET.values()]
    assert environment["CUDA_VISIBLE_DEVICES"] == "1"
    assert (
        worker.command("tcp://a:1", 3)[1:]
        == "-m dask worker tcp://a:1 --nthreads 1 --memory-limit 0 --nworkers 3".split()
    )
    assert worker.command("tcp://a:1", gpu="1")[-4:] == ["--nworkers", "1", "--resources", "GPU=1"]


# What is shown while one waits, and at the end


def shown_by(board, width):
    console = Console(width=width, height=12, file=io.StringIO(), force_terminal=True)
    console.print(board.table())
    return [line.rstrip() for line in re.sub("\x1b\\[[0-9;?]*[A-Za-z]", "", console.file.getvalue()).splitlines()]


def test_the_table_of_all_notebooks_wraps_nowhere_and_keeps_in_sight_what_runs(tmp_path):
    todo = [batch.Job(Path(f"{n:02}_{n * 'long'}.ipynb"), "quick", {}, tmp_path) for n in range(20)]
    board = terminal.Board(Console(file=io.StringIO(), height=12), todo)
    board.say(todo[0], "done in 3 s", "[1/2] done in 3 s")
    assert board.console.file.getvalue() == "[1/2] done in 3 s\n", "a plain line where there is no terminal"
    sweep = {"sweep": "language_model", "done": 12, "total": 480, "workers": 2, "left": 3600.0}
    (tmp_path / "sweep.json").write_text(json.dumps(sweep))
    with board.running(todo[15], tmp_path / "sweep.json") as hear:
        hear(cell=7, cells=58)
        lines = shown_by(board, 80)
        assert len(lines) == 10 and all(len(line) <= 80 for line in lines)
        assert any("cell 7/58" in line and "12/480 trials" in line and "3600 s left" in line for line in lines)
        assert all(len(line) <= 40 for line in shown_by(board, 40))


def test_at_the_end_it_says_where_what_changed_and_what_to_open(project, monkeypatch):
    job = batch.Job(parameters.notebook_of("1.1"), "quick", {}, project / "results")
    monkeypatch.setattr(terminal, "changed", lambda folder: ["dice-count: proved → disproved"])
    first, *others = terminal.at_the_end([job])
    assert first == "Results: results/runs/quick" and others[-1] == f"To look at it: lab show {DICE}"
    assert "  dice-count: proved → disproved" in others
    assert list(terminal.at_the_end([])) == []


def test_what_changed_is_told_by_verdict(tmp_path, monkeypatch):
    monkeypatch.setenv("LAB_PROJECT", str(tmp_path))
    mine = runs.place_of_run("quick", "04_x")
    runs.write_text(mine / "verdicts.csv", "id,verdict\na,refuted\nb,proved\nc,supported\n")
    assert terminal.changed(mine) == [], "nothing is published"
    runs.write_text(runs.published("quick", "04_x") / "verdicts.csv", "id,verdict\na,supported\nb,proved\n")
    assert terminal.changed(mine) == ["a: supported → refuted"]


def test_in_a_notebook_a_bar_comes_and_goes(monkeypatch):
    from IPython import display

    drawn = []
    handle = SimpleNamespace(update=lambda shown: drawn.append(shown.data))
    monkeypatch.setattr(display, "display", lambda shown, display_id: drawn.append(shown.data) or handle)
    monkeypatch.setattr("lab.engine.runs.in_notebook", lambda: True)
    progress = Progress("trial")
    for done in (3, 4, 5):
        progress(done, 5, 1, 7.0)
    assert '<progress value="3" max="5"></progress> trial: 5 trials: 3 known, 0 run here. about 7 s left' in drawn[0]
    assert "3 known, 1 run here" in drawn[1] and drawn[2:] == [""], "nothing stays in the notebook"
    progress.stopped()
    assert "Stopped: what is finished is kept" in drawn[-1]
    whole = Progress("trial")
    whole(5, 5, 1, 0.0)
    whole.stopped()
    assert len(drawn) == 4, "where all is known, nothing is shown"


# After a mistake


def test_doctor_names_what_would_stop_a_run_with_what_mends_it(monkeypatch):
    for code, said in ((-4, "cannot run on this processor (signal 4"), (1, "torch cannot be imported (OSError: x)")):
        done = SimpleNamespace(returncode=code, stderr="Traceback\nOSError: x\n")
        monkeypatch.setattr("subprocess.run", lambda *_, done=done, **__: done)
        assert said in next(upkeep.broken())
    monkeypatch.setattr("subprocess.run", lambda *_, **__: SimpleNamespace(returncode=0, stderr=""))
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=3e6))
    assert [line.endswith("lab clean --keep 500MB") for line in upkeep.broken()] == [True]
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr("importlib.metadata.version", lambda name: "0.1")
    told = "\n".join(upkeep.unlike())
    assert "pip install -e '.[pretrained]'" in told and "networkx 0.1 is not the tested 3.6.1" in told


def test_a_full_disk_and_a_folder_to_be_read_only_say_what_to_do():
    assert "lab clean" in mended(OSError(errno.ENOSPC, "No space left on device"))
    assert "--results" in mended(OSError(errno.EROFS, "Read-only file system")) and mended(OSError(2, "gone")) == ""


def test_a_project_that_is_read_only_is_answered_in_a_sentence(monkeypatch):
    def kept():
        raise OSError(errno.EROFS, "Read-only file system", "results/book")

    monkeypatch.setattr(cli.browse, "front", kept)
    result = lab()
    assert result.exit_code == 1 and "lab: results/book: Read-only file system; where the project" in result.output


def test_the_store_of_any_folder_of_results_can_be_capped(tmp_path):
    (tmp_path / ".trials" / "a").mkdir(parents=True)
    (tmp_path / ".trials" / "a" / "x.json").write_bytes(b"x" * 1000)
    assert "removed 1 files" in lab("clean", "--keep", "1B", "--results", tmp_path).output
