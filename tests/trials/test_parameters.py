"""Parameters are refused before anything starts, in words that name place, field, value and what is allowed."""

import datetime
import math
import re

import made
import pytest
from helpers import notebook_with

from lab.trials import parameters
from lab.trials.parameters import Refused, notebooks, of_profile, read_file, validate

CELL = """
profile: str = "quick"  # smoke runs are not judged; one of smoke, quick
results: str = ""  # folder for the results
corpus: str = ""  # text; a file or folder, may be empty
seeds: int = 5  # repetitions; at most 10000
d_model: int = 64  # width
context: int = 64  # bytes; at least 2
batch: int = 16  # sequences a step
steps: int = 100  # optimiser steps
learning_rate: float = 2e-3  # peak
heads: list = [1, 2, 4]  # counts
lengths: list = [64, 128]  # tokens; at least 2
"""
CHECKS = """
for h in heads:
    assert d_model % h == 0, f"heads: {h} does not divide d_model {d_model}"
assert context >= 2 * batch or batch < 64
"""
DECLARED = {
    "profile": "quick", "results": "", "corpus": "", "seeds": 5, "d_model": 64, "context": 64, "batch": 16,
    "steps": 100, "learning_rate": 2e-3, "heads": [1, 2, 4], "lengths": [64, 128],
}  # fmt: skip


@pytest.fixture(scope="module")
def invented(tmp_path_factory):
    return notebook_with(tmp_path_factory.mktemp("notebooks"), parameters=CELL, checks=CHECKS)


# Profiles


def test_a_profile_is_its_file_over_the_defaults_and_quick_is_the_defaults(project):
    dice = notebooks()[0]
    assert of_profile(dice, "quick") == made.DECLARED
    assert of_profile(dice, "smoke") == made.DECLARED | made.FILES[f"smoke/{dice.stem}"]


def test_a_file_of_a_profile_that_is_not_allowed_is_named(project):
    path = project / "experiments" / "smoke" / f"{notebooks()[1].stem}.yaml"
    sound = path.read_text("utf-8")
    path.write_text(sound + "toses: 3\n")
    with pytest.raises(Refused, match=f"^experiments/smoke/{path.name}: .*toses.*; did you mean 'tosses'"):
        of_profile(notebooks()[1], "smoke")
    path.write_text(sound)


# Bad input

BAD = {  # values; what the message names beside source
    "unknown": ({"nonsuch": 1}, ["nonsuch", "d_model", "heads"]),
    "misspelt": ({"d_modle": 64}, ["d_modle", "did you mean 'd_model'?"]),
    "misspelt twice": ({"learning-rate": 0.1}, ["learning-rate", "did you mean 'learning_rate'?"]),
    "name that is no text": ({3: 64}, ["3"]),
    "text for a number": ({"d_model": "64 wide"}, ["d_model", "64 wide"]),
    "digits as text": ({"d_model": "64"}, ["d_model", "'64'", "a whole number, at least 1"]),
    "fraction for a whole number": ({"steps": 2.5}, ["steps", "2.5", "a whole number"]),
    "nothing": ({"seeds": None}, ["seeds", "None"]),
    "list for a number": ({"seeds": [1, 2]}, ["seeds", "[1, 2]"]),
    "number for a list": ({"heads": 4}, ["heads", "4", "list"]),
    "mapping for a list": ({"heads": {"a": 4}}, ["heads", "list"]),
    "true for a whole number": ({"seeds": True}, ["seeds", "True", "a whole number, at least 1, at most 10000"]),
    "true for a rate": ({"learning_rate": True}, ["learning_rate", "True", "a finite number, > 0"]),
    "true in a list": ({"heads": [True, 2]}, ["heads[0]", "True", "a whole number"]),
    "date": ({"steps": datetime.date(2020, 1, 1)}, ["steps", "2020"]),
    "negative steps": ({"steps": -1}, ["steps", "-1", "at least 1"]),
    "no seeds": ({"seeds": 0}, ["seeds", "0", "at least 1"]),
    "context of one": ({"context": 1}, ["context = 1:", "at least 2"]),
    "NaN rate": ({"learning_rate": math.nan}, ["learning_rate", "nan", "finite"]),
    "infinite rate": ({"learning_rate": math.inf}, ["learning_rate", "inf", "finite"]),
    "infinite rate as text": ({"learning_rate": "inf"}, ["learning_rate", "inf", "finite"]),
    "zero rate": ({"learning_rate": 0}, ["learning_rate = 0:", "> 0"]),
    "words for a rate": ({"learning_rate": "fast"}, ["learning_rate = 'fast':", "number"]),
    "empty list": ({"heads": []}, ["heads", "[]", "at least 1 entry"]),
    "twice the same": ({"heads": [4, 4]}, ["heads", "[4, 4]", "all different"]),
    "zero heads": ({"heads": [4, 0]}, ["heads[1] = 0:", "at least 1"]),
    "heads that do not divide": ({"heads": [4, 5]}, ["heads: 5 does not divide d_model 64"]),
    "width that is not divided": ({"d_model": 6}, ["heads: 4 does not divide d_model 6"]),
    "unknown profile": ({"profile": "huge"}, ["profile", "huge", "smoke, quick"]),
    "resembles one": ({"seed": 3}, ["seed", "did you mean 'seeds'?"]),
    "no such file": ({"corpus": "/no/such"}, ["corpus = '/no/such'", "a file or folder, may be empty"]),
    "an assert without a sentence": ({"batch": 64}, ["assert context >= 2 * batch or batch < 64 does not hold with",
                                                      "context = 64, batch = 64"]),
}  # fmt: skip


