"""Parameters are refused before anything starts, in words that name place, field, value and what is allowed."""

import datetime
import inspect
import json
import math
import re

import pytest
import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from lab.engine import parameters, rules
from lab.engine.limits import PROFILES, TYPES, Positive
from lab.engine.parameters import Refused, notebooks, of_profile, read_declared, read_file, validate
from lab.engine.rules import RULES
from lab.engine.runs import project_root

NOTEBOOKS = {notebook.stem: notebook for notebook in notebooks()}
FILES = sorted((project_root() / "experiments").glob("*/*.yaml"))
DECLARED = {
    "profile": "quick", "results": "", "corpus": "", "seeds": 5, "d_model": 64, "context": 64, "batch": 16,
    "steps": 100, "learning_rate": 2e-3, "heads": [1, 2, 4], "lengths": [64, 128], "widths": [16, 32],
    "repeats": 5,
}  # fmt: skip
each_notebook = pytest.mark.parametrize("notebook", NOTEBOOKS.values(), ids=NOTEBOOKS)


def notebook_with(folder, declared):
    """A notebook that declares these parameters, under a name of its own."""
    source = [f"{name}: {type(value).__name__} = {value!r}  # help\n" for name, value in declared.items()]
    path = folder / "99_invented.ipynb"
    cell = {"cell_type": "code", "metadata": {"tags": ["parameters"]}, "source": source, "outputs": []}
    path.write_text(json.dumps({"cells": [cell], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}), "utf-8")
    return path


@pytest.fixture(scope="module")
def invented(tmp_path_factory):
    return notebook_with(tmp_path_factory.mktemp("notebooks"), DECLARED)


@pytest.fixture(autouse=True)
def invented_type(monkeypatch):
    monkeypatch.setitem(TYPES, "learning_rate", Positive)


@pytest.fixture
def eight_gib(monkeypatch):
    monkeypatch.setattr(rules, "available_memory", lambda: 8 * 2**30)


# What is in the project


@each_notebook
def test_every_parameter_of_every_notebook_has_a_type(notebook):
    declared = read_declared(notebook)
    assert set(declared) <= set(TYPES), "name its type and limits in lab.engine.limits.TYPES"
    assert list(declared)[:2] == ["profile", "results"]
    assert validate(notebook, {}, "defaults") == declared, "the defaults are valid, and are what they are read as"
    assert declared["profile"] == "quick" and declared["results"] == ""


def test_every_rule_speaks_of_parameters_that_exist():
    for check in RULES:
        wanted = [p.name for p in inspect.signature(check).parameters.values() if p.default is p.empty]
        assert wanted and set(wanted) <= set(TYPES), f"{check.__name__} would never run"


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_every_parameter_file_is_valid_and_of_its_profile(path):
    assert path.parent.name in PROFILES and path.stem in NOTEBOOKS
    checked = of_profile(NOTEBOOKS[path.stem], path.parent.name)
    assert checked["profile"] == path.parent.name == read_file(path)["profile"]
    assert "results" not in read_file(path), "one place for results: --results"


@each_notebook
@pytest.mark.parametrize("profile", PROFILES)
def test_every_notebook_has_a_file_of_every_profile(profile, notebook):
    assert (project_root() / "experiments" / profile / f"{notebook.stem}.yaml").exists()


# Bad input

