"""What a declaring line says of its values: by its type, its default, and the bounds in its comment."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.trials.bounds import FORMS_IN_WORDS, parameter_of


def allows(parameter, value):
    """Whether a value is taken; what is refused is named with its value."""
    try:
        checked = parameter.checked("x", value)
    except ValueError as error:
        assert str(error).startswith("x") and ": expected " in str(error)
        return False
    assert parameter.checked("x", checked) == checked, "accepted once, accepted unchanged"
    return True


def taken(parameter, *values):
    return [value for value in values if allows(parameter, value)]


# What type and default say

ANYTHING = (1, 5, 10**9, 0, -1, 10**9 + 1, 2.5, 3.0, True, "1e-3", "64", "a", None, [1], {}, math.nan, math.inf)
KINDS = {  # annotation, default; what of ANYTHING is taken
    "int": ("int", 5, [1, 5, 10**9]),
    "float": ("float", 0.5, [1, 5, 10**9, 10**9 + 1, 2.5, 3.0, "1e-3", "64"]),
    "float by an int": ("float", 5, [1, 5, 10**9, 10**9 + 1, 2.5, 3.0, "1e-3", "64"]),
    "str": ("str", "b", ["1e-3", "64", "a"]),
    "bool": ("bool", False, [True]),
    "untyped int": ("", 5, [1, 5, 10**9]),
    "untyped float": ("", 0.5, [1, 5, 10**9, 10**9 + 1, 2.5, 3.0, "1e-3", "64"]),
    "untyped text": ("", "b", ["1e-3", "64", "a"]),
    "untyped truth": ("", False, [True]),
    "nothing yet": ("", None, ANYTHING[:-2]),
    "a type unheard of": ("Path", "b", ["1e-3", "64", "a"]),
}


@pytest.mark.parametrize("annotation, default, right", KINDS.values(), ids=KINDS)
def test_a_type_or_else_the_default_says_what_a_value_may_be(annotation, default, right):
    parameter = parameter_of(default, annotation, "")
    assert [repr(v) for v in taken(parameter, *ANYTHING)] == [repr(v) for v in right]
    assert allows(parameter, default)


@pytest.mark.parametrize("annotation, default", [("list", [4, 8]), ("list[int]", [4, 8]), ("", [4, 8])])
def test_a_list_has_entries_all_different_and_each_as_the_default_s(annotation, default):
    parameter = parameter_of(default, annotation, "; at most 64")
    right = [[1], [64, 1], [3, 2, 1]]
    wrong = [[], [1, 1], [0], [1, 65], [1, 2.0], [True, 2], ["1"], [[1]], [None], 4, "4", None, {}, {"a": 4}]
    assert taken(parameter, *right, *wrong) == right
    with pytest.raises(ValueError, match=r"^x\[1\] = 65: expected a whole number, at least 1, at most 64$"):
        parameter.checked("x", [1, 65])
    with pytest.raises(ValueError, match=r"^x = \[1, 1\]: expected a list of at least 1 entry, all different$"):
        parameter.checked("x", [1, 1])


def test_numbers_of_a_list_of_floats_become_floats():
    for parameter in (parameter_of([1, 2], "list[float]", ""), parameter_of([1, 2.5], "", "")):
        checked = parameter.checked("x", [1, "1e-3", 4])
        assert checked == [1.0, 1e-3, 4.0] and {type(entry) for entry in checked} == {float}
        assert not allows(parameter, [1, 1.0]), "the same number twice"


@pytest.mark.parametrize("default, also, never", [
    (0, [-5, 0, 7], [0.5]), (-3, [0, 10**9], [10**9 + 1]), (0.0, [-0.5, 1], [math.inf]), (10**10, [1, 10**12], [0]),
    ([], [[], [1, "a"]], ["a"]), ([1, 1], [[2, 2]], [[], [0]]), ([0, 1], [[0]], [[], [1, 1]]),
])  # fmt: skip
def test_what_a_default_breaks_is_not_implied(default, also, never):
    parameter = parameter_of(default, "", "")
    assert allows(parameter, default) and taken(parameter, *also, *never) == also


@pytest.mark.parametrize("annotation, default", [("int", 2.5), ("int", "a"), ("float", "a"), ("list[int]", [1, 2.5])])
def test_a_default_that_is_not_of_its_type_is_refused(annotation, default):
    with pytest.raises(ValueError, match="is not a (whole|finite) number"):
        parameter_of(default, annotation, "")


# What a comment says

numbers = st.integers(-(10**6), 10**6)


@given(a=numbers, b=numbers, value=numbers)
def test_bounds_mean_what_they_say(a, b, value):
    def said(clause, annotation="int"):
        return allows(parameter_of(5, annotation, f"words; {clause}"), value)

    for annotation in ("int", "float"):
        assert said(f"{a} to {b}", annotation) is (a <= value <= b)
        assert said(f"at most {b}; at least {a}", annotation) is (a <= value <= b)
        assert said(f"> {a}; < {b}", annotation) is (a < value < b)
        assert said(f"one of {a}, {b}", annotation) is (value in (a, b))
    assert said(f"at most {a}") is (1 <= value <= a), "the lower bound stays implied"
    assert said(f"< {a}", "float") is (0 < value < a)
    assert said(f"multiple of {abs(a) + 1}") is (value > 0 and value % (abs(a) + 1) == 0)


@pytest.mark.parametrize(
    "comment", ["optimiser steps; at least 0", "at least 0", "steps; at least 0: none at all; more are better"]
)
def test_a_bound_stands_in_any_part_of_a_comment_and_a_colon_ends_it(comment):
    parameter = parameter_of(5, "int", comment)
    assert taken(parameter, -1, 0, 10**9, 10**9 + 1) == [0, 10**9], "the upper bound stays implied"


@pytest.mark.parametrize("clause, right, wrong", [
    ("0.1 to 64", [0.1, 64.0], [0.09, 64.1]), ("at least 1e-3", [1e-3], [9e-4]), ("at most 1_000", [1000.0], [1001.0]),
    ("-1 to 1", [-1.0, 0.0], [-1.5]), ("one of 0.5, 1 or 2", [0.5, 1.0, 2.0], [3.0]),
])  # fmt: skip
def test_numbers_are_written_as_in_python(clause, right, wrong):
    assert taken(parameter_of(0.5, "float", clause), *right, *wrong) == right


def test_choices_may_be_words():
    for clause in ("one of smoke, quick, full", "one of smoke, quick or full", "one of smoke, quick, or full"):
        parameter = parameter_of("quick", "str", clause)
        assert taken(parameter, "smoke", "quick", "full", "huge", "smoke, quick", "", 7) == ["smoke", "quick", "full"]


def test_a_file_or_folder_is_there(tmp_path):
    (tmp_path / "text.txt").write_text("a")
    right, wrong = (
        [str(tmp_path), str(tmp_path / "text.txt"), "~"],
        [str(tmp_path / "none"), "\0", "x" * 5000, "\ud800"],
    )
    assert taken(parameter_of("", "str", "a file or folder, may be empty: nothing"), "", *right, *wrong) == ["", *right]
    assert taken(parameter_of(str(tmp_path), "str", "a file or folder"), "", *right, *wrong) == right


def test_a_list_may_want_more_entries():
    parameter = parameter_of([1, 2, 3], "list", "widths; at least 2 entries; multiple of 1")
    assert taken(parameter, [1, 2], [4, 5, 6], [1], [], [2, 2]) == [[1, 2], [4, 5, 6]]
    assert allows(parameter_of([1], "list", "at least 0 entries"), [])
    with pytest.raises(ValueError, match="expected a list of at least 2 entries, all different"):
        parameter.checked("x", [1])


UNREADABLE = [
    ">= 3", "<= 3", "> three", "≥ 3", "1 - 5", "between 1 and 5", "multiples of 4", "multiple of four", "multiple of 0",
    "multiple of 0.5", "one of", "one of 3", "at least three", "at least two entries", "at least 2 entries", "a file",
    "a folder, may be empty", "at most 1__0", "a file or folder",
]  # fmt: skip


@pytest.mark.parametrize("clause", UNREADABLE)
def test_what_looks_like_a_bound_and_cannot_be_read_is_an_error_that_says_so(clause):
    for comment in (clause, f"optimiser steps; {clause}", f"{clause}: why; more"):
        with pytest.raises(ValueError, match="looks like a bound") as error:
            parameter_of(5, "int", comment)
    assert clause in str(error.value) and FORMS_IN_WORDS in str(error.value)


@pytest.mark.parametrize("default, clause", [
    ("a", "at least 1"), ("a", "multiple of 2"), (True, "one of 1, 2"), (1.5, "multiple of 2"), (None, "1 to 3"),
    ({}, "one of a, b"),
])  # fmt: skip
def test_a_bound_of_another_type_is_an_error(default, clause):
    with pytest.raises(ValueError, match="looks like a bound but is not a valid one for "):
        parameter_of(default, "", clause)


@pytest.mark.parametrize("comment", [
    "", "optimiser steps", "tokens; exponents are fitted to the last four", "symbols, in training 1 to this many",
    "heads compared; 1, 2, 4, 8, 16 and 32 are judged", "tokens, 0 leaves it out", "the largest, one of which is kept",
    "steps at most; warm-up takes half", "empty: results/interactive", "a 27th; a multiple", "x -> y; <s> begins",
])  # fmt: skip
def test_prose_is_no_bound(comment):
    assert taken(parameter_of(5, "int", comment), 0, 1, 10**9, 10**9 + 1) == [1, 10**9]


@given(comment=st.one_of(st.text(max_size=30), st.text(alphabet="<>=;:, 0123456789.eto-", max_size=20)))
def test_any_comment_is_read_or_refused(comment):
    for default in (5, 0.5, "a", [1, 2], None):
        try:
            parameter_of(default, "", comment)
        except ValueError as error:
            assert "bound" in str(error)


@given(value=st.recursive(st.one_of(st.integers(), st.floats(), st.text(max_size=4), st.none(), st.booleans()),
                          lambda inner: st.lists(inner, max_size=2)))  # fmt: skip
def test_what_is_accepted_is_plain_and_finite(value):
    for default in (5, 0.5, "a", True, None, [1], [0.5], ["a"], [None], []):
        parameter = parameter_of(default, "", "")
        if allows(parameter, value):
            assert json.dumps(parameter.checked("x", value), allow_nan=False)
