"""Every notebook is clean in git and runs, from the command line and under bare papermill; the environment is one."""

import json
import logging
import re
import subprocess
import sys
import textwrap
import tomllib

import cells
import nbformat
import pandas as pd
import papermill
import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lab.trials.runs import CHECKOUT, project_root
from lab.trials.store import File
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from lab.claims import claims
from lab.tools import batch
from lab.trials import parameters, runs

NOTEBOOKS = parameters.notebooks()
CHEAPEST = parameters.notebook_of("1.6")
each_notebook = pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
PROJECT = tomllib.loads((project_root() / "pyproject.toml").read_text("utf-8"))["project"]
RUNTIME = {Requirement(text).name.lower(): Requirement(text) for text in PROJECT["dependencies"]}


# The environment


def test_the_conda_environment_is_that_of_the_project():
    environment = yaml.safe_load((project_root() / "environment.yml").read_text("utf-8"))
    (pip,) = (entry["pip"] for entry in environment["dependencies"] if isinstance(entry, dict))
    conda = [Requirement(entry) for entry in environment["dependencies"] if isinstance(entry, str)]
    assert pip == ["-e ."], "whatever conda does not bring comes from pyproject.toml"
    by_name = {requirement.name: requirement.specifier for requirement in conda}
    assert by_name.pop("python") == SpecifierSet(PROJECT["requires-python"])
    by_name.pop("pip")
    names = {"pytorch": "torch"}
    for name, specifier in by_name.items():
        name = names.get(name, name).lower()
        assert name in RUNTIME, f"{name} is no dependency of the project"
        assert specifier in (SpecifierSet(), RUNTIME[name].specifier), "versions are bounded in pyproject.toml"
    assert "torch" in {names.get(name) for name in by_name}, "pip would bring a build for GPUs"
    assert environment["name"] == PROJECT["name"]


def test_what_was_tested_is_pinned():
    path = project_root() / "constraints.txt"
    if not path.exists():
        pytest.skip("there is no constraints.txt yet")
    lines = [line.partition("#")[0].strip() for line in path.read_text("utf-8").splitlines()]
    pinned = {
        r.name.lower().replace("_", "-"): r for r in (Requirement(x) for x in lines if x and not x.startswith("-"))
    }
    for name, wanted in RUNTIME.items():
        assert name in pinned, f"{name} is not pinned"
        ((operator, version),) = ((s.operator, s.version) for s in pinned[name].specifier)
        assert operator == "==" and wanted.specifier.contains(version, prereleases=True), name
    assert str(pinned["torch"].specifier) == "==2.13.0"


# The sources


@each_notebook
def test_a_notebook_in_git_holds_sources_only(notebook):
    book = nbformat.read(notebook, 4)
    nbformat.validate(book)
    assert set(book.metadata) == {"kernelspec"} and book.metadata.kernelspec.name == "python3"
    for cell in book.cells:
        assert not cell.get("outputs") and not cell.get("execution_count"), "make format strips outputs"
        assert set(cell.metadata) <= {"tags", "slideshow", "jupyter"}
    assert str(project_root()) not in notebook.read_text("utf-8")


@each_notebook
def test_a_notebook_is_built_as_all_are(notebook):
    book = nbformat.read(notebook, 4)
    title, *rest = book.cells
    assert title.cell_type == "markdown" and title.source.startswith(f"# 1.{int(notebook.stem[:2])} ")
    assert (
        sum(line.startswith("# ") for c in book.cells if c.cell_type == "markdown" for line in c.source.splitlines())
        == 1
    )
    code = [cell.source for cell in rest if cell.cell_type == "code"]
    everything = "\n".join(code)
    assert f'lab.study("1.{int(notebook.stem[:2])}", globals())' in everything
    assert "study.finish()" in everything
    about = parameters.exercise_of(notebook)
    mine = [c.id for c in claims.ledger().values() if c.exercise == about and not c.open]
    assert [name for name in mine if f'"{name}"' not in everything] == [], "claims that are never judged"


@each_notebook
def test_papermill_understands_every_parameter(notebook, caplog):
    with caplog.at_level(logging.DEBUG, logger="papermill"):
        found = papermill.inspect_notebook(notebook)
    assert not [record.getMessage() for record in caplog.records if "Unable to parse" in record.getMessage()]
    declared = parameters.read_declared(notebook)
    assert list(found) == list(declared)
    for name, parameter in found.items():
        assert parameter["help"], f"{name}: say what it is, and its unit"
        assert parameter["inferred_type_name"].partition("[")[0] == type(declared[name]).__name__, name
        assert eval(parameter["default"]) == declared[name]


