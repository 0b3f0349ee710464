"""`lab run`: refused input, failing cells, kills, two at once; `lab list`, `show` and `diff`.

Of `lab.browse`.
"""

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys

import made
import nbformat
import pandas as pd
import psutil
import pytest
from filelock import FileLock
from gate import allow, wait_for
from made import DICE, THROWS
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook
from typer.main import get_command
from typer.testing import CliRunner

from lab import browse, files, run, trials
from lab.files import CHECKOUT
from lab.run import app

pytestmark = pytest.mark.usefixtures("project")
SMOKE = ["run", "1.1", "--profile", "smoke", "--jobs", "1"]
slow = pytest.mark.slow


def lab(*words):
    """The command in this process."""
    return CliRunner().invoke(app, [str(word) for word in words])


def start(*words, **options):
    """The command in a process of its own."""
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "cwd": CHECKOUT}
    return subprocess.Popen([sys.executable, "-m", "lab.run", *map(str, words)], **streams | options)


def files_of(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def done(project):
    """The job of the dice at smoke size, which ran once."""
    result = lab(*SMOKE)
    assert result.exit_code == 0, result.output
    (job,) = run.plan(["1.1"], "smoke", project / "results")
    job.__dict__["said"] = result.output
    return job


# What a run leaves


def test_a_run_says_where_it_is_and_a_second_does_nothing(done):
    made_of = {path.name for path in done.folder.iterdir()}
    assert made_of == {"notebook.ipynb", "run.json", "answers.csv", "tables", "figures"}
    assert f"results/runs/smoke/{DICE}; to look at it: lab show results/runs/smoke/{DICE}" in done.said
    assert "8 sides minus 4" in done.said and f"Trials: {THROWS} by " in done.said
    before = files_of(done.folder)
    result = lab(*SMOKE)
    assert result.exit_code == 0 and f"{DICE}: done already" in result.output
    assert files_of(done.folder) == before
    kept = files.read_run(done.folder)
    about = ("status", "notebook", "title", "answer", "profile", "own", "changes", "machine", "started", "core_seconds")
    assert set(about) < set(kept) and kept["parameters"] == done.values and kept["fingerprint"] == done.fingerprint


def test_a_stored_notebook_holds_no_trace_of_papermill_and_of_the_machine(done, project):
    text = (done.folder / "notebook.ipynb").read_text("utf-8")
    book = nbformat.reads(text, 4)
    assert book.metadata.kernelspec == {"name": "python3", "display_name": "Python 3", "language": "python"}
    assert "papermill" not in book.metadata and "widgets" not in book.metadata
    assert not any({"papermill", "execution"} & set(cell.metadata) for cell in book.cells)
    assert f"Results: `results/runs/smoke/{DICE}`" in text and f"{project}/results" not in text


@pytest.mark.parametrize("edit", ["notebook", "claims", "parameters", "package"])
def test_a_run_is_done_again_when_what_it_depends_on_is_another(done, project, edit, monkeypatch):
    assert done.is_done
    if edit == "parameters":
        (job,) = run.plan(["1.1"], "smoke", project / "results", ("-p", {"seeds": 3}))
        assert job.folder.name == f"{DICE}-seeds-3" and not job.is_done and job.own == {"seeds": 3}
        return
    if edit == "package":
        monkeypatch.setattr(run, "__file__", str(CHECKOUT / "tests" / "gate.py"))
        assert not done.is_done
        return
    folder, suffix = {"notebook": ("notebooks", "ipynb"), "claims": ("experiments/claims", "yaml")}[edit]
    path = project / folder / f"{DICE}.{suffix}"
    sound = path.read_bytes()
    path.write_bytes(sound + b"\n")
    assert not done.is_done
    path.write_bytes(sound)


def test_a_run_that_cannot_be_read_is_none(done):
    sound = (done.folder / "run.json").read_bytes()
    (done.folder / "run.json").write_bytes(sound[:-40])
    assert not done.is_done
    (done.folder / "run.json").write_bytes(sound)


# Refused

REFUSED = {
    "no such notebook": (["run", "1.9"], "there is no exercise '1.9', .* there are 1.1 \\(01_dice\\)"),
    "misspelt": (["run", "1.1", "-p", "seed=3"], "-p: 01_dice has no parameter 'seed'; did you mean 'seeds'"),
    "no divisor": (["run", "1.1", "-p", "sides=[3]"], "-p: sides: 3 is no multiple of dice 2"),
    "no value": (["run", "1.1", "-p", "seeds"], "-p 'seeds': write NAME=VALUE"),
    "twice": (["run", "1.1", "-p", "seeds=1", "-p", "seeds=2"], "seeds is given twice"),
    "no such profile": (["run", "1.1", "--profile", "full"], "no profile 'full'; there are quick, smoke"),
    "no such file": (["run", "1.1", "-f", "none.yaml"], "none.yaml: cannot be read"),
    "folder as parameter": (["run", "1.1", "-p", "results=x"], "choose the folder with --results"),
    "no such device": (["run", "1.1", "--device", "tpu"], "--device: no device 'tpu'"),
    "no scheduler": (["run", "1.1", "--cluster", "tcp://127.0.0.1:1"], "--cluster .*: no scheduler answers"),
    "below a file": (["run", "1.1", "--results", __file__], "; choose another folder with --results"),
    "one of two": (["run", "1.2", "1.1", "-p", "tosses=0"], "01_dice has no parameter 'tosses'"),
    "nothing to show": (["show", "1.1"], "1.1 has not run at quick: use `lab run 1.1` first"),
    "nothing to publish": (["publish"], "no notebook has run at quick here"),
}


@pytest.mark.parametrize("words, said", REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_run_is_refused_in_a_sentence_before_a_kernel_starts(words, said, monkeypatch):
    monkeypatch.setattr(run, "execute", None)
    result = lab(*words)
    assert result.exit_code == 2 and re.search(f"^lab: .*{said}", result.output), result.output


def test_two_runs_on_one_folder_the_second_says_so(project, monkeypatch):
    monkeypatch.setattr(run, "execute", None)
    with FileLock(project / "results" / ".lock"):
        result = lab("run", "1.2")
    assert result.exit_code == 2 and "another `lab run` works on" in result.output and "--results" in result.output


def test_two_runs_on_two_folders_do_not_meet(tmp_path):
    """Their kernels start at the same time in one working folder."""
    for name in "ab":
        (tmp_path / name).mkdir()
        nbformat.write(new_notebook(cells=[new_code_cell("import time; time.sleep(3)")]), tmp_path / name / "x.ipynb")
    both = [start("run", tmp_path / name / "x.ipynb", "--results", tmp_path / name) for name in "ab"]
    for process in both:
        said, _ = process.communicate(timeout=60)
        assert process.returncode == 0 and "x: done in" in said, said


# Failures

CELLS = {  # the second cell; what is said
    "an error": ("raise KeyError('gone')", r"cell 2: .*KeyError.*gone"),
    "sys.exit": ("import sys\nsys.exit(0)", "cell 2 called sys.exit: the cells after it did not run"),
    "a magic": ("%nonsuch 1", "cell 2: %nonsuch 1: .*not found"),
    "a killed kernel": ("import os\nos.kill(os.getpid(), 9)", "the kernel died .* finished trials are kept"),
    "a full disk": ("raise OSError(28, 'No space left on device')", "cell 2: OSError: .*make room, or .* --results"),
    "a sound one": ("x = 1", "done in"),
}


@pytest.fixture(scope="module")
def own(project, tmp_path_factory):
    """The output of a run of notebooks of one's own, one for each of CELLS, and their folder."""
    folder = tmp_path_factory.mktemp("own")
    for name, (source, _) in CELLS.items():
        cells = [new_code_cell("print('begun')"), new_code_cell(source), new_code_cell("print('ended')")]
        nbformat.write(new_notebook(cells=cells), folder / f"{name}.ipynb")
    paths = [folder / f"{name}.ipynb" for name in CELLS]
    return lab("run", *paths, "--results", folder / "out"), folder


def test_a_failing_notebook_stops_no_other_and_leaves_nothing(own):
    result, folder = own
    assert result.exit_code == 1 and "5 of 6 failed: an error, sys.exit," in result.output
    assert [path.name for path in (folder / "out" / "runs" / "own").iterdir()] == ["a sound one"]


@pytest.mark.parametrize("name", CELLS)
def test_a_failure_names_the_cell_and_the_cause(own, name):
    told = own[0].output.partition(f"] {name}: ")[2].partition("\n[")[0]
    assert re.search(CELLS[name][1], told, re.DOTALL), told
    assert name == "an error" or "Traceback" not in told


def test_only_what_a_run_made_is_cleared(own):
    """Not the folder of a neighbour whose name begins alike."""
    _, folder = own
    neighbours = [folder / "out" / "runs" / "own" / name for name in (".a sound one-2", "a sound one-1")]
    for each in neighbours:
        each.mkdir()
    assert lab("run", folder / "a sound one.ipynb", "--results", folder / "out").exit_code == 0
    assert all(each.exists() for each in neighbours)


@pytest.mark.parametrize("last", ["study.finish()", "raise KeyError"])
def test_under_bare_papermill_a_run_is_complete_or_absent(last, tmp_path):
    begun = "import lab, pandas as pd\nstudy = lab.study('mine', globals())\nstudy.table('x', pd.DataFrame({'a': [1]}))"
    nbformat.write(new_notebook(cells=[new_code_cell(begun), new_code_cell(last)]), tmp_path / "mine.ipynb")
    command = [sys.executable, "-m", "papermill", "mine.ipynb", "out.ipynb", "-k", "python3", "--no-progress-bar"]
    subprocess.run(command, cwd=tmp_path, capture_output=True)
    made_of = {
        path.relative_to(tmp_path / "lab-results").as_posix() for path in (tmp_path / "lab-results").rglob("*.*")
    }
    assert made_of == ({"mine/run.json", "mine/answers.csv", "mine/tables/x.csv"} if "finish" in last else set())


# Kills


@pytest.fixture
def forgotten(done, project):
    """The folder of the trials, which have to run once more."""
    store = project / "results" / ".trials" / DICE
    shutil.rmtree(store, ignore_errors=True)
    yield store
    allow(project / "gate", None)


def stored(store):
    return [line for path in store.glob("*.jsonl") for line in trials.read(path)[1]]


def kernel_of(process):
    """The kernel that a runner has started, as soon as it is there."""

    def found():
        family = psutil.Process(process.pid).children(recursive=True)
        return next((child for child in family if "ipykernel" in " ".join(child.cmdline())), None)

    return wait_for(found)


def stopped_at_three(forgotten, project, blow):
    """What a run says that gets this signal when three trials are finished, and its exit status."""
    allow(project / "gate", 3)
    process = start(*SMOKE, "--fresh")
    kernel = kernel_of(process)
    wait_for(lambda: len(stored(forgotten)) == 3)
    orphans = [kernel, *kernel.children(recursive=True)]
    process.send_signal(blow)
    said, _ = process.communicate(timeout=60)
    _, alive = psutil.wait_procs(orphans, timeout=5)
    assert not alive, "the kernel and its workers end with their runner"
    return said, process.returncode


def test_a_killed_run_leaves_earlier_results_and_the_same_command_goes_on(done, forgotten, project):
    before = files_of(done.folder)
    stopped_at_three(forgotten, project, signal.SIGKILL)
    kept = stored(forgotten)
    assert len(kept) == 3 and files_of(done.folder) == before
    with next(forgotten.glob("*.jsonl")).open("a") as half:
        half.write('{"trial": "thro')
    allow(project / "gate", None)
    result = lab(*SMOKE, "--fresh")
    assert result.exit_code == 0, result.output
    now = stored(forgotten)
    assert len(now) == THROWS and now[:3] == kept
    tables = [path for path in before if path.suffix == ".csv"]
    assert tables and all(path.read_bytes() == before[path] for path in tables)
    assert [path.name for path in done.folder.parent.iterdir()] == [DICE]


@pytest.mark.parametrize("blow", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=slow)])
def test_a_run_that_is_stopped_says_that_the_same_command_goes_on(blow, done, forgotten, project):
    before = files_of(done.folder)
    said, status = stopped_at_three(forgotten, project, blow)
    assert status == 130 and run.STOPPED in said and not re.search("Traceback|Error|Warning", said), said
    assert files_of(done.folder) == before and len(stored(forgotten)) == 3
    assert [path.name for path in done.folder.parent.iterdir()] == [DICE]


