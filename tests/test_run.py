"""`lab run`: invalid input, failures, kills, concurrency; `lab list`, `show` and `diff`. Also tests lab.browse."""

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

from lab import browse, files, run, runs, trials
from lab.files import CHECKOUT
from lab.run import app

pytestmark = pytest.mark.usefixtures("project")
SMOKE = ["run", "1.1", "--profile", "smoke", "--jobs", "1"]
slow = pytest.mark.slow


def lab(*words):
    """Run the command `lab` in this process."""
    return CliRunner().invoke(app, [str(word) for word in words])


def start(*words, **options):
    """Start the command `lab` in a new process."""
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "cwd": CHECKOUT}
    return subprocess.Popen([sys.executable, "-m", "lab.run", *map(str, words)], **streams | options)


def files_of(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def done(project):
    """The finished smoke job of the dice notebook."""
    result = lab(*SMOKE)
    assert result.exit_code == 0, result.output
    (job,) = runs.plan(["1.1"], "smoke", project / "results")
    job.__dict__["output"] = result.output
    return job


# Results


def test_finished_run_is_skipped(done):
    names = {path.name for path in done.folder.iterdir()}
    assert names == {"notebook.ipynb", "run.json", "answers.csv", "tables", "figures"}
    assert f"to open it: lab show results/runs/smoke/{DICE}" in done.output
    assert "8 sides minus 4" in done.output and f"Trials: {THROWS} by " in done.output
    before = files_of(done.folder)
    result = lab(*SMOKE)
    assert result.exit_code == 0 and f"{DICE}: up to date" in result.output
    assert files_of(done.folder) == before
    kept = files.read_run(done.folder)
    about = ("notebook", "profile", "own", "changes", "machine", "started")
    assert set(about) < set(kept) and kept["parameters"] == done.values and kept["fingerprint"] == done.fingerprint


def test_stored_notebook_has_no_papermill_metadata_or_absolute_paths(done, project):
    text = (done.folder / "notebook.ipynb").read_text("utf-8")
    book = nbformat.reads(text, 4)
    assert book.metadata.kernelspec == {"name": "python3", "display_name": "Python 3", "language": "python"}
    assert "papermill" not in book.metadata and "widgets" not in book.metadata
    assert not any({"papermill", "execution"} & set(cell.metadata) for cell in book.cells)
    assert f"Results: `results/runs/smoke/{DICE}`" in text and f"{project}/results" not in text


@pytest.mark.parametrize("edit", ["notebook", "claims", "parameters", "package"])
def test_changed_dependency_invalidates_a_run(done, project, edit, monkeypatch):
    assert done.is_done
    if edit == "parameters":
        (job,) = runs.plan(["1.1"], "smoke", project / "results", ("-p", {"seeds": 3}))
        assert job.folder.name == f"{DICE}-seeds-3" and not job.is_done and job.own == {"seeds": 3}
        return
    if edit == "package":
        monkeypatch.setattr(runs, "__file__", str(CHECKOUT / "tests" / "gate.py"))
        assert not done.is_done
        return
    folder, suffix = {"notebook": ("notebooks", "ipynb"), "claims": ("experiments/claims", "yaml")}[edit]
    path = project / folder / f"{DICE}.{suffix}"
    sound = path.read_bytes()
    path.write_bytes(sound + b"\n")
    assert not done.is_done
    path.write_bytes(sound)


def test_corrupt_run_json_counts_as_no_run(done):
    sound = (done.folder / "run.json").read_bytes()
    (done.folder / "run.json").write_bytes(sound[:-40])
    assert not done.is_done
    (done.folder / "run.json").write_bytes(sound)


# Invalid input

INVALID = {
    "no such notebook": (["run", "1.9"], "'1.9' is neither an exercise nor .* choose from 1.1 \\(01_dice\\)"),
    "misspelt": (["run", "1.1", "-p", "seed=3"], "-p: 01_dice has no parameter 'seed'; did you mean 'seeds'"),
    "no divisor": (["run", "1.1", "-p", "sides=[3]"], "-p: sides: 3 is no multiple of dice 2"),
    "no value": (["run", "1.1", "-p", "seeds"], "-p 'seeds': expected NAME=VALUE"),
    "no such profile": (
        ["run", "1.1", "--profile", "full"],
        "--profile full: profile = 'full': input should be 'quick' or 'smoke'",
    ),
    "no such file": (["run", "1.1", "-f", "none.yaml"], "none.yaml: cannot be read"),
    "folder as parameter": (
        ["run", "1.1", "-p", "results=x"],
        "results is not a parameter .* use the option --results",
    ),
    "no such device": (["run", "1.1", "--device", "tpu"], "--device: device 'tpu' is not available"),
    "below a file": (["run", "1.1", "--results", __file__], "; choose another folder with --results"),
    "one of two": (["run", "1.2", "1.1", "-p", "tosses=0"], "01_dice has no parameter 'tosses'"),
    "nothing to show": (["show", "1.1"], "no run of 1.1: use `lab run 1.1` first"),
    "nothing to publish": (["publish"], "there are no quick runs"),
}


@pytest.mark.parametrize("words, message", INVALID.values(), ids=INVALID)
def test_invalid_input_exits_before_a_kernel_starts(words, message, monkeypatch):
    monkeypatch.setattr(runs, "execute", None)
    result = lab(*words)
    assert result.exit_code == 2 and re.search(f"^lab: .*{message}", result.output), result.output


def test_concurrent_run_on_the_same_folder_is_refused(project, monkeypatch):
    monkeypatch.setattr(runs, "execute", None)
    with FileLock(project / "results" / ".lock"):
        result = lab("run", "1.2")
    assert result.exit_code == 2 and "another `lab run` is using" in result.output and "--results" in result.output


@slow
def test_concurrent_runs_with_two_results_folders_both_succeed(tmp_path):
    """Their kernels start at the same time."""
    for name in "ab":
        (tmp_path / name).mkdir()
        nbformat.write(new_notebook(cells=[new_code_cell("import time; time.sleep(3)")]), tmp_path / name / "x.ipynb")
    both = [start("run", tmp_path / name / "x.ipynb", "--results", tmp_path / name) for name in "ab"]
    for process in both:
        said, _ = process.communicate(timeout=60)
        assert process.returncode == 0 and "x: done in" in said, said


# Failures

CELLS = {  # {name: (second cell, expected output)}
    "an error": ("raise KeyError('gone')", r"cell 2: .*KeyError.*gone"),
    "sys.exit": ("import sys\nsys.exit(0)", "cell 2 called sys.exit: the cells after it did not run"),
    "a magic": ("%nonsuch 1", "cell 2: %nonsuch 1: .*not found"),
    "a killed kernel": ("import os\nos.kill(os.getpid(), 9)", "the kernel died .* finished trials are cached"),
    "a full disk": (
        "raise OSError(28, 'No space left on device')",
        "cell 2: OSError: .*free some space .* --results",
    ),
    "a sound one": ("x = 1", "done in"),
}


@pytest.fixture(scope="module")
def own(project, tmp_path_factory):
    """The output of one run of a user notebook per entry of CELLS, and the folder of the notebooks."""
    folder = tmp_path_factory.mktemp("own")
    for name, (source, _) in CELLS.items():
        cells = [new_code_cell("print('begun')"), new_code_cell(source), new_code_cell("print('ended')")]
        nbformat.write(new_notebook(cells=cells), folder / f"{name}.ipynb")
    paths = [folder / f"{name}.ipynb" for name in CELLS]
    return lab("run", *paths, "--results", folder / "out"), folder


def test_failed_notebook_does_not_stop_others_and_leaves_no_results(own):
    result, folder = own
    assert result.exit_code == 1 and "5 of 6 failed: an error, sys.exit," in result.output
    assert [path.name for path in (folder / "out" / "runs" / "own").iterdir()] == ["a sound one"]


@pytest.mark.parametrize("name", CELLS)
def test_failure_names_cell_and_cause(own, name):
    output = own[0].output.partition(f"] {name}: ")[2].partition("\n[")[0]
    assert re.search(CELLS[name][1], output, re.DOTALL), output
    assert name == "an error" or "Traceback" not in output


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_progress_without_a_terminal_goes_where_errors_go(tmp_path):
    code = "from lab import runs; print('half done', file=open(runs.terminal(), 'a'))"
    with (tmp_path / "log").open("w") as log:
        subprocess.run([sys.executable, "-c", code], stderr=log, cwd=CHECKOUT, check=True)
    assert (tmp_path / "log").read_text() == "half done\n"


def test_cleanup_keeps_folders_with_similar_names(own):
    _, folder = own
    neighbours = [folder / "out" / "runs" / "own" / name for name in (".a sound one-2", "a sound one-1")]
    for each in neighbours:
        each.mkdir()
    assert lab("run", folder / "a sound one.ipynb", "--results", folder / "out").exit_code == 0
    assert all(each.exists() for each in neighbours)


@pytest.mark.parametrize("last", [pytest.param("study.finish()", marks=slow), "raise KeyError"])
def test_papermill_run_leaves_complete_results_or_none(last, tmp_path):
    begun = "import lab, pandas as pd\nstudy = lab.study('mine', globals())\nstudy.table('x', pd.DataFrame({'a': [1]}))"
    nbformat.write(new_notebook(cells=[new_code_cell(begun), new_code_cell(last)]), tmp_path / "mine.ipynb")
    command = [sys.executable, "-m", "papermill", "mine.ipynb", "out.ipynb", "-k", "python3", "--no-progress-bar"]
    subprocess.run(command, cwd=tmp_path, capture_output=True)
    root = tmp_path / "lab-results"
    names = {path.relative_to(root).as_posix() for path in root.rglob("*.*")}
    assert names == ({"mine/run.json", "mine/answers.csv", "mine/tables/x.csv"} if "finish" in last else set())


# Kills


@pytest.fixture
def empty_store(done, project):
    """The folder of cached trials, emptied."""
    store = project / "results" / ".trials" / DICE
    shutil.rmtree(store, ignore_errors=True)
    yield store
    allow(project / "gate", None)


def stored(store):
    return [line for path in store.glob("*.jsonl") for line in trials.read(path)[1]]


def kernel_of(process):
    """Wait for the kernel started by a `lab run` process."""

    def kernel():
        family = psutil.Process(process.pid).children(recursive=True)
        return next((child for child in family if "ipykernel" in " ".join(child.cmdline())), None)

    return wait_for(kernel)


def stopped_at_three(empty_store, project, signum):
    """(output, exit status) of a run that receives a signal after three trials."""
    allow(project / "gate", 3)
    process = start(*SMOKE, "--fresh")
    kernel = kernel_of(process)
    wait_for(lambda: len(stored(empty_store)) == 3)
    orphans = [kernel, *kernel.children(recursive=True)]
    process.send_signal(signum)
    output, _ = process.communicate(timeout=60)
    _, alive = psutil.wait_procs(orphans, timeout=5)
    assert not alive, "kernel and workers exit with `lab run`"
    return output, process.returncode


def test_killed_run_keeps_earlier_results_and_resumes(done, empty_store, project):
    before = files_of(done.folder)
    stopped_at_three(empty_store, project, signal.SIGKILL)
    kept = stored(empty_store)
    assert len(kept) == 3 and files_of(done.folder) == before
    with next(empty_store.glob("*.jsonl")).open("a") as half:
        half.write('{"trial": "thro')
    allow(project / "gate", None)
    result = lab(*SMOKE, "--fresh")
    assert result.exit_code == 0, result.output
    now = stored(empty_store)
    assert len(now) == THROWS and now[:3] == kept
    tables = [path for path in before if path.suffix == ".csv"]
    assert tables and all(path.read_bytes() == before[path] for path in tables)
    assert [path.name for path in done.folder.parent.iterdir()] == [DICE]


def test_stopped_run_explains_how_to_resume(done, empty_store, project):
    before = files_of(done.folder)
    output, status = stopped_at_three(empty_store, project, signal.SIGINT)
    assert status == 130 and run.STOPPED in output and not re.search("Traceback|Error|Warning|died", output), output
    assert files_of(done.folder) == before and len(stored(empty_store)) == 3
    assert [path.name for path in done.folder.parent.iterdir()] == [DICE]


@slow
def test_full_disk_keeps_earlier_results(done, tmp_path):
    """On a tmpfs in a separate mount namespace."""
    (disk := tmp_path / "disk").mkdir()
    mount = f"mount -t tmpfs -o size=1m none {disk}"
    try:
        subprocess.run(["unshare", "--mount", "sh", "-ec", mount], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("mount is not permitted")
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
    assert ended.returncode == 0 and ended.stdout.endswith(f"status 1\n{DICE}\n"), "earlier results are unchanged"


# Browsing


def test_list_shows_number_title_and_state_of_a_lesson(done):
    assert re.search(r"^1.2 +What do coins show\? +not run yet$", lab("list").output, re.M)


def test_diff_prints_the_answers_that_differ_or_all_if_none_differs(done, tmp_path):
    output = lab("diff", done.folder, done.folder).output
    assert "dice-count" in output and "0 of 2 answers differ" in output
    shutil.copytree(done.folder, tmp_path / "other")
    table = pd.read_csv(tmp_path / "other" / "answers.csv", dtype=str, keep_default_na=False)
    table.loc[0, ["effect", "answer"]] = ["0.123456", "no"]
    files.write_table(tmp_path / "other" / "answers.csv", table)
    output = lab("diff", done.folder, tmp_path / "other").output
    assert "dice-more-sides" in output and "dice-count" not in output and "1 of 2 answers differ" in output
    assert re.search(r"not judged .* \|  no 0.123", output)


def test_show_opens_page_with_folded_code(done, project, monkeypatch):
    opened = []
    monkeypatch.setattr("webbrowser.open", lambda address: opened.append(address) or True)
    result = lab("show", done.folder)
    assert result.exit_code == 0 and opened == [(project / "results" / ".shown" / f"{DICE}.html").as_uri()]
    text = (project / "results" / ".shown" / f"{DICE}.html").read_text("utf-8")
    assert "<summary>def thrown(seed: int, sides: int, dice: int, scale: float):</summary>" in text
    assert "max-width: 720px" in text and "injected" not in text


def test_formulas_become_images_and_code_is_unchanged(tmp_path):
    source = r"Half, $\frac12 \le x$, and `$code$`:" + "\n\n$$\\sum_i x_i$$\n\n$\\nonsuch{x}$ stays."
    nbformat.write(new_notebook(cells=[new_markdown_cell(source)]), tmp_path / "a.ipynb")
    text = browse.html_of(tmp_path / "a.ipynb")
    assert text.count('class="formula"') == 2 and r'alt="\frac12 \le x"' in text
    assert "<code>$code$</code>" in text and r"$\nonsuch{x}$" in text


def test_title_and_answer_of_a_notebook(tmp_path):
    cells = [("", "# 1.4 How many?\n\n*One or two?*\n\nMore."), ("answer", made.folded("# Two.\nOr so.", "两个。"))]
    made.write_notebook(tmp_path / "a.ipynb", cells)
    assert files.title_of(tmp_path / "a.ipynb") == ("1.4 How many?", "One or two?")
    assert files.answer_of(tmp_path / "a.ipynb") == "# Two. Or so."


# Documentation


def commands(name, word):
    """The arguments of all commands `word` in a Markdown file, in code blocks and inline code."""
    text = (CHECKOUT / name).read_text("utf-8")
    shown = re.findall(rf"^    (?:\.venv/bin/)?{word} (.*)$", text, re.MULTILINE)
    shown += re.findall(rf"`(?:\.venv/bin/)?{word} ([a-z-][^`]*)`", text)
    return [shlex.split(line, comments=True) for line in shown]


@pytest.mark.parametrize("name", ["README.md", "README.zh.md", "CONTRIBUTING.md"])
def test_documented_commands_are_valid(name, monkeypatch):
    monkeypatch.setenv("LAB_PROJECT", str(CHECKOUT))
    monkeypatch.chdir(CHECKOUT)
    for first, *words in commands(name, "lab"):
        command = get_command(app).commands[first]
        options = command.make_context(first, words).params
        if first == "run":
            chosen = ("-p", run.assignments(options["parameter"]))
            assert runs.plan(options["notebooks"] or [], options["profile"], CHECKOUT / "results", chosen)
    targets = re.findall(r"^([a-z-]+):", (CHECKOUT / "Makefile").read_text("utf-8"), re.MULTILINE)
    shown = [words[0].rstrip(";") for words in commands(name, "make")]
    assert shown and set(shown) <= set(targets)


def test_readme_snippets_run():
    snippets = re.findall(r"```python\n(.*?)```", (CHECKOUT / "README.md").read_text("utf-8"), re.DOTALL)
    code = "import torch\n" + "\n".join(snippets)
    ended = subprocess.run([sys.executable, "-c", code], cwd=CHECKOUT, capture_output=True, text=True)
    assert len(snippets) == 2 and ended.returncode == 0, ended.stderr