BAD = {  # values; what the message names beside source
    "unknown": ({"nonsuch": 1}, ["nonsuch", "d_model", "heads"]),
    "misspelt": ({"d_modle": 64}, ["d_modle", "did you mean 'd_model'?"]),
    "misspelt twice": ({"learning-rate": 0.1}, ["learning-rate", "did you mean 'learning_rate'?"]),
    "name that is no text": ({3: 64}, ["3"]),
    "text for a number": ({"d_model": "64 wide"}, ["d_model", "64 wide"]),
    "digits as text": ({"d_model": "64"}, ["d_model", "'64'", "integer"]),
    "fraction for a whole number": ({"steps": 2.5}, ["steps", "2.5", "integer"]),
    "nothing": ({"seeds": None}, ["seeds", "None"]),
    "list for a number": ({"seeds": [1, 2]}, ["seeds", "[1, 2]"]),
    "number for a list": ({"heads": 4}, ["heads", "4", "list"]),
    "mapping for a list": ({"heads": {"a": 4}}, ["heads", "list"]),
    "true for a whole number": ({"seeds": True}, ["seeds", "True", "not true or false"]),
    "true for a rate": ({"learning_rate": True}, ["learning_rate", "True", "not true or false"]),
    "true in a list": ({"heads": [True, 2]}, ["heads[0]", "True", "not true or false"]),
    "date": ({"steps": datetime.date(2020, 1, 1)}, ["steps", "2020"]),
    "negative steps": ({"steps": -1}, ["steps", "-1", "greater than or equal to 1"]),
    "no seeds": ({"seeds": 0}, ["seeds", "0", "greater than or equal to 1"]),
    "context of one": ({"context": 1}, ["context", "1", "greater than or equal to 2"]),
    "NaN rate": ({"learning_rate": math.nan}, ["learning_rate", "nan", "finite"]),
    "infinite rate": ({"learning_rate": math.inf}, ["learning_rate", "inf", "finite"]),
    "infinite rate as text": ({"learning_rate": "inf"}, ["learning_rate", "inf", "finite"]),
    "zero rate": ({"learning_rate": 0}, ["learning_rate", "0", "greater than 0"]),
    "words for a rate": ({"learning_rate": "fast"}, ["learning_rate", "fast", "number"]),
    "empty list": ({"heads": []}, ["heads", "[]", "at least 1"]),
    "twice the same": ({"heads": [4, 4]}, ["heads", "[4, 4]", "differ"]),
    "zero heads": ({"heads": [4, 0]}, ["heads[1]", "0", "greater than or equal to 1"]),
    "heads that do not divide": ({"heads": [4, 5]}, ["heads", "5 does not divide d_model 64", "2, 4, 8, 16, 32, 64"]),
    "width that is not divided": ({"d_model": 6}, ["heads", "4 does not divide d_model 6", "1, 2, 3, 6"]),
    "unknown profile": ({"profile": "huge"}, ["profile", "huge", "smoke, quick, full"]),
    "results outside": ({"results": "../elsewhere"}, ["results", "../elsewhere", "outside the project"]),
    "results far outside": ({"results": "/tmp/elsewhere"}, ["results", "/tmp/elsewhere", "outside the project"]),
    "results around a corner": ({"results": "results/../../x"}, ["results", "results/../../x", "outside the project"]),
    "beyond memory": ({"lengths": [64, 10**6]}, ["lengths", "1000000", "GiB"]),
    "beyond all numbers": ({"lengths": [10**200]}, ["lengths"]),
}  # fmt: skip


@pytest.mark.parametrize("values, named", BAD.values(), ids=BAD)
def test_bad_input_is_refused_by_name(values, named, invented, eight_gib):
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


def test_the_largest_size_that_fits_is_told_and_fits(invented, eight_gib):
    with pytest.raises(Refused) as error:
        validate(invented, {"lengths": [10**5]}, "file")
    need, available, most = re.search(
        r"needs about ([\d.]+) GiB.* ([\d.]+) GiB are available; the largest lengths that fits is (\d+)",
        str(error.value),
    ).groups()
    assert float(available) == 8 and float(need) == pytest.approx(6 * 4 * 8 * 10**10 / 2**30, abs=0.1)
    validate(invented, {"lengths": [int(most)]}, "file")
    with pytest.raises(Refused):
        validate(invented, {"lengths": [int(most) + 1]}, "file")


MODERATE = {"d_model": 64, "n_layers": 2, "context": 64, "batch": 8, "offsets": 1000, "positions": 50,
            "lengths": [64], "score_heads": 2, "memory_lengths": [64], "heads": [2], "contexts": [64], "batches": [2],
            "elements": [1000], "plain_width": 64, "depths": [2], "longest": 64, "texts": 8,
            "windows": 8, "widths": [64], "block_widths": [64], "start_width": 64, "start_depths": [2],
            "code_layers": 3,
            "deepest": 8,
            }  # fmt: skip


@pytest.mark.parametrize("check", [r for r in RULES if "memory" in r.__name__], ids=lambda r: r.__name__)
def test_each_size_that_exhausts_memory_is_named(check, eight_gib):
    sizes = {name: MODERATE[name] for name in inspect.signature(check).parameters}
    check(**sizes)
    for name, value in sizes.items():
        with pytest.raises(ValueError, match=rf"{name} = {10**9}\b.* GiB are available; .*\b{name} that fits is \d+"):
            check(**sizes | {name: [10**9] if isinstance(value, list) else 10**9})


@pytest.mark.parametrize(
    "d_model, message", [(10**9, "heads: 3 does not divide"), (10**12, "d_model"), (10**300, "d_model")]
)
def test_a_huge_width_is_refused_at_once(d_model, message, invented):
    with pytest.raises(Refused, match=f"{message}.* = ?{d_model}|{message} d_model {d_model}"):
        validate(invented, {"heads": [3], "d_model": d_model}, "file")


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
    "impossible date": "d_model: 2024-13-45\n",
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


