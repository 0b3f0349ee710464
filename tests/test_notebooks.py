"""Notebooks: clean in git, runnable in a kernel and under papermill. Also checks that the environment files agree."""

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

from lab import claims, files, parameters, runs, trials
from lab.files import CHECKOUT, project_root

NOTEBOOKS = files.notebooks()
CHEAPEST = files.notebook_of("1.6")
each_notebook = pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
PROJECT = tomllib.loads((project_root() / "pyproject.toml").read_text("utf-8"))["project"]
RUNTIME = {Requirement(text).name.lower(): Requirement(text) for text in PROJECT["dependencies"]}


def claims_of(notebook):
    """The ids of the claims of a notebook."""
    path = claims.folder() / f"{notebook.stem}.yaml"
    return [claim["id"] for claim in yaml.safe_load(path.read_text("utf-8"))]


def smoke(notebook):
    return parameters.validate(notebook, parameters.of_profile(notebook, "smoke"))


# The environment


def test_conda_environment_matches_pyproject():
    environment = yaml.safe_load((project_root() / "environment.yml").read_text("utf-8"))
    (pip,) = (entry["pip"] for entry in environment["dependencies"] if isinstance(entry, dict))
    conda = [Requirement(entry) for entry in environment["dependencies"] if isinstance(entry, str)]
    assert pip == ["-e ."], "pip dependencies must come from pyproject.toml"
    by_name = {requirement.name: requirement.specifier for requirement in conda}
    assert by_name.pop("python") == SpecifierSet(PROJECT["requires-python"])
    by_name.pop("pip")
    names = {"pytorch": "torch"}
    for name, specifier in by_name.items():
        name = names.get(name, name).lower()
        assert name in RUNTIME, f"{name} is no dependency of the project"
        assert specifier in (SpecifierSet(), RUNTIME[name].specifier), "version bounds belong in pyproject.toml"
    assert "torch" in {names.get(name) for name in by_name}, "pip would install the CUDA build"
    assert environment["name"] == PROJECT["name"]


def test_constraints_pin_every_dependency():
    path = project_root() / "constraints.txt"
    if not path.exists():
        pytest.skip("there is no constraints.txt yet")
    lines = [line.partition("#")[0].strip() for line in path.read_text("utf-8").splitlines()]
    pinned = {
        r.name.lower().replace("_", "-"): r for r in (Requirement(x) for x in lines if x and not x.startswith("-"))
    }
    for name, requirement in RUNTIME.items():
        assert name in pinned, f"{name} is not pinned"
        ((operator, version),) = ((s.operator, s.version) for s in pinned[name].specifier)
        assert operator == "==" and requirement.specifier.contains(version, prereleases=True), name
    assert str(pinned["torch"].specifier) == "==2.13.0"


# The sources


@each_notebook
def test_committed_notebooks_have_one_title_and_no_outputs(notebook):
    book = nbformat.read(notebook, 4)
    nbformat.validate(book)
    assert set(book.metadata) == {"kernelspec"} and book.metadata.kernelspec.name == "python3"
    for cell in book.cells:
        assert not cell.get("outputs") and not cell.get("execution_count"), "make format strips outputs"
        assert set(cell.metadata) <= {"tags", "slideshow", "jupyter"}
    assert str(project_root()) not in notebook.read_text("utf-8")
    texts = [cell.source for cell in book.cells if cell.cell_type == "markdown"]
    assert [line for text in texts for line in text.splitlines() if line.startswith("# ")] == [texts[0].splitlines()[0]]
    assert texts[0].startswith(f"# 1.{int(notebook.stem[:2])} ")


# Parameters

strange = st.one_of(
    st.integers(-3, 70), st.integers(10**9, 10**40), st.floats(), st.none(), st.booleans(), st.text(max_size=8),
    st.sampled_from(["1e-3", "nan", "quick", "../x", "\0"]), st.lists(st.integers(-1, 64), max_size=4),
    st.lists(st.one_of(st.none(), st.floats(), st.text(max_size=3)), max_size=3),
)  # fmt: skip