@each_notebook
def test_profiles_name_parameters_of_the_notebook_only_and_differ(notebook):
    files = {
        profile: project_root() / "experiments" / profile / f"{notebook.stem}.yaml" for profile in parameters.PROFILES
    }
    assert [profile for profile, path in files.items() if path.exists()] == ["smoke"]
    read = [json.dumps(parameters.of_profile(notebook, profile)) for profile in files]
    assert len(set(read)) == 2
    quick = parameters.of_profile(notebook, "quick")
    assert quick == parameters.read_declared(notebook), "opened by hand a notebook runs at quick sizes"


# Parameters

FILES = sorted((project_root() / "experiments").glob("*/*.yaml"))
FILES = [path for path in FILES if path.parent.name in parameters.PROFILES]
strange = st.one_of(
    st.integers(-3, 70), st.integers(10**9, 10**40), st.floats(), st.none(), st.booleans(), st.text(max_size=8),
    st.sampled_from(["1e-3", "nan", "quick", "../x", "\0"]), st.lists(st.integers(-1, 64), max_size=4),
    st.lists(st.one_of(st.none(), st.floats(), st.text(max_size=3)), max_size=3),
)  # fmt: skip


@each_notebook
def test_every_notebook_declares_what_it_holds(notebook):
    declared = parameters.read_declared(notebook)
    assert list(declared)[:2] == ["profile", "results"]
    assert declared["profile"] == "quick" and declared["results"] == ""
    assert parameters.validate(notebook, {}, "defaults") == declared, "the defaults are valid, and read as they are"


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_every_parameter_file_is_valid_and_of_its_profile(path):
    (notebook,) = (each for each in NOTEBOOKS if each.stem == path.stem)
    checked = parameters.of_profile(notebook, path.parent.name)
    assert checked["profile"] == path.parent.name == parameters.read_file(path)["profile"]
    assert "results" not in parameters.read_file(path), "one place for results: --results"


@pytest.mark.slow
@each_notebook
@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_value_breaks_the_check_of_a_notebook(notebook, data):
    name = data.draw(st.sampled_from(sorted(parameters.read_declared(notebook))))
    try:
        parameters.validate(notebook, {name: data.draw(strange)}, "file")
    except parameters.Refused as refusal:
        assert str(refusal).startswith("file: ")


