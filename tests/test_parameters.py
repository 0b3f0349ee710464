"""Parameters are refused before anything starts, in words that name source, field, value and what is allowed."""

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
assert steps >= seeds
"""


@pytest.fixture(scope="module")
def invented(tmp_path_factory):
    return notebook_with(tmp_path_factory.mktemp("notebooks"), parameters=CELL, checks=CHECKS)


BAD = {  # values; what the message says besides the source
    "unknown": ({"nonsuch": 1}, "has no parameter 'nonsuch'. It has profile, results, seeds"),
    "misspelt": ({"d_modle": 64}, "has no parameter 'd_modle'; did you mean 'd_model'?"),
    "no text as name": ({3: 64}, "has no parameter 3"),
    "text for a number": ({"steps": "64"}, "steps = '64': input should be a valid integer"),
    "fraction": ({"steps": 2.5}, "steps = 2.5: input should be a valid integer"),
    "float": ({"steps": 3.0}, "steps = 3.0: input should be a valid integer"),
    "true": ({"steps": True}, "steps = True: input should be a valid integer"),
    "true for a rate": ({"learning_rate": True}, "learning_rate = True: input should be a valid number"),
    "true in a list": ({"heads": [1, True]}, "heads[1] = True: input should be a valid integer"),
    "true among choices": ({"flex": True}, "flex = True: expected a whole number"),
    "float among choices": ({"flex": 1.0}, "flex = 1.0: expected a whole number"),
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
    "twice": ({"heads": [2, 2]}, "heads = [2, 2]: 2 stands twice; expected each once"),
    "twice as text": ({"rates": [0.001, "1e-3"]}, "rates = [0.001, 0.001]: 0.001 stands twice"),
    "too few": ({"rates": [0.1]}, "rates = [0.1]: list should have at least 2 items"),
    "no such word": ({"position": "rotery"}, "position = 'rotery': input should be 't5' or 'rotary'"),
    "number for text": ({"text": 1}, "text = 1: input should be a valid string"),
    "no divisor": ({"heads": [3]}, "heads: 3 does not divide d_model 64"),
    "without a sentence": ({"steps": 2}, "assert steps >= seeds does not hold"),
}


@pytest.mark.parametrize("values, said", BAD.values(), ids=BAD)
def test_bad_values_are_refused_with_source_field_value_and_what_is_allowed(invented, values, said):
    with pytest.raises(Refused, match=f"^given: .*{re.escape(said)}"):
        validate(invented, ("given", values))


GOOD = {"learning_rate": "1e-3", "rates": [1, "2e-3"], "width": 3, "heads": [64], "text": "1e-3", "flex": 0}


def test_good_values_are_taken_and_text_becomes_a_number_where_a_number_is_asked_for(invented):
    found = validate(invented, ("given", GOOD))
    wanted = GOOD | {"learning_rate": 0.001, "rates": [1.0, 0.002]}
    assert {name: found[name] for name in GOOD} == wanted and type(found["rates"][0]) is float
    assert json.loads(json.dumps(found)) == found


def test_the_last_source_holds_and_is_the_one_that_is_named(invented):
    given = ("file", {"steps": 7, "seeds": 0}), ("-p", {"seeds": 3})
    assert validate(invented, *given)["seeds"] == 3 and validate(invented, *given)["steps"] == 7
    with pytest.raises(Refused, match="^file: seeds"):
        validate(invented, *given[:1], ("-p", {"steps": 9}))
    with pytest.raises(Refused, match="^-p, file: assert steps >= seeds"):
        validate(invented, ("file", {"steps": 4}), ("-p", {"seeds": 6}))


def test_a_check_that_names_another_parameter_names_the_one_that_was_given(tmp_path):
    cell = "d_model: int = 4\nheads: list[int] = [1, 2]"
    checks = "width = d_model\nassert width % heads[1] == 0, 'heads: 2'"
    notebook = notebook_with(tmp_path, parameters=cell, checks=checks)
    with pytest.raises(Refused, match=r"^-p: heads: 2 \(d_model = 1\)$"):
        validate(notebook, ("-p", {"d_model": 1}))
    broken = notebook_with(tmp_path, "broken.ipynb", parameters=cell, checks="assert False, 'never'")
    with pytest.raises(Refused, match="^the defaults: never$"):
        validate(broken)


def test_checks_hold_where_python_leaves_asserts_out(invented):
    code = """import sys, pathlib, lab.parameters
