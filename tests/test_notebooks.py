"""Every notebook is clean in git and runs, from the command line and under bare papermill; the environment is one."""

import json
import re
import subprocess
import sys
import textwrap
import tomllib

import cells
import nbformat
import pandas as pd
import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from lab import claims, files, parameters, trials
from lab import run as runner
from lab.files import CHECKOUT, project_root

NOTEBOOKS = files.notebooks()
CHEAPEST = files.notebook_of("1.6")
each_notebook = pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
PROJECT = tomllib.loads((project_root() / "pyproject.toml").read_text("utf-8"))["project"]
RUNTIME = {Requirement(text).name.lower(): Requirement(text) for text in PROJECT["dependencies"]}


def asked_in(notebook):
    """The claims of a notebook."""
    return claims.read(claims.folder() / f"{notebook.stem}.yaml")


def smoke(notebook):
    return parameters.validate(notebook, parameters.of_profile(notebook, "smoke"))


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
    mine = [c.id for c in asked_in(notebook).values() if not c.open]
    assert [name for name in mine if f'"{name}"' not in everything] == [], "claims that are never judged"


# Parameters

strange = st.one_of(
    st.integers(-3, 70), st.integers(10**9, 10**40), st.floats(), st.none(), st.booleans(), st.text(max_size=8),
    st.sampled_from(["1e-3", "nan", "quick", "../x", "\0"]), st.lists(st.integers(-1, 64), max_size=4),
    st.lists(st.one_of(st.none(), st.floats(), st.text(max_size=3)), max_size=3),
)  # fmt: skip


@each_notebook
def test_every_notebook_declares_what_it_holds_and_has_smoke_values(notebook):
    declared = {name: parameter.default for name, parameter in parameters.read_parameters(notebook).items()}
    assert list(declared)[:2] == ["profile", "results"]
    assert declared["profile"] == "quick" and declared["results"] == ""
    assert parameters.validate(notebook) == declared, "the defaults are valid, and read as they are"
    assert smoke(notebook)["profile"] == "smoke" and smoke(notebook) != declared | {"profile": "smoke"}


@pytest.mark.slow
@each_notebook
@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_value_breaks_the_check_of_a_notebook(notebook, data):
    name = data.draw(st.sampled_from(sorted(parameters.read_parameters(notebook))))
    try:
        parameters.validate(notebook, ("file", {name: data.draw(strange)}))
    except files.Refused as refusal:
        assert str(refusal).startswith("file: ")


