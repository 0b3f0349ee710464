"""A notebook from any folder runs with the parameters that it declares, and shows a refusal in one sentence."""

import nbformat
import papermill
import pytest
from helpers import notebook_with
from lab.trials.parameters import (
    PROFILES,
    Refused,
    exercise_of,
    in_namespace,
    injected,
    misspelt,
    notebook_of,
    notebooks,
    of_profile,
    read_declared,
    validate,
)
from papermill.translators import PythonTranslator

from lab.tools import kernel, terminal


def test_exercises_have_several_names_and_an_unknown_one_lists_them_all(project):
    stems = [notebook.stem for notebook in notebooks()]
    assert len(stems) == 2
    for notebook in notebooks():
        number = int(notebook.stem[:2])
        assert exercise_of(notebook) == f"1.{number}"
        for name in (f"1.{number}", str(number), f"{number:02}", notebook.stem, str(notebook)):
            assert notebook_of(name) == notebook
    for name in ("1.99", "nonsuch", "", "../06", "6.0", "no/such.ipynb", "\0.ipynb", "x" * 5000 + ".ipynb"):
        with pytest.raises(Refused) as error:
            notebook_of(name)
        assert repr(name) in str(error.value) and all(stem in str(error.value) for stem in stems)


UNTYPED = """
n_steps = 300
seed = 0
rate = 1e-3  # of the optimiser; < 1
names = ["a", "b"]
table = {"a": 1}
nothing = None
widths = [
    8,  # the least
    16,
]  # of the stream; multiple of 8
"""


def test_a_notebook_from_anywhere_has_the_parameters_that_it_declares(tmp_path, monkeypatch):
    path = notebook_with(tmp_path, "04_head_count.ipynb", parameters=UNTYPED)
    monkeypatch.chdir(tmp_path)
    for name in (path, str(path), "04_head_count.ipynb", "./04_head_count.ipynb"):
        assert notebook_of(name) == path
    assert exercise_of(path) == "04_head_count", "not the project's own"
    own = {"n_steps": 300, "seed": 0, "rate": 1e-3, "names": ["a", "b"], "table": {"a": 1}, "nothing": None,
           "widths": [8, 16]}  # fmt: skip
    for profile in PROFILES:
        assert of_profile(path, profile) == own
    given = {"n_steps": 5, "seed": -1, "rate": "1e-4", "names": ["c"], "table": [], "nothing": "x", "widths": [24]}
    assert validate(path, given, "here") == given | {"rate": 1e-4}
    for bad in ({"n_steps": 0}, {"n_steps": 2.0}, {"rate": 1}, {"names": [3]}, {"widths": [12]}, {"steps": 3}):
        with pytest.raises(Refused, match=f"^here: .*{next(iter(bad))}"):
            validate(path, bad, "here")


def test_a_profile_is_told_to_a_notebook_that_declares_it(tmp_path):
    path = notebook_with(tmp_path, parameters='profile: str = "quick"\nsize = 3')
    assert [of_profile(path, name) for name in PROFILES] == [{"profile": name, "size": 3} for name in PROFILES]
    other = notebook_with(tmp_path, parameters='profile = "alice"')
    assert of_profile(other, "smoke") == {"profile": "alice"}, "a profile of another kind"


def test_a_notebook_without_a_parameters_cell_has_none(tmp_path):
    path = notebook_with(tmp_path)
    assert read_declared(path) == of_profile(path, "smoke") == {}
    with pytest.raises(Refused, match="here: mine has no parameter 'x'. It has none"):
        validate(path, {"x": 1}, "here")


BROKEN = {  # a parameters cell; what the refusal names
    "computed": ("n = 2 * 8", "'n = 2 \\* 8' among the parameters"),
    "a call": ("import os\nn = 1", "'import os' among the parameters"),
    "two names": ("a = b = 1", "'a = b = 1' among the parameters"),
    "a tuple": ("a = (1, 2)", "among the parameters"),
    "no number": ("a = 1e999", "among the parameters"),
    "a bound with a second equals sign": ("n = 1  # steps; >= 2", "'n = 1' among the parameters.* with one ="),
    "a type that papermill reads not": ("n: int | None = None", "among the parameters.* Optional"),
    "no value": ("steps: int", "'steps: int' among the parameters"),
    "not Python": ("steps = ", "the parameters cell cannot be read: invalid syntax"),
    "a magic": ("%matplotlib inline\nn = 1", "the parameters cell cannot be read"),
    "a bound": ("n = 1  # steps; at least one", "n: 'at least one' looks like a bound"),
    "a default": ("n = 1  # steps; at least 2", "n = 1: expected a whole number, at least 2, at most 1000000000"),
    "a type": ("n: int = 1.5", "n: the default 1.5 is not a whole number"),
}


@pytest.mark.parametrize("cell, named", BROKEN.values(), ids=BROKEN)
def test_a_parameters_cell_that_cannot_be_read_is_named(cell, named, tmp_path):
    with pytest.raises(Refused, match=f"^mine.ipynb: .*{named}"):
        validate(notebook_with(tmp_path, parameters=cell), {}, "here")