lab.parameters.validate(pathlib.Path(sys.argv[1]), ("x", {"heads": [3]}))"""
    done = subprocess.run([sys.executable, "-O", "-c", code, invented], capture_output=True, text=True)
    assert "Refused: x: heads: 3 does not divide d_model 64" in done.stderr


DECLARED = {  # a parameters cell; what its refusal says
    "another name": ("import os\na: os.PathLike = 1", "a: os is no type of a parameter; types are bool, int"),
    "a call": ("a: open('x') = 1", "a: open is no type of a parameter"),
    "a name": ("b = 1\na: int = b", "a = b: expected a value for JSON"),
    "a loop": ("for a in (1,): pass", "expected NAME: TYPE = VALUE"),
    "two names": ("a = b = 1", "'a = b = 1': expected NAME: TYPE = VALUE"),
    "no value": ("a: int", "'a: int': expected NAME: TYPE = VALUE"),
    "syntax": ("a: int = = 1", "invalid syntax"),
    "no type": ("from typing import Literal\na: Literal = 1", "Literal"),
}


@pytest.mark.parametrize("cell, said", DECLARED.values(), ids=DECLARED)
def test_a_cell_that_declares_no_parameters_is_refused(cell, said, tmp_path):
    with pytest.raises(Refused, match=f"mine.ipynb: the cell tagged `parameters`: .*{re.escape(said)}"):
        read_parameters(notebook_with(tmp_path, parameters=cell))


def test_a_default_that_its_type_does_not_allow_is_refused(tmp_path):
    cell = "from pydantic import PositiveInt\nsteps: PositiveInt = 0"
    with pytest.raises(Refused, match="^mine.ipynb: steps = 0: input should be greater than 0"):
        validate(notebook_with(tmp_path, parameters=cell))


def test_a_check_that_cannot_run_is_named(tmp_path):
    with pytest.raises(Refused, match="x: the cell tagged `checks` fails: ZeroDivisionError: "):
        validate(notebook_with(tmp_path, parameters="a: int = 1", checks="1 / (a - 2)"), ("x", {"a": 2}))


def test_a_notebook_of_ones_own_needs_no_types(tmp_path):
    notebook = notebook_with(tmp_path, parameters="width = 3\nnothing = None\nnames = ['a']")
    found = validate(notebook, ("x", {"width": 4, "nothing": "any"}))
    assert found == {"width": 4, "nothing": "any", "names": ["a"]}
    with pytest.raises(Refused, match="x: width = 'wide': input should be a valid integer"):
        validate(notebook, ("x", {"width": "wide"}))
    (tmp_path / "none.ipynb").write_text("{}")
    with pytest.raises(Refused, match="cannot be read as a notebook"):
        validate(tmp_path / "none.ipynb")


# Profiles and files


def test_quick_are_the_defaults_and_smoke_is_its_file(project):
    dice = notebooks()[0]
    quick, smoke = (validate(dice, of_profile(dice, profile)) for profile in ("quick", "smoke"))
    assert quick == validate(dice) and smoke == quick | {"profile": "smoke", "sides": [4, 8]}
    with pytest.raises(Refused, match="there is no profile 'full'; there are quick, smoke"):
        of_profile(dice, "full")


def test_a_wrong_value_of_a_profile_is_named_by_its_file(project):
    path = project / "experiments" / "smoke" / f"{notebooks()[0].stem}.yaml"
    sound = path.read_text("utf-8")
    path.write_text(sound + "side: 3\n")
    with pytest.raises(Refused, match=f"^experiments/smoke/{path.name}: .*'side'; did you mean 'sides'"):
        validate(notebooks()[0], of_profile(notebooks()[0], "smoke"))
    path.write_text(sound)


def test_a_file_of_parameters_is_read_without_surprises(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("rate: 1e-3\nheads: [1, 2]\ntext: a b")
    assert read_file(path) == {"rate": "1e-3", "heads": [1, 2], "text": "a b"}
    for text, said in {
        "- 1": "expected a mapping of parameters to values, found list",
        "a: [": "cannot be read",
    }.items():
        path.write_text(text)
        with pytest.raises(Refused, match=f"mine.yaml: .*{said}"):
            read_file(path)
    with pytest.raises(Refused, match="none.yaml: cannot be read"):
        read_file(tmp_path / "none.yaml")


WORDS = {
    "3": 3, "3.0": 3.0, "1e-3": "1e-3", "true": True, "null": None, "[1, 2]": [1, 2], "'3'": "3", "": "",
    "a: b": "a: b", "a # b": "a # b", "2020-01-01": "2020-01-01", "[": "[", "{a: 1}": {"a": 1},
}  # fmt: skip


@pytest.mark.parametrize("text, value", WORDS.items(), ids=WORDS)
def test_words_of_a_command_line_are_numbers_lists_and_else_text(text, value):
    found = read_value(text)
    assert found == value and type(found) is type(value)


# In a kernel


def test_what_papermill_sets_is_checked_and_misspelt_names_are_told(invented):
    here = {"In": ["", "# Parameters\nsteps = 7\n"], "steps": 7, "seeds": 5}
    assert in_namespace(here, invented)[1] == {"steps": 7}
    here |= {"In": ["", "# Parameters\nstesp = 7\n"], "stesp": 7}
    with pytest.raises(Refused, match="^mine.ipynb: .* no parameter 'stesp'; did you mean 'steps'?"):
        in_namespace(here, invented)


def test_without_a_file_there_are_no_parameters(tmp_path):
    assert in_namespace({"steps": 7}, tmp_path / "none.ipynb") == ({}, {})
