"""What the checks of a notebook accept runs to its end: each parameter alone at its least, at one entry, and larger.

`pytest -m extreme -k 04_head_count` tries one notebook. The least of a number is the first of 0, 1, 2, …
that is accepted, or a millionth; of a list that entry alone, or beside those of smoke. Larger is twice what smoke has:
what is largest may take hours, and what it needs of memory is asked for before anything starts.
"""

import itertools

import cells
import pytest

from lab.trials import parameters, runs

NUMBERS = {int: [*range(65), *(2**i for i in range(7, 14))], float: [10.0**i for i in range(-6, 2)]}


def names(notebook):
    """Of what is counted or measured: words are files, kinds and profiles."""
    declared = parameters.read_parameters(notebook)
    return [name for name, parameter in declared.items() if parameter.kind in NUMBERS]


def accepted(notebook, given, name, candidates):
    """The first candidate that the checks accept beside the other values; what is given where there is none."""
    for value in candidates:
        try:
            return parameters.validate(notebook, given | {name: value}, "test")[name]
        except parameters.Refused:
            pass
    return given[name]


def least(notebook, given, name):
    parameter, value = parameters.read_parameters(notebook)[name], given[name]
    numbers = NUMBERS[parameter.kind]
    if parameter.entries is None:
        return accepted(notebook, given, name, numbers)
    return accepted(notebook, given, name, [*([n] for n in numbers), *([n, *value] for n in numbers if n not in value)])


def one_entry(notebook, given, name):
    """As few entries of a list as are accepted."""
    value = given[name] if isinstance(given[name], list) else []
    fewer = (list(some) for n in range(1, len(value)) for some in itertools.combinations(value, n))
    return accepted(notebook, given, name, fewer)


def larger(notebook, given, name):
    value = given[name]
    doubled = [*value, 2 * max(value)] if isinstance(value, list) else 2 * value
    return accepted(notebook, given, name, [doubled])


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return tmp_path_factory.mktemp("store")


def run(notebook, values, folder, store):
    cells.run(notebook, values, folder, record=[], store=store)
    assert runs.read_run(folder / notebook.stem)["status"] == "done"


EACH = [pytest.param(notebook, name, id=f"{notebook.stem}-{name}")
        for notebook in parameters.notebooks() for name in names(notebook)]  # fmt: skip


@pytest.mark.extreme
@pytest.mark.parametrize("extreme", [least, one_entry, larger], ids=lambda extreme: extreme.__name__)
@pytest.mark.parametrize("notebook, name", EACH)
def test_what_is_accepted_runs(notebook, name, extreme, tmp_path, store):
    usual = parameters.of_profile(notebook, "smoke")
    if (value := extreme(notebook, usual, name)) == usual[name]:
        pytest.skip("smoke has no other")
    run(notebook, usual | {name: value}, tmp_path, store)


def test_all_at_their_least_at_once(tmp_path, store):
    notebook = parameters.notebook_of("1.6")
    given = parameters.of_profile(notebook, "smoke")
    for name in names(notebook):
        given = given | {name: least(notebook, given, name)}
    run(notebook, given, tmp_path, store)
