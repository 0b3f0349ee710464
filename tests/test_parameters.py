"""Parameters: declarations, validation, profiles and error messages."""

import json
import math
import re
import subprocess
import sys

import pytest
from helpers import notebook_with

from lab.files import Refused, notebooks
from lab.parameters import in_namespace, of_profile, read_file, read_parameters, read_value, validate

CELL = """
from typing import Annotated, Literal

from pydantic import Field, PositiveFloat, PositiveInt

profile: Literal["quick", "smoke"] = "quick"
results: str = ""  # folder
seeds: Annotated[PositiveInt, Field(le=10_000)] = 5
steps: PositiveInt = 100  # optimiser steps
learning_rate: PositiveFloat = 2e-3
share: Annotated[float, Field(gt=0, lt=1)] = 0.5
heads: list[PositiveInt] = [1, 2, 4]
rates: Annotated[list[PositiveFloat], Field(min_length=2)] = [0.1, 0.2]
position: Literal["t5", "rotary"] = "t5"
flex: Literal[0, 1] = 1
width: PositiveInt | None = None
d_model: PositiveInt = 64
text: str = ""
"""
CHECKS = """
for h in heads:
    assert d_model % h == 0, f"heads: {h} does not divide d_model {d_model}"
assert steps >= seeds, "steps: fewer than seeds"
"""


@pytest.fixture(scope="module")
def notebook(tmp_path_factory):
    return notebook_with(tmp_path_factory.mktemp("notebooks"), parameters=CELL, checks=CHECKS)


INVALID = {  # values; expected message
    "unknown": ({"nonsuch": 1}, "has no parameter 'nonsuch'. Valid names: d_model, flex, heads"),
    "misspelt": ({"d_modle": 64}, "has no parameter 'd_modle'; did you mean 'd_model'?"),
    "no text as name": ({3: 64}, "has no parameter 3"),
    "text for a number": ({"steps": "64"}, "steps = '64': input should be a valid integer"),
    "fraction": ({"steps": 2.5}, "steps = 2.5: input should be a valid integer"),
    "float": ({"steps": 3.0}, "steps = 3.0: input should be a valid integer"),
    "true": ({"steps": True}, "steps = True: input should be a valid integer"),
    "true for a rate": ({"learning_rate": True}, "learning_rate = True: input should be a valid number"),
    "true in a list": ({"heads": [1, True]}, "heads[1] = True: input should be a valid integer"),
    "nothing": ({"seeds": None}, "seeds = None: input should be a valid integer"),
    "too little": ({"steps": 0}, "steps = 0: input should be greater than 0"),
    "too much": ({"seeds": 10**6}, "seeds = 1000000: input should be less than or equal to 10000"),
    "none or wrong": ({"width": 0}, "width = 0: input should be greater than 0"),
    "NaN": ({"share": math.nan}, "share = nan: input should be a finite number"),
    "NaN in a list": ({"rates": [0.1, math.nan]}, "rates[1] = nan: input should be a finite number"),
    "infinity as text": ({"learning_rate": "inf"}, "learning_rate = 'inf': input should be a valid number"),
    "at a bound": ({"share": 1.0}, "share = 1.0: input should be less than 1"),
    "no list": ({"heads": 4}, "heads = 4: input should be a valid list"),
    "empty list": ({"heads": []}, "heads = []: expected at least one entry"),
    "too few": ({"rates": [0.1]}, "rates = [0.1]: list should have at least 2 items"),
    "no such word": ({"position": "rotery"}, "position = 'rotery': input should be 't5' or 'rotary'"),
    "number for text": ({"text": 1}, "text = 1: input should be a valid string"),
    "no divisor": ({"heads": [3]}, "heads: 3 does not divide d_model 64"),
    "fewer steps than seeds": ({"steps": 2}, "steps: fewer than seeds"),
}


@pytest.mark.parametrize("values, message", INVALID.values(), ids=INVALID)
def test_invalid_value_is_named_in_the_error(notebook, values, message):
    with pytest.raises(Refused, match=f"^given: .*{re.escape(message)}"):
        validate(notebook, ("given", values))


VALID = {"learning_rate": "1e-3", "rates": [1, "2e-3"], "width": 3, "heads": [64], "text": "1e-3", "flex": 0}


def test_valid_values_and_numeric_strings(notebook):
    result = validate(notebook, ("given", VALID))
    wanted = VALID | {"learning_rate": 0.001, "rates": [1.0, 0.002]}
    assert {name: result[name] for name in VALID} == wanted and type(result["rates"][0]) is float
    assert json.loads(json.dumps(result)) == result


def test_last_source_of_a_value_wins_and_errors_name_it(notebook):
    given = ("file", {"steps": 7, "seeds": 0}), ("-p", {"seeds": 3})
    assert validate(notebook, *given)["seeds"] == 3 and validate(notebook, *given)["steps"] == 7
    with pytest.raises(Refused, match="^file: seeds"):
        validate(notebook, *given[:1], ("-p", {"steps": 9}))
    with pytest.raises(Refused, match="^(file, -p|-p, file): steps: fewer than seeds"):
        validate(notebook, ("file", {"steps": 4}), ("-p", {"seeds": 6}))


def test_failed_check_of_the_defaults(tmp_path):
    broken = notebook_with(tmp_path, parameters="heads: int = 4", checks="assert False, 'never'")
    with pytest.raises(Refused, match="^the defaults: never$"):
        validate(broken)


