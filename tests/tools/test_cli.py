"""The command `lab`: what it answers, with which exit code, and that a refusal leaves no trace.

Of `lab.tools.terminal`, `lab.tools.arguments` and `lab.tools.execution`.
"""

import errno
import io
import json
import re
import shutil
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import made
import pandas as pd
import pytest
import yaml
from filelock import FileLock
from gate import wait_for
from lab.trials.runs import Progress, project_root
from made import ABOVE, DICE
from rich.console import Console
from typer.main import get_command
from typer.testing import CliRunner

from lab.claims import cards
from lab.claims.claims import Line
from lab.tools import batch, terminal
from lab.tools.cli import app
from lab.tools.execution import mended
from lab.trials import parameters, runs
from lab.trials import sweep as trials

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
        fingerprint, usual = "invented", True

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
    "unknown profile": ([DICE, "--profile", "huge"], ["huge", "smoke, quick"]),
    "unknown parameter": ([DICE, "-p", "nonsuch=1"], ["command line", "nonsuch", "profile"]),
    "misspelt parameter": ([DICE, "-p", "profil=smoke"], ["did you mean 'profile'?"]),
    "wrong value": ([DICE, "-p", "profile=7"], ["command line", "profile", "7"]),
    "no equals sign": ([DICE, "-p", "profile"], ["profile", "NAME=VALUE"]),
    "results as a parameter": ([DICE, "-p", "results=results/x"], ["--results"]),
    "no folder for results": ([DICE, "--results", ""], ["--results", "name a folder"]),
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
            "claims.csv",
        ]


def test_an_error_of_a_library_keeps_its_traceback(monkeypatch):
    numbers, words = pd.DataFrame({"a": [1]}), pd.DataFrame({"a": ["x"]})
    monkeypatch.setattr("lab.trials.parameters.notebooks", lambda: numbers.merge(words, on="a"))
    done = CliRunner().invoke(app, ["list"])
    assert isinstance(done.exception, ValueError) and not done.output


def test_a_bad_file_of_parameters_is_refused_by_name(place, tmp_path):
    for text, named in {"- a\n": "mapping", "nonsuch: 1\n": "nonsuch", "profile: [": "cannot be read"}.items():
        (tmp_path / "mine.yaml").write_text(text)
        result = lab("run", DICE, "--results", place, "-f", tmp_path / "mine.yaml")
        assert result.exit_code == 2 and named in result.output and "mine.yaml" in result.output.replace("\n", "")
    assert not place.exists()