@each_notebook
def test_notebook_parameters_have_valid_defaults_and_smoke_values(notebook):
    declared = {name: parameter.default for name, parameter in parameters.read_parameters(notebook).items()}
    assert list(declared)[:2] == ["profile", "results"]
    assert declared["profile"] == "quick" and declared["results"] == ""
    assert parameters.validate(notebook) == declared, "defaults are invalid or change on validation"
    assert smoke(notebook)["profile"] == "smoke" and smoke(notebook) != declared | {"profile": "smoke"}


@pytest.mark.slow
@each_notebook
@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_parameter_validation_never_crashes(notebook, data):
    name = data.draw(st.sampled_from(sorted(parameters.read_parameters(notebook))))
    try:
        parameters.validate(notebook, ("file", {name: data.draw(strange)}))
    except files.Refused as refusal:
        assert str(refusal).startswith("file: ")


def test_validation_imports_torch_only_if_checks_use_lab_models():
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
TUNING_SEEDS = {1000, 1001, 1002}  # seeds for learning-rate selection
WITH_SEED_0 = {"07_position_encodings", "17_more_on_positions"}  # `beyond` keeps figure data of seed 0 only


def seeds_of(store):
    """Seeds of all finished trials of a run."""
    lines = [line for path in store.glob("*/*.jsonl") for line in trials.read(path)[1]]
    return {line["at"]["seed"] for line in lines if "seed" in line["at"]}


def check_run(folder, notebook):
    """Check the files and run.json of a finished smoke run."""
    run = json.loads((folder / "run.json").read_text("utf-8"))
    assert (run["profile"], run["notebook"]) == ("smoke", notebook.stem)
    assert run["machine"] and run["seconds"] > 0
    assert re.fullmatch("[0-9a-f]{40}", run["commit"]) and run["changes"] in (True, False)
    values = {name: value for name, value in smoke(notebook).items() if name != "results"}
    assert run["parameters"] == values and run["own"] == {}
    pictures = {path.stem for path in (folder / "figures").glob("*.png")}
    stems = {path.stem for path in (folder / "tables").glob("*.csv")}
    assert pictures and pictures <= stems, "a figure has no table"
    for path in (folder / "tables").glob("*.csv"):
        table = pd.read_csv(path)
        assert len(table) and not [c for c in table.columns if c.startswith("Unnamed")], path.name
    lines = claims.read_answers(folder)
    assert list(lines.id.drop_duplicates()) == claims_of(notebook)
    assert set(lines.answer) <= {"not judged", "open"}
    assert set(lines.figure) <= pictures | {""} and set(lines.table) <= stems | {""}
    return run


@each_notebook
def test_notebook_runs_at_smoke_size(notebook, tmp_path):
    """All cells run at smoke size, in this process."""
    values, folder = smoke(notebook), tmp_path / notebook.stem
    shown = cells.run(notebook, values, folder, record="none", store=tmp_path / ".trials")
    check_run(folder, notebook)
    assert {path.name for path in folder.iterdir()} == {"run.json", "answers.csv", "tables", "figures"}
    text = json.dumps(shown, default=str)
    assert str(CHECKOUT) not in text, "outputs contain a local path"
    assert not any(WIDGET in each for each in shown), "outputs contain a live widget"
    check_seeds(notebook, values.get("first_seed", 2000), seeds_of(tmp_path / ".trials"))


def check_seeds(notebook, first, seeds):
    """Trials use seeds from `first` on; smaller seeds are for learning-rate selection only, and invalid as first_seed.

    Selection uses TUNING_SEEDS or seeds 0 to 4.
    """
    earlier = {seed for seed in seeds if seed < first}
    assert first == 2000 and (first in seeds or not seeds), "stored trials must start at first_seed"
    assert earlier <= TUNING_SEEDS | set(range(5))
    for seed in earlier - ({0} if notebook.stem in WITH_SEED_0 else set()):
        with pytest.raises(files.Refused, match="first_seed"):
            parameters.validate(notebook, ("here", {"first_seed": seed}))


