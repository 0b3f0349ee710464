"""A notebook, a ledger, a package of one's own, in a folder outside the project; and what the browser shows.

Of `lab.tools.new`, `lab.tools.browse`, `lab.trials.entry_points` and the book's page on one's own idea.
"""

import os
import re
import shutil
import subprocess
import sys
import webbrowser

import nbformat
import papermill
import pytest
import torch
import yaml
from helpers import notebook_with
from jinja2 import Environment, FileSystemLoader
from made import DICE, ran
from rich.cells import cell_len
from typer.testing import CliRunner

import lab
from lab.book import pages
from lab.claims.claims import own_ledger
from lab.measure.attention import attention_probe, entropy
from lab.study import found_beside
from lab.tools.cli import app
from lab.trials import entry_points, parameters, runs
from lab.trials.store import File

ENVIRONMENT = os.environ | {"PYTHONPATH": str(runs.CHECKOUT)}
TINY = {"seeds": 2, "steps": 4, "d_model": 8}


def command(*arguments):
    return CliRunner().invoke(app, [str(each) for each in arguments])


# A notebook of one's own


@pytest.mark.parametrize("language", ["en", "zh"])
def test_new_makes_a_notebook_and_its_ledger_and_overwrites_neither(tmp_path, language):
    made = command("new", tmp_path / "ideas" / "mine", "--language", language)
    assert made.exit_code == 0, made.output
    book = nbformat.read(tmp_path / "ideas" / "mine.ipynb", 4)
    words = "".join(cell.source for cell in book.cells if cell.cell_type == "markdown")
    assert bool(re.search("[\u4e00-\u9fff]", words)) == (language == "zh")
    for cell in book.cells:
        if cell.cell_type == "code":
            compile(cell.source, "cell", "exec")
    (claim,) = own_ledger(tmp_path / "ideas" / "mine.yaml").values()
    assert len(claim.parts[0].needs.gates) >= 4 and claim.claim_zh == "" and claim.exercise == ""
    assert parameters.validate(tmp_path / "ideas" / "mine.ipynb", {"seeds": 3}, "here")["seeds"] == 3
    again = command("new", tmp_path / "ideas" / "mine.ipynb")
    assert again.exit_code == 2 and "already exists" in again.output
    assert command("new", tmp_path / "mine", "--language", "fr").exit_code == 2