def test_checks_run_under_python_with_asserts_disabled(notebook):
    code = """import sys, pathlib, lab.parameters
lab.parameters.validate(pathlib.Path(sys.argv[1]), ("x", {"heads": [3]}))"""
    done = subprocess.run([sys.executable, "-O", "-c", code, notebook], capture_output=True, text=True)
    assert "Refused: x: heads: 3 does not divide d_model 64" in done.stderr


INVALID_CELLS = {  # a parameters cell; expected message
    "another name": ("import os\na: os.PathLike = 1", "a: os is not a parameter type; use bool, int"),
    "a call": ("a: open('x') = 1", "a: open is not a parameter type"),
    "a name": ("b = 1\na: int = b", "a = b: expected a JSON value"),
    "a loop": ("for a in (1,): pass", "expected NAME: TYPE = VALUE"),
    "two names": ("a = b = 1", "'a = b = 1': expected NAME: TYPE = VALUE"),
    "no value": ("a: int", "'a: int': expected NAME: TYPE = VALUE"),
    "syntax": ("a: int = = 1", "invalid syntax"),
    "no type": ("from typing import Literal\na: Literal = 1", "Literal"),
}


@pytest.mark.parametrize("cell, message", INVALID_CELLS.values(), ids=INVALID_CELLS)
def test_invalid_declaration(cell, message, tmp_path):
    with pytest.raises(Refused, match=f"mine.ipynb: the cell tagged `parameters`: .*{re.escape(message)}"):
        read_parameters(notebook_with(tmp_path, parameters=cell))


def test_invalid_default(tmp_path):
    cell = "from pydantic import PositiveInt\nsteps: PositiveInt = 0"
    with pytest.raises(Refused, match="^mine.ipynb: steps = 0: input should be greater than 0"):
        validate(notebook_with(tmp_path, parameters=cell))


def test_error_in_checks_cell(tmp_path):
    with pytest.raises(Refused, match="x: the cell tagged `checks` raises ZeroDivisionError"):
        validate(notebook_with(tmp_path, parameters="a: int = 1", checks="1 / (a - 2)"), ("x", {"a": 2}))


def test_types_are_optional(tmp_path):
    notebook = notebook_with(tmp_path, parameters="width = 3\nnothing = None\nnames = ['a']")
    result = validate(notebook, ("x", {"width": 4, "nothing": "any"}))
    assert result == {"width": 4, "nothing": "any", "names": ["a"]}
    with pytest.raises(Refused, match="x: width = 'wide': input should be a valid integer"):
        validate(notebook, ("x", {"width": "wide"}))
    (tmp_path / "none.ipynb").write_text("{}")
    with pytest.raises(Refused, match="cannot be read as a notebook"):
        validate(tmp_path / "none.ipynb")


# Profiles and files


def test_quick_has_the_defaults_and_smoke_is_read_from_its_file(project):
    dice = notebooks()[0]
    quick, smoke = (validate(dice, of_profile(dice, profile)) for profile in ("quick", "smoke"))
    assert quick == validate(dice) and smoke == quick | {"profile": "smoke", "sides": [4, 8]}
    with pytest.raises(Refused, match="--profile full: profile = 'full': input should be 'quick' or 'smoke'"):
        validate(dice, of_profile(dice, "full"))


def test_error_names_the_profile_file(project):
    path = project / "experiments" / "smoke" / f"{notebooks()[0].stem}.yaml"
    sound = path.read_text("utf-8")
    path.write_text(sound + "side: 3\n")
    with pytest.raises(Refused, match=f"^experiments/smoke/{path.name}: .*'side'; did you mean 'sides'"):
        validate(notebooks()[0], of_profile(notebooks()[0], "smoke"))
    path.write_text(sound)


def test_read_file(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("rate: 1e-3\nheads: [1, 2]\ntext: a b")
    assert read_file(path) == {"rate": "1e-3", "heads": [1, 2], "text": "a b"}
    for text, message in {
        "- 1": "expected a mapping of parameters to values, found list",
        "a: [": "cannot be read",
    }.items():
        path.write_text(text)
        with pytest.raises(Refused, match=f"mine.yaml: .*{message}"):
            read_file(path)
    with pytest.raises(Refused, match="none.yaml: cannot be read"):
        read_file(tmp_path / "none.yaml")


WORDS = {
    "3": 3, "3.0": 3.0, "1e-3": "1e-3", "true": True, "null": None, "[1, 2]": [1, 2], "'3'": "3", "": "",
    "a: b": "a: b", "a # b": "a # b", "2020-01-01": "2020-01-01", "[": "[", "{a: 1}": {"a": 1},
}  # fmt: skip


@pytest.mark.parametrize("text, value", WORDS.items(), ids=WORDS)
def test_read_value(text, value):
    result = read_value(text)
    assert result == value and type(result) is type(value)


# In a kernel


def test_papermill_values_are_validated_including_typos(notebook):
    here = {"In": ["", "# Parameters\nsteps = 7\n"], "steps": 7, "seeds": 5}
    assert in_namespace(here, notebook)[1] == {"steps": 7}
    here |= {"In": ["", "# Parameters\nstesp = 7\n"], "stesp": 7}
    with pytest.raises(Refused, match="^mine.ipynb: .* no parameter 'stesp'; did you mean 'steps'?"):
        in_namespace(here, notebook)


def test_missing_notebook_has_no_parameters(tmp_path):
    assert in_namespace({"steps": 7}, tmp_path / "none.ipynb") == ({}, {})