@slow
def test_a_full_disk_is_named_and_earlier_results_stay(done, tmp_path):
    """On a disk in a mount namespace of its own, which vanishes with the command."""
    (disk := tmp_path / "disk").mkdir()
    mount = f"mount -t tmpfs -o size=1m none {disk}"
    try:
        subprocess.run(["unshare", "--mount", "sh", "-ec", mount], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no mount for a test")
    script = f"""{mount}
        mkdir -p {disk}/runs/smoke; cp -r {done.folder} {disk}/runs/smoke
        head -c 2m /dev/zero > {disk}/filler || true
        "$@" || echo "status $?"
        diff -r {done.folder} {disk}/runs/smoke/{DICE}; ls -A {disk}/runs/smoke"""
    command = [sys.executable, "-m", "lab.run", *SMOKE, "--fresh", "--results", str(disk)]
    ended = subprocess.run(["unshare", "--mount", "sh", "-ec", script, "lab", *command],
                           cwd=CHECKOUT, capture_output=True, text=True)  # fmt: skip
    assert "No space left on device" in ended.stdout and "status 1" in ended.stdout, ended
    assert "--results" in ended.stdout and "Traceback" not in ended.stdout
    assert ended.returncode == 0 and ended.stdout.endswith(f"status 1\n{DICE}\n"), "earlier results are as they were"


# Browsing


def test_the_list_is_readable_where_the_terminal_knows_ascii_alone(done):
    path = files.notebooks()[1]
    sound = path.read_text("utf-8")
    path.write_text(sound.replace("What do coins show?", "What do coins show ✓?"), "utf-8")
    ended = subprocess.run([sys.executable, "-m", "lab.run", "list"], env=os.environ | {"PYTHONIOENCODING": "ascii"},
                           capture_output=True, text=True)  # fmt: skip
    path.write_text(sound, "utf-8")
    assert ended.returncode == 0 and re.search(r"^1.2 +What do coins show \?+ +not run yet$", ended.stdout, re.M)


def test_answers_of_two_runs_stand_side_by_side(done, tmp_path):
    said = lab("diff", done.folder, done.folder).output
    assert "dice-count" in said and "0 of 2 lines differ" in said
    shutil.copytree(done.folder, tmp_path / "other")
    table = pd.read_csv(tmp_path / "other" / "answers.csv", dtype=str, keep_default_na=False)
    table.loc[0, ["effect", "answer"]] = ["0.123456", "no"]
    files.write_table(tmp_path / "other" / "answers.csv", table)
    said = lab("diff", done.folder, tmp_path / "other").output
    assert "dice-more-sides" in said and "dice-count" not in said and "1 of 2 lines differ" in said
    assert re.search(r"not judged .* \|  no 0.123", said)


def test_a_lesson_is_shown_with_folded_code_and_formulas_that_need_no_network(done, project, monkeypatch):
    opened = []
    monkeypatch.setattr("webbrowser.open", lambda address: opened.append(address) or True)
    result = lab("show", done.folder)
    assert result.exit_code == 0 and opened == [(project / "results" / ".shown" / f"{DICE}.html").as_uri()]
    text = (project / "results" / ".shown" / f"{DICE}.html").read_text("utf-8")
    assert "<summary>def thrown(seed: int, sides: int, dice: int, scale: float):</summary>" in text
    assert "max-width: 720px" in text and "injected" not in text


def test_formulas_are_pictures_and_code_stays(tmp_path):
    source = r"Half, $\frac12 \le x$, and `$code$`:" + "\n\n$$\\sum_i x_i$$\n\n$\\nonsuch{x}$ stays."
    nbformat.write(new_notebook(cells=[new_markdown_cell(source)]), tmp_path / "a.ipynb")
    text = browse.html_of(tmp_path / "a.ipynb")
    assert text.count('class="formula"') == 2 and r'alt="\frac12 \le x"' in text
    assert "<code>$code$</code>" in text and r"$\nonsuch{x}$" in text


def test_an_answer_and_a_title_are_read_from_their_cells(tmp_path):
    cells = [("", "# 1.4 How many?\n\n*One or two?*\n\nMore."), ("answer", made.folded("# Two.\nOr so.", "两个。"))]
    made.write_notebook(tmp_path / "a.ipynb", cells)
    assert files.title_of(tmp_path / "a.ipynb") == ("1.4 How many?", "One or two?")
    assert files.answer_of(tmp_path / "a.ipynb") == "# Two. Or so."


# The READMEs


def commands(name, word):
    """[words after the first] of the commands that a README shows, on lines of their own and inside sentences."""
    text = (CHECKOUT / name).read_text("utf-8")
    shown = re.findall(rf"^    (?:\.venv/bin/)?{word} (.*)$", text, re.MULTILINE)
    shown += re.findall(rf"`(?:\.venv/bin/)?{word} ([a-z-][^`]*)`", text)
    return [shlex.split(line, comments=True) for line in shown]


@pytest.mark.parametrize("name", ["README.md", "README.zh.md", "CONTRIBUTING.md"])
def test_every_command_is_understood_and_what_it_names_is_there(name, monkeypatch):
    monkeypatch.setenv("LAB_PROJECT", str(CHECKOUT))
    monkeypatch.chdir(CHECKOUT)
    for first, *words in commands(name, "lab"):
        command = get_command(app).commands[first]
        given = command.make_context(first, words).params
        if first == "run":
            chosen = ("-p", run.assignments(given["parameter"]))
            assert run.plan(given["notebooks"] or [], given["profile"], CHECKOUT / "results", chosen)
    targets = re.findall(r"^([a-z-]+):", (CHECKOUT / "Makefile").read_text("utf-8"), re.MULTILINE)
    shown = [words[0].rstrip(";") for words in commands(name, "make")]
    assert shown and set(shown) <= set(targets)


def test_what_the_readme_changes_in_a_model_runs_as_printed():
    snippets = re.findall(r"```python\n(.*?)```", (CHECKOUT / "README.md").read_text("utf-8"), re.DOTALL)
    code = "import torch\n" + "\n".join(snippets)
    ended = subprocess.run([sys.executable, "-c", code], cwd=CHECKOUT, capture_output=True, text=True)
    assert len(snippets) == 2 and ended.returncode == 0, ended.stderr