def test_a_file_that_is_no_notebook_is_named(tmp_path):
    for text in ("", "[]", "{}", '{"cells": 3}', '{"cells": [{}]}', "\0"):
        (tmp_path / "mine.ipynb").write_text(text)
        with pytest.raises(Refused, match="mine.ipynb: cannot be read as a notebook"):
            read_declared(tmp_path / "mine.ipynb")


def test_one_cell_at_most_declares(tmp_path):
    path = notebook_with(tmp_path, parameters="a = 1")
    book = nbformat.read(path, 4)
    book.cells.append(nbformat.from_dict(book.cells[0] | {"id": "again"}))
    nbformat.write(book, path)
    with pytest.raises(Refused, match="mine.ipynb: one cell may be tagged `parameters`, found 2"):
        read_declared(path)


OPTIONAL = """
limit: Optional[int] = None  # of steps; at most 99
rate: Optional[float] = 0.5
name: Optional[str] = None
many: Optional[list[int]] = None
steps: int = 3
"""


def test_a_parameter_may_be_none_where_its_type_says_so(tmp_path):
    path = notebook_with(tmp_path, parameters=OPTIONAL)
    usual = {"limit": None, "rate": 0.5, "name": None, "many": None, "steps": 3}
    assert validate(path, {}, "here") == usual
    for given in ({"limit": 5}, {"rate": None}, {"rate": 1}, {"name": "x"}, {"many": [1]}, {"limit": None}):
        assert validate(path, given, "here") == usual | given
    for bad in ({"limit": "None"}, {"limit": 0}, {"limit": 100}, {"name": 3}, {"steps": None}):
        with pytest.raises(Refused, match=f"^here: {next(iter(bad))} = "):
            validate(path, bad, "here")
    with pytest.raises(Refused, match="limit = 'x': expected a whole number, at least 1, at most 99, or None"):
        validate(path, {"limit": "x"}, "here")


# In a kernel


def executed(path):
    """The error with which the notebook ends."""
    with pytest.raises((RuntimeError, papermill.PapermillExecutionError)) as error:
        kernel.execute(nbformat.read(path, 4), {}, path.parent, path.parent / "log", lambda **at: 0)
    return error.value


def test_sys_exit_is_told_where_cells_come_after_it(tmp_path):
    error = executed(notebook_with(tmp_path, first="a = 1", leaves="import sys\nsys.exit(0)"))
    assert str(error) == "cell 2 called sys.exit: the cells after it did not run"
    code = nbformat.v4.new_code_cell
    left = code("", outputs=[nbformat.v4.new_output("error", ename="SystemExit", evalue="0", traceback=[])])
    kernel.check_to_the_end(nbformat.v4.new_notebook(cells=[code("a"), left, nbformat.v4.new_markdown_cell("end")]))


def test_a_magic_that_fails_is_told_with_what_it_says(tmp_path):
    error = executed(notebook_with(tmp_path, first="a = 1", magic="%nosuch\nb = 1"))
    assert terminal.explain(None, error) == "cell 2: %nosuch: UsageError: Line magic function `%nosuch` not found."


def test_a_refusal_in_a_notebook_shows_its_one_sentence(tmp_path):
    path = notebook_with(tmp_path, parameters="heads = [1, 2]", raising="from lab.trials.parameters import validate\n"
                         f"from pathlib import Path\nvalidate(Path({str(tmp_path / 'mine.ipynb')!r}), "
                         "{'heads': heads, 'head': 3}, 'notebook')")  # fmt: skip
    sentence = "notebook: mine has no parameter 'head'; did you mean 'heads'? It has heads"
    with pytest.raises(papermill.PapermillExecutionError) as error:
        papermill.execute_notebook(path, tmp_path / "out.ipynb", kernel_name="python3", progress_bar=False)
    assert (error.value.ename, error.value.evalue, error.value.traceback) == ("Refused", sentence, [sentence])
    outputs = [output for cell in nbformat.read(tmp_path / "out.ipynb", 4).cells for output in cell.get("outputs", [])]
    assert [o.traceback for o in outputs if o.output_type == "error"] == [[sentence]]


def test_what_papermill_sets_is_known_by_its_cell():
    cell = PythonTranslator.codify({"seed": 3, "heads": list(range(50)), "text": "a\nsteps = 3"})
    namespace = {"In": ["", "heads = [1]\nwidth = 3", cell, "rate = 4"], "seed": 3, "heads": [1], "text": "", "rate": 4}
    assert injected(namespace) == ["seed", "heads", "text"]
    assert injected({"seeds": 3}) == [], "not in a notebook"


def test_a_name_that_nearly_is_a_parameter_is_noticed(tmp_path):
    path = notebook_with(tmp_path, parameters="seeds = 5\nwidth = 8", used="widths = [width]")
    with pytest.warns(UserWarning, match="seed is no parameter, and nothing reads it; did you mean seeds"):
        values, _ = in_namespace({"seed": 9, "seeds": 5, "width": 8, "widths": [8], "colour": 3}, path)
    assert values == {"seeds": 5, "width": 8}
    assert [*misspelt({"widths": [8], "colour": 3, "_seed": 1}, path, {"seeds", "width"})] == []
