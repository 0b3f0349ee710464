"""What parameters must be to each other stands in each notebook and is refused in words."""

import pytest
from helpers import notebook_with
from lab.trials.parameters import Refused, notebook_of, validate

RELATIONS = {  # what is changed in a notebook; what the refusal says
    "a relation": ({"dice": 3}, "sides: 4 is no multiple of dice 3"),
    "one of a list": ({"sides": [4, 7]}, "sides: 7 is no multiple of dice 2"),
}


@pytest.mark.parametrize("values, said", RELATIONS.values(), ids=RELATIONS)
def test_what_the_relations_of_a_notebook_refuse(values, said, project):
    with pytest.raises(Refused, match=f"^my file: {said}") as error:
        validate(notebook_of("1.1"), values, "my file")
    assert "\n" not in str(error.value)


# A cell of checks

CHECKED = {  # a checks cell on a = 3, b = [2, 1]; what the refusal says, or nothing
    "holds": ("assert a == 3\nassert all(a > x for x in b)", None),
    "a sentence": ("assert a < 3, f'a: {a} is too large'", "^here: a: 3 is too large$"),
    "no sentence": ("x = 1\nfor x in b:\n    assert x > a - 2", "^here: assert x > a - 2 does not hold with a = 3$"),
    "a refusal": ("raise ValueError('not so')", "^here: not so$"),
    "in a function": ("def f(x):\n    assert x < 3, 'f says so'\n\nf(a)", "^here: f says so$"),
    "an error": ("a / 0", "^here: the cell tagged `checks` fails: ZeroDivisionError: division by zero$"),
    "an unknown name": ("assert c", "^here: .*fails: NameError: name 'c' is not defined$"),
    "not Python": ("assert", "^here: .*fails: SyntaxError"),
}


@pytest.mark.parametrize("cell, said", CHECKED.values(), ids=CHECKED)
def test_the_checks_cell_refuses_in_its_own_words(cell, said, tmp_path):
    path = notebook_with(tmp_path, parameters="a = 3\nb = [2, 1]", checks=cell)
    if said is None:
        assert validate(path, {}, "here") == {"a": 3, "b": [2, 1]}
    else:
        with pytest.raises(Refused, match=said):
            validate(path, {}, "here")


def test_a_check_changes_no_value(tmp_path):
    path = notebook_with(tmp_path, parameters="a = 3\nb = [2, 1]", checks="b.sort()\na = 4")
    assert validate(path, {}, "here") == {"a": 3, "b": [2, 1]}