@pytest.mark.slow
def test_a_new_notebook_runs_by_bare_papermill_and_by_lab_run_from_any_folder(tmp_path, monkeypatch):
    folder, elsewhere = tmp_path / "ideas", tmp_path / "elsewhere"
    elsewhere.mkdir()
    command("new", folder / "mine")
    monkeypatch.chdir(elsewhere)
    monkeypatch.setenv("PYTHONPATH", str(runs.CHECKOUT))
    papermill.execute_notebook(folder / "mine.ipynb", elsewhere / "out.ipynb", TINY, kernel_name="python3",
                               progress_bar=False)  # fmt: skip
    done = folder / "lab-results" / "mine"
    assert runs.read_run(done)["status"] == "done" and (done / "figures" / "lengths.png").exists()
    assert "out of reach" in (done / "verdicts.csv").read_text()
    given = [f"-p{name}={value}" for name, value in TINY.items()]
    given_first = [sys.executable, "-m", "lab.tools.cli", "run", folder / "mine.ipynb", "--results", "here"]
    ran = subprocess.run([*given_first, *given], cwd=elsewhere, env=ENVIRONMENT, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert list((elsewhere / "here" / "runs").glob("*/mine-*/verdicts.csv"))


CLAIM = {
    "id": "a-over-b",
    "claim": "A is better",
    "question": "a - b",
    "measure": "x",
    "compare": {"arm": ["a", "b"]},
    "direction": "above",
    "bar": 0,
    "needs": {"budget": {"same": ["size"]}},
}


def test_a_study_reads_a_ledger_beside_it_and_keeps_its_results_there(tmp_path, monkeypatch):
    import pandas as pd

    (tmp_path / "mine.yaml").write_text(yaml.safe_dump([CLAIM]))
    monkeypatch.chdir(tmp_path)
    mine = lab.study(ledger="mine.yaml")
    assert mine.exercise == "mine" and mine.options.store == tmp_path / "lab-results" / ".trials"
    assert tmp_path / "lab-results" / "record" in mine.options.record
    table = pd.DataFrame({"arm": list("aabb"), "seed": [0, 1] * 2, "x": [2.0, 2.1, 1.0, 1.1], "size": 1})
    mine.judge("a-over-b", table)
    mine.finish()
    assert mine.lines("a-over-b")[0].label == "supported"
    assert (tmp_path / "lab-results" / "mine" / "verdicts.csv").exists()


def test_a_ledger_is_found_where_its_notebook_is(tmp_path, monkeypatch):
    made, moved = tmp_path / "made", tmp_path / "moved"
    for folder in (made, moved):
        folder.mkdir()
        (folder / "mine.yaml").write_text("")
    monkeypatch.delenv("JPY_SESSION_NAME", raising=False)
    monkeypatch.chdir(tmp_path)
    assert found_beside(made / "mine.yaml") == made / "mine.yaml", "from another folder"
    monkeypatch.chdir(moved)
    assert found_beside(made / "mine.yaml") == moved / "mine.yaml", "copied with its notebook"
    monkeypatch.setenv("JPY_SESSION_NAME", str(made / "mine.ipynb"))
    assert found_beside("mine.yaml") == made / "mine.yaml", "in JupyterLab"
    with pytest.raises(FileNotFoundError, match="there is no ledger nonsuch.yaml; looked at"):
        found_beside("nonsuch.yaml")


def test_a_ledger_that_cannot_be_read_is_named(tmp_path):
    for broken in ([CLAIM | {"clam": 1}], [{"id": "x"}], "{"):
        path = tmp_path / "mine.yaml"
        path.write_text(broken if isinstance(broken, str) else yaml.safe_dump(broken))
        with pytest.raises(ValueError, match="mine.yaml: "):
            own_ledger(path)
        path.unlink()


# A package of one's own


def test_variants_of_an_installed_package_are_found_by_its_entry_point(tmp_path):
    info = tmp_path / "fading-0.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: fading\nVersion: 0.1\n")
    (info / "entry_points.txt").write_text("[transformer_lab]\nfading = fading\nbroken = no_such_module\n")
    (tmp_path / "fading.py").write_text(
        "from lab.models.positions import Position\n\n\nclass Fading(Position, kind='fading'):\n    pass\n"
    )
    code = (
        "import warnings; warnings.simplefilter('ignore')\n"
        "from lab.trials import entry_points, parameters\n"
        "parameters.check('from lab.models.positions import Position\\nPosition.resolve(position)', "
        "{'position': 'fading'}, 'here')\n"
        "warnings.simplefilter('error')\n"
        "print(sorted(entry_points.load()))"
    )
    path = os.pathsep.join([str(tmp_path), str(runs.CHECKOUT)])
    done = subprocess.run([sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": path}, cwd=tmp_path,
                          capture_output=True, text=True)  # fmt: skip
    assert done.stdout.strip() == "['fading']", done.stderr


def test_an_entry_point_that_fails_is_named(monkeypatch):
    entry = entry_points.metadata.EntryPoint("broken", "no_such_module", entry_points.GROUP)
    monkeypatch.setattr(entry_points.metadata, "entry_points", lambda group: [entry])
    with pytest.warns(UserWarning, match="entry point broken = 'no_such_module': ModuleNotFoundError"):
        assert entry_points.load.__wrapped__() == {}


# The book's page


def page(zh, name="own"):
    environment = Environment(loader=FileSystemLoader(pages.HERE / "templates"))
    told = {"t": lambda english, chinese: chinese if zh else english, "zh": zh, "lessons": []}
    return environment.get_template(f"{name}.md").render(**told)


@pytest.mark.parametrize("name", ["own", "probes", "teach"])
def test_the_page_has_the_same_code_in_both_languages(name):
    english, chinese = page(False, name), page(True, name)
    assert re.findall("```.*?```", english, re.DOTALL) == re.findall("```.*?```", chinese, re.DOTALL)
    prose = re.sub("```.*?```|`[^`]*`", "", chinese, flags=re.DOTALL)
    assert all(re.search("[\u4e00-\u9fff]", part) for part in prose.split("\n\n") if part.strip() and part[0] != " ")


@pytest.mark.slow
def test_the_code_of_the_page_runs_outside_the_project(tmp_path):
    """As printed, but for the size of the models: ten trainings take minutes."""
    scripts = dict(re.findall(r"```python\n# (\w+\.py)\n(.*?)```", page(False), re.DOTALL))
    assert set(scripts) == {"fading.py", "judge.py", "other.py"}
    scripts["judge.py"] = scripts["judge.py"].replace("seeds=5,", "seeds=2, jobs=1, steps=4, d_model=8,")
    for name, text in scripts.items():
        (tmp_path / name).write_text(text)
    for name in ("judge.py", "other.py"):
        done = subprocess.run([sys.executable, name], cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True)
        assert done.returncode == 0 and "out of reach" in done.stdout, done.stdout + done.stderr
    there = {path.name for path in (tmp_path / "lab-results").glob("[!.]*")}
    assert there == {"copy-rotary-mine", "parity-causal-even"}


PROBED = dict(re.findall(r"```python\n# (\w+\.py)\n(.*?)```", page(False, "probes"), re.DOTALL))


@pytest.mark.slow
@pytest.mark.parametrize("name", PROBED)
def test_the_probes_of_the_page_see_what_they_say(tmp_path, name):
    pytest.importorskip("transformers")
    more = {"decoder.py": "assert len(probe.table()) == 2 * 4 * 3",
            "encoder.py": "assert probe.table().value.notna().all()",
            "pictures.py": "assert looks.shape == (4, 8, 8)", "own.py": "assert len(probe.table()) == 4"}  # fmt: skip
    (tmp_path / name).write_text(PROBED[name] + more[name])
    done = subprocess.run([sys.executable, "-W", "error::UserWarning", name], cwd=tmp_path, env=ENVIRONMENT,
                          capture_output=True, text=True)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert ("never observed" in done.stdout) == (name == "own.py")


def test_the_fused_path_of_torch_is_seen_as_the_page_says():
    layer = torch.nn.TransformerEncoderLayer(16, 2, 16, batch_first=True).eval()
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with torch.no_grad(), attention_probe([entropy]) as probe:
            layer(torch.rand(1, 5, 16))
    finally:
        torch.backends.mha.set_fastpath_enabled(before)
    assert len(probe.table()) == 2


# What is looked at


@pytest.mark.parametrize("language", ["en", "zh"])
def test_list_shows_question_minutes_and_state_in_aligned_columns(project, language):
    ran(project)
    result = command("list", "--language", language)
    assert result.exit_code == 0
    head, *lines, legend = result.output.splitlines()
    assert cell_len(head) <= 80 and cell_len(legend) <= 80
    assert len(lines) == len(parameters.notebooks())
    for line, notebook in zip(lines, parameters.notebooks(), strict=True):
        assert line.startswith(f"{parameters.exercise_of(notebook)} ") and cell_len(line) <= 80
    assert bool(re.search("[\u4e00-\u9fff]", lines[0])) == (language == "zh")
    rows = [line.rstrip() for line in lines]
    starts = {cell_len(row) - cell_len(re.split(r" {2,}", row)[-1]) for row in rows}
    assert len(starts) == 1, "the last column begins at one place"
    assert command("list", "--language", "fr").exit_code == 2


def test_list_tells_what_a_lesson_takes_from_the_record_and_without(project):
    run = runs.read_run(folder := ran(project))
    runs.write_run(folder, run | {"seconds": 30.0, "core_seconds": 90.0})
    (without, _), record = listed(), project / "results" / "record" / f"{DICE}.jsonl"
    stored = File(project / "results" / ".trials" / f"{DICE}.jsonl").trials
    File(record).rewrite([body | {"seconds": seconds} for body, seconds in zip(stored, (150, 240), strict=False)])
    recorded, coins = listed()
    record.unlink()
    assert without.split()[-4:] == ["0.5", "1.5", "–", "published"], "by the run, where there is no record"
    assert recorded.split()[-4:] == ["0.5", "6.5", "✓", "published"]
    assert coins.split()[-4:] == ["–", "not", "run", "yet"]


def listed():
    _, *lines, _ = command("list").output.splitlines()
    return lines


def test_show_opens_the_figures_or_the_lesson_and_prints_where_they_are(project, monkeypatch):
    opened, shown = [], project / "results" / ".shown"
    monkeypatch.setattr(webbrowser, "open", lambda uri: opened.append(uri) or len(opened) == 1)
    folder = ran(project)
    assert command("show", "1.1", "--figures").exit_code == 0
    assert opened == [(shown / f"{DICE}-figures.html").as_uri()]
    text = (shown / f"{DICE}-figures.html").read_text("utf-8")
    assert text.count("<figure>") == len(list(folder.glob("figures/*.png"))) == 1
    book = nbformat.read(folder / "notebook.ipynb", 4)
    tags = {"tags": ["injected-parameters"]}
    book.cells.insert(2, nbformat.v4.new_code_cell("sides_again = 3", metadata=tags))
    nbformat.write(book, folder / "notebook.ipynb")
    lesson = command("show", "01")
    assert str(shown / f"{DICE}-lesson.html") in lesson.output.replace("\n", "")
    assert "no browser opened" in lesson.output
    assert "What do dice show?" in (shown / f"{DICE}-lesson.html").read_text("utf-8")
    text = (shown / f"{DICE}-lesson.html").read_text("utf-8")
    assert "sides_again" not in text and "of what is shown" in text, "the parameters once"
    assert "骰子" in re.search("<summary>中文</summary>(.*?)</details>", text, re.DOTALL)[1], "it unfolds"
    assert "formulas need the network" in lesson.output
    assert command("show", "1.99").exit_code == 2 and command("show", "1.1", "--profile", "none").exit_code == 2


@pytest.mark.parametrize("profile", ["", "quick"])
def test_the_run_of_a_notebook_from_elsewhere_is_shown_by_its_path(project, tmp_path, monkeypatch, profile):
    monkeypatch.setattr(webbrowser, "open", lambda uri: True)
    monkeypatch.chdir(tmp_path)
    path = notebook_with(tmp_path, "mine.ipynb", first="print('mine')")
    assert "has not run" in command("show", "mine.ipynb").output
    folder = runs.place_of_run(profile, "mine")
    folder.mkdir(parents=True)
    shutil.copy(path, folder / "notebook.ipynb")
    runs.write_run(folder, {"status": "done", "notebook": str(path), "own_parameters": {}})
    shown = command("show", "mine.ipynb")
    assert shown.exit_code == 0 and "mine-lesson.html" in shown.output.replace("\n", "")
    shutil.rmtree(folder)