@pytest.mark.parametrize("values, named", BAD.values(), ids=BAD)
def test_bad_input_is_refused_by_name(values, named, invented):
    with pytest.raises(Refused) as error:
        validate(invented, values, source="my file.yaml")
    assert str(error.value).startswith("my file.yaml: ")
    for word in named:
        assert word in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("values, read", [
    ({"learning_rate": "1e-3"}, 1e-3),  # YAML 1.1 reads 1e-3 as text
    ({"learning_rate": 1}, 1.0),
    ({"steps": 1}, 1),
    ({"heads": [64, 1]}, [64, 1]),
    ({"results": "results/mine"}, "results/mine"),
    ({"corpus": __file__}, __file__),
], ids=str)  # fmt: skip
def test_good_input_is_converted(values, read, invented):
    (name,) = values
    checked = validate(invented, values, "file")
    assert checked[name] == read and type(checked[name]) is type(read)
    assert checked == DECLARED | {name: read}


TYPED = {  # what is typed after NAME= or stands in a file: its value
    "010": "010", "0x10": "0x10", "1:30": "1:30", "0b1": "0b1", "0o7": "0o7", "yes": "yes", "off": "off", "N": "N",
    "2020-01-02": "2020-01-02", "<<": "<<", "=": "=", ".inf": ".inf",
    "10": 10, "-3": -3, "1_000": 1000, "0": 0, "1.5": 1.5, "1e-3": 1e-3, "2.5E3": 2500.0, ".5": 0.5,
    "true": True, "False": False, "null": None, "None": None, "~": None, "none": "none",
    "[010, 1:30, 2, yes]": ["010", "1:30", 2, "yes"], "'10'": "10", '"None"': "None",
}  # fmt: skip


@pytest.mark.parametrize("text, value", TYPED.items())
def test_values_are_what_people_mean(text, value):
    for read in (parameters.read_value(text), parameters.read_yaml(text), parameters.read_yaml(f"a: {text}")["a"]):
        assert read == value and type(read) is type(value)


@pytest.mark.parametrize("text", ["a # b", "#", "5 # five", "a: b", "- a", "a: b: c", "", " a", "*x", "&x", "!a", "|"])
def test_what_is_typed_is_text_where_it_is_no_number(text):
    assert parameters.read_value(text) == text


def test_a_number_that_nobody_means_is_refused(invented, tmp_path):
    (path := tmp_path / "mine.yaml").write_text("steps: 010")
    for values in (read_file(path), {"steps": parameters.read_value("010")}):
        with pytest.raises(Refused, match="steps = '010': expected a whole number"):
            validate(invented, values, "here")


UNREADABLE = {
    "key twice": "d_model: 64\nd_model: 32\n",
    "list": "- d_model\n- 64\n",
    "text": "d_model 64\n",
    "number": "64\n",
    "unclosed": "heads: [1, 2\n",
    "tab": "d_model:\t64\n\theads: 1\n",
    "two documents": "d_model: 64\n---\nd_model: 32\n",
    "alias to nothing": "d_model: *width\n",
    "tag": "d_model: !!python/object/apply:os.getcwd []\n",
    "impossible number": "d_model: !!int wide\n",
    "impossible truth": "d_model: !!bool maybe\n",
    "impossible time": "d_model: !!timestamp later\n",
    "list as a name": "? [1, 2]\n: 3\n",
    "nested without end": "d_model: " + "[" * 5000,
    "number without end": "d_model: " + "9" * 5000,
}


@pytest.mark.parametrize("text", UNREADABLE.values(), ids=UNREADABLE)
def test_a_file_that_cannot_be_read_is_named(text, tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(Refused, match="mine.yaml"):
        read_file(path)


def test_a_file_that_is_missing_or_no_text_is_named(tmp_path):
    (tmp_path / "latin.yaml").write_bytes(b"corpus: caf\xe9\n")
    for path in (tmp_path / "none.yaml", tmp_path, tmp_path / "latin.yaml"):
        with pytest.raises(Refused, match=re.escape(str(path))):
            read_file(path)


def test_an_empty_file_changes_nothing(tmp_path):
    (tmp_path / "empty.yaml").write_text("# nothing\n")
    assert read_file(tmp_path / "empty.yaml") == {}


def test_an_unknown_profile_lists_the_profiles(project):
    for notebook in notebooks():
        with pytest.raises(Refused, match="'huge'.* smoke, quick"):
            of_profile(notebook, "huge")