@pytest.mark.slow
def test_notebook_runs_in_a_kernel_like_lab_run(tmp_path):
    """Runs in a kernel under papermill; the lesson registers its own variants."""
    notebook = files.notebook_of("1.3")
    (job,) = runs.plan([notebook.stem], "smoke", tmp_path)
    runs.execute(job, fresh=True, store=tmp_path / ".trials")
    check_run(job.folder, notebook)
    assert job.is_done
    written = {path.name for path in job.folder.iterdir()}
    assert written == {"notebook.ipynb", "run.json", "answers.csv", "tables", "figures"}
    text = (job.folder / "notebook.ipynb").read_text("utf-8")
    assert all(cell.execution_count for cell in nbformat.reads(text, 4).cells if cell.cell_type == "code")
    assert str(CHECKOUT) not in text and "/.03" not in text, "outputs contain a local path"
    assert WIDGET not in text and "papermill" not in json.loads(text)["metadata"]
    assert [path.name for path in job.folder.parent.iterdir()] == [notebook.stem]


def test_notebook_runs_under_plain_papermill_from_another_folder(tmp_path):
    notebook = CHEAPEST
    file = project_root() / "experiments" / "smoke" / f"{notebook.stem}.yaml"
    process = subprocess.run([sys.executable, "-m", "papermill", notebook, "out.ipynb", "-f", file, "-p", "results",
                           tmp_path / "results", "--no-progress-bar"],
                          cwd=tmp_path, capture_output=True, text=True, timeout=600)  # fmt: skip
    assert process.returncode == 0, process.stderr[-3000:]
    check_run(tmp_path / "results" / notebook.stem, notebook)
    assert [path.name for path in (tmp_path / "results").iterdir()] == [notebook.stem]
    assert {p.name for p in tmp_path.iterdir()} == {"out.ipynb", "results"}, (
        "files were written outside the results folder"
    )


@pytest.mark.parametrize("values, message", [
    ({"seeds": 0}, "06_.*.ipynb: seeds = 0: input should be greater than 0"),
    ({"seed": 3}, "06_.*.ipynb: .* has no parameter 'seed'; did you mean 'seeds'?"),
])  # fmt: skip
def test_invalid_parameter_stops_a_notebook_before_measuring(values, message, tmp_path):
    with pytest.raises(files.Refused, match=message):
        cells.run(CHEAPEST, values, tmp_path / "run")
    assert not list((tmp_path / "run").iterdir())


PARTIAL_VALUES = {  # valid values for which some claims cannot be judged
    "04_head_count": {"heads": [1, 2, 8]},  # as in the README
    "05_attention_variants": {"kv_heads": [2, 1], "recall_heads": [4]},
    "14_architecture_tradeoffs": {"pairs": 4, "at": 512, "lengths": [256], "contexts": [64]},
    "16_more_on_heads": {"heads": [2, 4], "wide_heads": [4], "kept_heads": [8], "value_heads": 8},
}


@pytest.mark.parametrize("stem, values", PARTIAL_VALUES.items(), ids=PARTIAL_VALUES)
def test_parameter_values_that_omit_an_arm_of_a_claim_are_valid(stem, values):
    notebook = files.notebook_of(stem)
    checked = parameters.validate(notebook, ("here", values))
    assert {name: checked[name] for name in values} == values


@pytest.mark.slow
@pytest.mark.parametrize("stem, values", PARTIAL_VALUES.items(), ids=PARTIAL_VALUES)
def test_notebook_runs_where_an_arm_of_a_claim_is_omitted(stem, values, tmp_path):
    notebook = files.notebook_of(stem)
    cells.run(notebook, smoke(notebook) | values, tmp_path / stem, record="none", store=tmp_path / ".trials")