def test_most_notebooks_are_checked_without_torch():
    code = """
        import sys
        from lab.trials import parameters
        for notebook in parameters.notebooks():
            seam = any("lab.models" in cell for _, tags, cell in parameters.cells_of(notebook) if "checks" in tags)
            None if seam else parameters.of_profile(notebook, "smoke")
        sys.exit("torch" in sys.modules)
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True, cwd=project_root())


# Runs

WIDGET = "application/vnd.jupyter.widget-view+json"
CHOOSING = {1000, 1001, 1002}  # seeds on which rates are chosen, whatever the first seed is
OF_SEED_0 = {"07_position_encodings", "27_more_on_positions"}  # `beyond` keeps what is pictured of that seed alone


def seeds_of(store):
    """Seeds of the trials that a run has finished."""
    finished = [body for path in store.glob("*.jsonl") for body in File(path).trials]
    return {body["parameters"]["seed"] for body in finished if "seed" in body["parameters"]}


def check_run(folder, notebook):
    """What every finished run leaves, in any profile."""
    run = json.loads((folder / "run.json").read_text("utf-8"))
    assert (run["status"], run["profile"], run["exercise"]) == ("done", "smoke", parameters.exercise_of(notebook))
    assert run["versions"]["torch"] and run["machine"] and run["seconds"] > 0
    assert re.fullmatch("[0-9a-f]{40}", run["commit"]) and run["changes"] in (True, False)
    values = {name: value for name, value in parameters.of_profile(notebook, "smoke").items() if name != "results"}
    assert run["parameters"] == values and run["own_parameters"] == {}
    pictures = {path.stem for path in (folder / "figures").glob("*.png")}
    stems = {path.stem for path in (folder / "tables").glob("*.csv")}
    assert pictures and pictures <= stems, "a figure stands beside its table"
    for path in (folder / "tables").glob("*.csv"):
        table = pd.read_csv(path)
        assert len(table) and not [c for c in table.columns if c.startswith("Unnamed")], path.name
    lines = pd.read_csv(folder / "verdicts.csv", dtype={"exercise": str}, keep_default_na=False)
    mine = [c.id for c in claims.ledger().values() if c.exercise == parameters.exercise_of(notebook)]
    assert list(lines.id.drop_duplicates()) == mine and set(lines.label) <= {"not judged", "open"}
    assert set(lines.figure) <= pictures | {""} and set(lines.table) <= stems | {""}
    return run


@each_notebook
def test_a_notebook_runs(notebook, tmp_path):
    """Its cells, at smoke size, in this process."""
    values, place = parameters.of_profile(notebook, "smoke"), f"results/runs/smoke/{notebook.stem}"
    shown = cells.run(notebook, values, tmp_path, place=place, record=[], store=tmp_path / ".trials")
    folder = tmp_path / notebook.stem
    check_run(folder, notebook)
    assert {path.name for path in folder.iterdir()} == {"run.json", "verdicts.csv", "tables", "figures"}
    text = json.dumps(shown, default=str)
    assert place in text and str(tmp_path) not in text and str(CHECKOUT) not in text, "nothing of the machine it ran on"
    assert not any(WIDGET in each for each in shown), "sliders have their static twin"
    check_seeds(notebook, values["first_seed"], seeds_of(tmp_path / ".trials"))


def check_seeds(notebook, first, seeds):
    """The seeds of the trials begin with the first; those before it are where rates are chosen, and refused there.

    Rates are chosen on seeds from 0 to 4 in lessons whose judged seeds begin at 1000.
    """
    earlier = {seed for seed in seeds if seed < first}
    assert first == 2000 and (first in seeds or not seeds), "all but timings, which are not stored, begin there"
    choosing = CHOOSING | ({0} if notebook.stem in OF_SEED_0 else set())
    if parameters.read_declared(notebook)["first_seed"] == 1000:
        choosing = set(range(5))
    assert earlier <= choosing
    for seed in earlier - ({0} if notebook.stem in OF_SEED_0 else set()):
        with pytest.raises(parameters.Refused, match="first_seed"):
            parameters.validate(notebook, {"first_seed": seed}, "here")


def test_a_lesson_runs_as_lab_run_runs_it(tmp_path):
    """In a kernel, under papermill; a lesson that registers kinds of its own."""
    notebook = parameters.notebook_of("1.3")
    (job,) = batch.plan([notebook.stem], "smoke", tmp_path)
    job.run(runs.Options(record=[]))
    check_run(job.folder, notebook)
    assert job.to_do() is None
    made = {path.name for path in job.folder.iterdir()}
    assert made == {"notebook.ipynb", "parameters.yaml", "run.json", "verdicts.csv", "tables", "figures"}
    kept = yaml.safe_load((job.folder / "parameters.yaml").read_text("utf-8"))
    assert kept == parameters.of_profile(notebook, "smoke")
    text = (job.folder / "notebook.ipynb").read_text("utf-8")
    assert all(cell.execution_count for cell in nbformat.reads(text, 4).cells if cell.cell_type == "code")
    assert str(CHECKOUT) not in text and ".running" not in text, "nothing of the machine it ran on"
    assert WIDGET not in text
    assert not list((tmp_path / ".running").rglob("*"))


def test_a_notebook_runs_under_bare_papermill_from_another_folder(tmp_path):
    notebook = CHEAPEST
    file = project_root() / "experiments" / "smoke" / f"{notebook.stem}.yaml"
    done = subprocess.run([sys.executable, "-m", "papermill", notebook, "out.ipynb", "-f", file, "-p", "results",
                           tmp_path / "results", "--no-progress-bar"],
                          cwd=tmp_path, capture_output=True, text=True, timeout=600)  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert "Passed unknown parameter" not in done.stderr
    run = check_run(tmp_path / "results" / notebook.stem, notebook)
    assert run["status"] == "done" and not list((tmp_path / "results" / ".running").iterdir())
    assert {p.name for p in tmp_path.iterdir()} == {"out.ipynb", "results"}, "results go where they were asked for"


@pytest.mark.parametrize("given, said", [
    ({"seeds": 0}, "notebook: seeds = 0: expected a whole number, at least 1"),
    ({"seed": 3}, "notebook: .* has no parameter 'seed'; did you mean 'seeds'?"),
])  # fmt: skip
def test_a_notebook_with_a_refused_parameter_stops_before_it_measures(given, said, tmp_path):
    with pytest.raises(parameters.Refused, match=said):
        cells.run(CHEAPEST, given, tmp_path)
    assert not (tmp_path / CHEAPEST.stem).exists()


WITHOUT_AN_ARM = {  # values with which some claim is not run; what they lack
    "04_head_count": {"heads": [1, 2, 4]},
    "05_attention_variants": {"kv_heads": [2, 1], "recall_heads": [4]},
    "14_architecture_tradeoffs": {"pairs": 4, "at": 512, "lengths": [256], "contexts": [64]},
    "16_more_on_heads": {"heads": [2, 4], "wide_heads": [4], "kept_heads": [8], "value_heads": 8},
}


@pytest.mark.parametrize("stem, values", WITHOUT_AN_ARM.items(), ids=WITHOUT_AN_ARM)
def test_values_that_leave_out_an_arm_are_no_reason_to_refuse(stem, values):
    notebook = parameters.notebook_of(stem)
    checked = parameters.validate(notebook, values, "here")
    assert {name: checked[name] for name in values} == values