def test_most_notebooks_are_checked_without_torch():
    code = """
        import sys
        from lab import files, parameters
        for notebook in files.notebooks():
            seam = any("lab.models" in cell for _, tags, cell in files.cells_of(notebook) if "checks" in tags)
            None if seam else parameters.validate(notebook, parameters.of_profile(notebook, "smoke"))
        sys.exit("torch" in sys.modules)
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True, cwd=project_root())


# Runs

WIDGET = "application/vnd.jupyter.widget-view+json"
CHOOSING = {1000, 1001, 1002}  # seeds on which rates are chosen, whatever the first seed is
OF_SEED_0 = {"07_position_encodings", "17_more_on_positions"}  # `beyond` keeps what is pictured of that seed alone


def seeds_of(store):
    """Seeds of the trials that a run has finished."""
    lines = [line for path in store.glob("*/*.jsonl") for line in trials.read(path)[1]]
    return {line["at"]["seed"] for line in lines if "seed" in line["at"]}


def check_run(folder, notebook):
    """What every finished run leaves, in any profile."""
    run = json.loads((folder / "run.json").read_text("utf-8"))
    assert (run["status"], run["profile"], run["notebook"]) == ("done", "smoke", notebook.stem)
    assert run["title"].startswith(files.exercise_of(notebook)) and run["machine"] and run["seconds"] > 0
    assert re.fullmatch("[0-9a-f]{40}", run["commit"]) and run["changes"] in (True, False)
    values = {name: value for name, value in smoke(notebook).items() if name != "results"}
    assert run["parameters"] == values and run["own"] == {}
    pictures = {path.stem for path in (folder / "figures").glob("*.png")}
    stems = {path.stem for path in (folder / "tables").glob("*.csv")}
    assert pictures and pictures <= stems, "a figure stands beside its table"
    for path in (folder / "tables").glob("*.csv"):
        table = pd.read_csv(path)
        assert len(table) and not [c for c in table.columns if c.startswith("Unnamed")], path.name
    lines = claims.read_answers(folder)
    assert list(lines.id.drop_duplicates()) == list(asked_in(notebook))
    assert set(lines.answer) <= {"not judged", "open"}
    assert set(lines.figure) <= pictures | {""} and set(lines.table) <= stems | {""}
    return run


@each_notebook
def test_a_notebook_runs(notebook, tmp_path):
    """Its cells, at smoke size, in this process."""
    values, folder = smoke(notebook), tmp_path / notebook.stem
    shown = cells.run(notebook, values, folder, record="none", store=tmp_path / ".trials")
    check_run(folder, notebook)
    assert {path.name for path in folder.iterdir()} == {"run.json", "answers.csv", "tables", "figures"}
    text = json.dumps(shown, default=str)
    assert str(CHECKOUT) not in text, "nothing of the machine it ran on"
    assert not any(WIDGET in each for each in shown), "sliders have their static twin"
    check_seeds(notebook, values["first_seed"], seeds_of(tmp_path / ".trials"))


def check_seeds(notebook, first, seeds):
    """The seeds of the trials begin with the first; those before it are where rates are chosen, and refused there.

    Rates are chosen on seeds from 0 to 4 in lessons whose judged seeds begin at 1000.
    """
    earlier = {seed for seed in seeds if seed < first}
    assert first == 2000 and (first in seeds or not seeds), "all but timings, which are not stored, begin there"
    choosing = CHOOSING | ({0} if notebook.stem in OF_SEED_0 else set())
    if parameters.read_parameters(notebook)["first_seed"].default == 1000:
        choosing = set(range(5))
    assert earlier <= choosing
    for seed in earlier - ({0} if notebook.stem in OF_SEED_0 else set()):
        with pytest.raises(files.Refused, match="first_seed"):
            parameters.validate(notebook, ("here", {"first_seed": seed}))


def test_a_lesson_runs_as_lab_run_runs_it(tmp_path):
    """In a kernel, under papermill; a lesson that registers kinds of its own."""
    notebook = files.notebook_of("1.3")
    (job,) = runner.plan([notebook.stem], "smoke", tmp_path)
    runner.execute(job, fresh=True, store=tmp_path / ".trials")
    check_run(job.folder, notebook)
    assert job.is_done
    made = {path.name for path in job.folder.iterdir()}
    assert made == {"notebook.ipynb", "run.json", "answers.csv", "tables", "figures"}
    text = (job.folder / "notebook.ipynb").read_text("utf-8")
    assert all(cell.execution_count for cell in nbformat.reads(text, 4).cells if cell.cell_type == "code")
    assert str(CHECKOUT) not in text and "/.03" not in text, "nothing of the machine it ran on"
    assert WIDGET not in text and "papermill" not in json.loads(text)["metadata"]
    assert [path.name for path in job.folder.parent.iterdir()] == [notebook.stem]


def test_a_notebook_runs_under_bare_papermill_from_another_folder(tmp_path):
    notebook = CHEAPEST
    file = project_root() / "experiments" / "smoke" / f"{notebook.stem}.yaml"
    done = subprocess.run([sys.executable, "-m", "papermill", notebook, "out.ipynb", "-f", file, "-p", "results",
                           tmp_path / "results", "--no-progress-bar"],
                          cwd=tmp_path, capture_output=True, text=True, timeout=600)  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    check_run(tmp_path / "results" / notebook.stem, notebook)
    assert [path.name for path in (tmp_path / "results").iterdir()] == [notebook.stem]
    assert {p.name for p in tmp_path.iterdir()} == {"out.ipynb", "results"}, "results go where they were asked for"


@pytest.mark.parametrize("given, said", [
    ({"seeds": 0}, "06_.*.ipynb: seeds = 0: input should be greater than 0"),
    ({"seed": 3}, "06_.*.ipynb: .* has no parameter 'seed'; did you mean 'seeds'?"),
])  # fmt: skip
def test_a_notebook_with_a_refused_parameter_stops_before_it_measures(given, said, tmp_path):
    with pytest.raises(files.Refused, match=said):
        cells.run(CHEAPEST, given, tmp_path / "run")
    assert not list((tmp_path / "run").iterdir())


WITHOUT_AN_ARM = {  # values with which some claim is not run; what they lack
    "04_head_count": {"heads": [1, 2, 4]},
    "05_attention_variants": {"kv_heads": [2, 1], "recall_heads": [4]},
    "14_architecture_tradeoffs": {"pairs": 4, "at": 512, "lengths": [256], "contexts": [64]},
    "16_more_on_heads": {"heads": [2, 4], "wide_heads": [4], "kept_heads": [8], "value_heads": 8},
}


@pytest.mark.parametrize("stem, values", WITHOUT_AN_ARM.items(), ids=WITHOUT_AN_ARM)
def test_values_that_leave_out_an_arm_are_no_reason_to_refuse(stem, values):
    notebook = files.notebook_of(stem)
    checked = parameters.validate(notebook, ("here", values))
    assert {name: checked[name] for name in values} == values