def test_an_unknown_profile_lists_the_profiles():
    for notebook in NOTEBOOKS.values():
        with pytest.raises(Refused, match="'huge'.* smoke, quick, full"):
            of_profile(notebook, "huge")


def test_exercises_have_several_names_and_an_unknown_one_lists_them_all():
    for stem, notebook in NOTEBOOKS.items():
        number = int(stem[:2])
        for name in (f"1.{number}", str(number), f"{number:02}", stem):
            assert parameters.notebook_of(name) == notebook
    for name in ("1.99", "nonsuch", "", "../06", "6.0"):
        with pytest.raises(Refused) as error:
            parameters.notebook_of(name)
        assert repr(name) in str(error.value) and all(stem in str(error.value) for stem in NOTEBOOKS)


def test_a_notebook_needs_one_parameters_cell(tmp_path):
    path = notebook_with(tmp_path, DECLARED)
    book = json.loads(path.read_text())
    for cells in ([], book["cells"] * 2):
        path.write_text(json.dumps(book | {"cells": cells}))
        with pytest.raises(Refused, match=f"99_invented.ipynb.*parameters.*found {len(cells)}"):
            read_declared(path)


# Anything at all

numbers = st.one_of(st.integers(-3, 70), st.integers(), st.integers(10**15, 10**40), st.floats(), st.booleans())
scalars = st.one_of(numbers, st.none(), st.text(max_size=8), st.dates(), st.binary(max_size=4),
                    st.sampled_from(["1e-3", "nan", "-inf", "0x10", "quick", "../x", "results/x", "\0"]))  # fmt: skip
values = st.one_of(scalars, st.lists(st.integers(1, 64), max_size=4), st.lists(scalars, max_size=4),
                   st.dictionaries(st.text(max_size=3), scalars, max_size=2),
                   st.lists(st.lists(numbers, max_size=2), max_size=2))  # fmt: skip


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(name=st.sampled_from(sorted(DECLARED)), value=values)
@example(name="results", value="a\0b")
@example(name="results", value="x" * 5000)
@example(name="corpus", value="\ud800")
@example(name="lengths", value=[2**70])
@example(name="d_model", value=2**4000)
def test_one_strange_value_is_converted_or_refused_by_name(name, value, invented, eight_gib):
    try:
        checked = validate(invented, {name: value}, "file.yaml")
    except Refused as refusal:
        message = str(refusal)
        assert message.startswith("file.yaml: ") and name in message
        inner = [value, *value] if isinstance(value, list) else [value]
        deeper = [x for item in inner if isinstance(item, list) for x in item]
        assert any(repr(v) in message for v in inner + deeper)
    else:
        assert set(checked) == set(DECLARED)
        assert json.dumps(checked, allow_nan=False), "what is accepted is plain and finite"
        assert validate(invented, checked, "again") == checked, "accepted once, accepted unchanged"


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.dictionaries(st.one_of(st.sampled_from(sorted(DECLARED)), scalars), values, max_size=4))
def test_a_file_of_anything_is_accepted_or_refused(content, invented, tmp_path, eight_gib):
    path = tmp_path / "any.yaml"
    try:
        path.write_text(yaml.safe_dump(content, allow_unicode=True), "utf-8")
    except UnicodeEncodeError:
        return
    try:
        assert set(validate(invented, read_file(path), str(path))) == set(DECLARED)
    except Refused as refusal:
        assert str(refusal).startswith(f"{path}: ")


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.one_of(
    st.binary(max_size=40),
    st.text(max_size=40).map(lambda text: text.encode("utf-8", "replace")),
    st.text(alphabet="ad: -[]{}#&*!|>%@`'\",?\n\t019.eE_x", max_size=40).map(str.encode),
))  # fmt: skip
def test_bytes_of_any_kind_are_read_or_refused(content, tmp_path):
    path = tmp_path / "any.yaml"
    path.write_bytes(content)
    try:
        assert isinstance(read_file(path), dict)
    except Refused as refusal:
        assert str(refusal).startswith(f"{path}: ")


@each_notebook
@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_value_breaks_the_check_of_a_notebook(notebook, data, eight_gib):
    name = data.draw(st.sampled_from(sorted(read_declared(notebook))))
    try:
        validate(notebook, {name: data.draw(values)}, "file")
    except Refused as refusal:
        assert str(refusal).startswith("file: ")