HOLD = """
import sys, filelock

with filelock.FileLock(sys.argv[1]):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_second_run_on_the_same_results_is_refused(place, jobs):
    place.mkdir()
    command = [sys.executable, "-c", HOLD, str(place / ".lock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout.readline() == "held\n"
        before = tree(place)
        result = lab("run", "--results", place)
        assert result.exit_code == 2 and "another `lab run`" in result.output
        assert str(place) in result.output.replace("\n", "") and tree(place) == before and not jobs
    assert lab("run", "--results", place).exit_code == 1 and jobs, "once the other has ended, it runs"
    with FileLock(place / ".lock", timeout=0):  # given back
        pass


def test_a_failed_notebook_makes_the_exit_code_1_and_stops_no_other(place, jobs):
    result = lab("run", "--results", place)
    assert result.exit_code == 1
    assert jobs == ["01_works", "02_fails", "03_works"]
    assert "02_fails: FAILED" in result.output and "something broke" in result.output
    assert "1 of 3 failed (02_fails)" in result.output
    assert (place / "runs" / "quick" / "claims.csv").exists()


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

    monkeypatch.setattr("lab.tools.terminal.run_all", interrupted)
    result = lab("run", "--results", place)
    assert result.exit_code == 130 and "the same command goes on" in result.output
    with FileLock(place / ".lock", timeout=0):
        pass


# The other commands


@pytest.fixture(scope="module")
def dice_ran(project):
    return made.ran(project, place="runs/quick")


def test_help_is_quick_and_loads_no_torch():
    code = (
        "import json, sys\nfrom lab.tools.cli import app\ntry: app()\nfinally: json.dump(list(sys.modules), sys.stderr)"
    )
    for arguments, word in (["--help"], "run"), (["run", "--help"], "--profile"):
        done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True)
        assert done.returncode == 0 and word in done.stdout
        assert not {"torch", "pandas", "matplotlib", "numpy"} & set(json.loads(done.stderr))


def test_no_command_at_all_says_what_one_can_do():
    result = lab()
    shown = re.findall(r"^  lab (\w+)", result.output, re.MULTILINE)
    assert result.exit_code == 0 and set(shown) <= set(get_command(app).commands)
    assert "lab list" in result.output


# What is shown while one waits, and at the end


def test_on_a_terminal_one_line_tells_how_far_a_notebook_is(tmp_path):
    now = terminal.Running("01_x", tmp_path / "sweep.txt")
    now.hear(cell=7, cells=58)
    progress = Progress("language_model", now.file)
    progress(0, 480)
    assert re.fullmatch(r"01_x: cell 7/58, \d+ s, language_model: 0/480 trials \[00:00<\?\]", str(now))
    progress.bar.start_t -= 120
    progress(12, 480)
    assert str(now).endswith(" s, language_model: 12/480 trials [02:00<1:18:00]")
    console = Console(file=io.StringIO(), force_terminal=True)
    with terminal.shown(console, now):
        wait_for(lambda: "cell 7/58" in console.file.getvalue())
    progress(480, 480)
    assert "language_model" not in str(now), "it is done"


def test_a_log_has_a_line_now_and_then_while_a_notebook_runs(tmp_path):
    log, now = io.StringIO(), terminal.Running("01_x", tmp_path / "sweep.txt")
    Progress("trial", now.file)(12, 480)
    now.hear(cell=3, cells=9)
    before = threading.active_count()
    with terminal.shown(Console(file=log), now, often=0.01):
        wait_for(lambda: " trials" in log.getvalue())
    assert re.search(r"^  01_x: cell 3/9, \d+ s, trial: 12/480 trials", log.getvalue(), re.MULTILINE)
    assert threading.active_count() <= before, "it ends with the notebook"


def told(*jobs):
    return "\n".join(terminal.at_the_end(jobs)).splitlines()


def test_at_the_end_each_claim_is_told_with_its_number_and_bar(dice_ran, project):
    job = batch.Job(parameters.notebook_of("1.1"), "quick", {}, project / "results")
    head, *lines = told(job)
    assert re.fullmatch(r"1\.1 What do dice show\? · 1 \w+, 1 \w+", head)
    more, number, count, exact, where, look = lines
    assert (more, count) == ("1.1    It is so that dice-more-sides.", "1.1    It is so that dice-count.")
    assert re.fullmatch(r"       \w+: \S+ \[\S+, \S+\] points, n = 4; predicted > 0 · dice-more-sides", number)
    assert exact == "       checked: 1 throws; predicted = 1 · dice-count"
    assert where == f"Executed notebook, tables and figures: results/runs/quick/{DICE}"
    assert look == "To look at it: lab show 1.1" and told() == []


def test_the_sentence_of_a_claim_stands_above_its_first_part_alone():
    line = Line(id="dice-count", exercise="1.1", part="second", answer="checked", label="checked")
    headed, bare = (cards.in_text(None, line, again=again).splitlines() for again in (False, True))
    assert headed[0] == "1.1    dice-count" and headed[1:] == bare


def test_at_the_end_of_several_runs_what_changed_is_told(dice_ran, project, tmp_path, monkeypatch):
    job = batch.Job(parameters.notebook_of("1.1"), "quick", {}, project / "results")
    monkeypatch.setattr(terminal, "published", lambda job: {("dice-count", ""): "disproved"})
    assert len(told(job)) == 7 and sum(" (was " in line for line in told(job)) == 1
    shutil.copytree(dice_ran, tmp_path / "runs" / "quick" / DICE)
    _, sentence, changed, *_ = told(job, replace(job, results=tmp_path))
    assert sentence == "1.1    It is so that dice-count." and len(told(job, replace(job, results=tmp_path))) == 8
    assert changed == "       checked (was disproved): 1 throws; predicted = 1 · dice-count"


def test_of_a_notebook_from_elsewhere_the_claims_beside_it_are_told(dice_ran, tmp_path, monkeypatch):
    job = batch.Job(tmp_path / "mine.ipynb", "", {}, tmp_path / "out", own={"a": 1})
    rows = pd.read_csv(dice_ran / "verdicts.csv").replace("dice-count", "own")
    runs.write_table(job.folder / "verdicts.csv", rows)
    assert "1.1    own" in told(job)
    said = {"id": "own", "claim": "Mine is better.", **ABOVE}
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump([said]))
    lines = told(job)
    assert "1.1    Mine is better." in lines and lines[-1] == f"To look at it: lab show {job.folder}"
    monkeypatch.chdir(tmp_path)
    assert told(job)[-1] == "To look at it: lab show out/runs/own/mine-a-1", "from where one stands"


def test_what_is_published_stands_in_the_place_of_the_run(tmp_path, monkeypatch):
    monkeypatch.setenv("LAB_PROJECT", str(tmp_path))
    made.write_notebook(tmp_path / "notebooks" / "01_x.ipynb", [])
    job = batch.Job(tmp_path / "notebooks" / "01_x.ipynb", "quick", {}, tmp_path / "elsewhere")
    assert terminal.published(job) == {}
    folder = runs.published("quick", "01_x")
    said = {("a", "one"): "supported", ("a", "two"): "checked"}
    rows = [dict.fromkeys(Line.model_fields, "") | {"id": name, "part": part, "label": word}
            for (name, part), word in said.items()]  # fmt: skip
    runs.write_table(folder / "verdicts.csv", pd.DataFrame(rows))
    assert terminal.published(job) == said
    assert terminal.published(replace(job, own={"a": 1})) == terminal.published(replace(job, profile="smoke")) == {}


def squared(seed):
    return {"value": seed**2}


@pytest.mark.parametrize("timing", [False, True])
def test_a_bar_is_there_before_the_first_trial_has_ended_and_goes_with_the_last(timing, tmp_path, capsys):
    grid, told = {"seed": [1, 2]}, {"sources": trials.Sources("n", store=tmp_path), "timing": timing}
    trials.sweep(squared, grid, progress=(progress := Progress("squared")), **told)
    shown = capsys.readouterr().err.split("\r")
    assert [line[:19] for line in shown[1:4]] == [f"squared: {n}/2 trials "[:19] for n in (0, 1, 2)]
    assert not shown[-2].strip() and not shown[-1], "nothing stays"
    assert progress.ran == 2


def test_where_all_is_known_no_bar_is_shown(capsys):
    Progress("trial")(5, 5)
    assert capsys.readouterr().err == ""


# After a mistake


def test_a_full_disk_and_a_folder_to_be_read_only_say_what_to_do():
    assert "results/.trials" in mended(OSError(errno.ENOSPC, "No space left on device"))
    assert "--results" in mended(OSError(errno.EROFS, "Read-only file system")) and mended(OSError(2, "gone")) == ""


def test_a_project_that_is_read_only_is_answered_in_a_sentence(monkeypatch):
    def kept():
        raise OSError(errno.EROFS, "Read-only file system", "results/book")

    monkeypatch.setattr("lab.trials.parameters.notebooks", kept)
    result = lab("list")
    assert result.exit_code == 1 and "lab: results/book: Read-only file system; where the project" in result.output
