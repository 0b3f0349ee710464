"""Which sweeps a verdict rests on: those that its numbers came from, in a small notebook and in the lab's own."""

import nbformat
import pytest

from lab.engine import parameters
from lab.engine.trials import Used
from lab.ledger import claims
from lab.ledger.rests import sweeps_behind, trials_in

START = """
import lab
from beside import brought
study = lab.study("1.4", globals())
def first(seed): return {"value": seed}
def second(seed): return {"value": -seed}
one = study.sweep(first, {"seed": [1, 2]})
two = study.sweep(second, {"seed": [1, 2]})
"""


@pytest.fixture
def behind(tmp_path):
    """{claim: its sweeps, sorted} of a notebook with the cells, after `first` swept into `one`, `second` into `two`."""

    def read(*cells):
        book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell("study.judge('a', one)")])
        book.cells += [nbformat.v4.new_code_cell(source) for source in (START, *cells)]
        nbformat.write(book, tmp_path / "mine.ipynb")
        found = sweeps_behind(tmp_path / "mine.ipynb")
        return {claim: sorted(trials) for claim, trials in found.items() if not claim.startswith("table ")}

    return read


@pytest.mark.parametrize("source, trials", {
    "nothing swept": ("study.judge('a', 3)", []),
    "a sweep's table": ("study.judge('a', one.value.mean())", ["first"]),
    "derived tables": ("best = one.merge(two)\nlow = best.value.min()\nstudy.judge('a', low)", ["first", "second"]),
    "a sweep in the call": ("study.judge('a', study.sweep(brought, {'seed': 1}).value[0])", ["brought"]),
    "a sweep of a module's trial": ("more = study.sweep(brought.inner, {})\nstudy.judge('a', more)", ["inner"]),
    "only its note": ("study.judge('a', 3, note=f'{two.value.mean():.1f}')", ["second"]),
    "a lambda": ("study.judge('a', lambda: one.value.max())", ["first"]),
    "a part of a table": ("one['other'] = two.value\nstudy.judge('a', one.other)", ["first", "second"]),
    "a list that was filled": ("rows = []\nrows.append(two)\nstudy.judge('a', rows)", ["second"]),
    "a name added to": ("sum_of = one.value\nsum_of += two.value\nstudy.judge('a', sum_of)", ["first", "second"]),
    "a loop that adds": ("n = 0\nfor x in one.value: n += x\nstudy.judge('a', n)", ["first"]),
    "trials in turn": ("for f in (first, second): t = study.sweep(f, {})\nstudy.judge('a', t)", ["first", "second"]),
}.values(), ids=lambda value: value.split("\n")[-1] if isinstance(value, str) else "")  # fmt: skip
def test_a_verdict_rests_on_the_sweeps_that_its_call_follows_from(source, trials, behind):
    found = behind(source)["a"]
    assert [name for name in found if name not in ("f", "study")] == trials


def test_a_name_that_is_bound_anew_follows_from_its_last_binding(behind):
    """A variable, a function in its place and the other way about; under a condition it may be either."""
    assert behind("one = two.copy()", "study.judge('a', one)") == {"a": ["second"]}
    assert behind("one = two if one.empty else 3", "study.judge('a', one)") == {"a": ["first", "second"]}
    assert behind("if lab:\n    one = two", "study.judge('a', one)") == {"a": ["first", "second"]}
    assert behind("def one(): return two", "study.judge('a', one())") == {"a": ["second"]}
    assert behind("def low(): return one", "low = 3", "study.judge('a', low)") == {"a": []}
    assert behind("for one in [1, 2]: pass", "study.judge('a', one)") == {"a": []}


def test_functions_follow_from_what_they_use_when_they_are_called(behind):
    low = "def low(): return least(one.value)\ndef least(values): return min(values)"
    assert behind(low, "study.judge('a', low())") == {"a": ["first"]}
    assert behind(low, "one = two", "study.judge('a', low())") == {"a": ["second"]}
    assert behind(low, "def least(values): return two", "study.judge('a', low())") == {"a": ["first", "second"]}
    recursive = "def up(n): return down(n - 1)\ndef down(n): return up(n) + one.value[0]"
    assert behind(recursive, "study.judge('a', up(3))") == {"a": ["first"]}


def test_functions_that_sweep_draw_or_judge_do_so_where_they_are_called(behind):
    swept = "def run(width): return study.sweep(first, {'width': width})"
    assert behind("del one", swept, "t = run(3)", "study.judge('a', t.value)") == {"a": ["first"]}
    judged = "def tell(name, table): study.judge(name, table.value.mean())"
    assert behind(judged, "tell('a', one)", "tell('b', two)")["a"] == ["first"]
    drawn = "def draw(name, table): study.figure(name, table, print)"
    assert behind(drawn, "draw('seen', two)", "study.judge('a', 3, figure='seen')") == {"a": ["second"]}


def test_a_verdict_rests_on_the_figure_and_the_table_that_it_cites(behind):
    drawn = "study.figure('seen', one, print)\nkept = study.table('kept', two)"
    judged = "study.judge('a', 3)\nstudy.judge('b', 3, figure='seen')\nstudy.judge('c', 3, table='kept')"
    assert behind(drawn, judged) == {"a": [], "b": ["first"], "c": ["second"]}
    assert behind(drawn, "at = {'figure': 'seen'}", "study.judge('a', 3, **at)") == {"a": ["first"]}
    assert behind(drawn, "study.figure('seen', two, print)", "study.judge('a', 3, figure='seen')") == {
        "a": ["first", "second"]
    }


def test_figures_and_tables_are_told_beside_the_claims(behind, tmp_path):
    behind("study.figure('seen', one, print)", "both = study.table('both', one.merge(two))\nstudy.judge('a', 3)")
    found = sweeps_behind(tmp_path / "mine.ipynb")
    assert found == {"a": set(), "table seen": {"first"}, "table both": {"first", "second"}}


def test_a_loop_of_judges_judges_each_claim_that_it_could(behind):
    loop = "for name, value in {'a': one.value.min(), 'b': 3}.items():\n    study.judge(name, value)"
    found = behind(loop)
    assert (found["a"], found["b"]) == (["first"], ["first"])
    listed = "judged = {'a': one.value.min(), 'b': two.value.min()}\nnames = list(judged)"
    found = behind(listed, "for name in names:\n    study.judge(name, judged[name])")
    assert {name: found[name] for name in "ab"} == dict.fromkeys("ab", ["first", "second"])
    assert behind("judged = {}\njudged['a'] = one", "for k, v in judged.items(): study.judge(k, v)")["a"] == ["first"]


def test_rows_lead_to_the_trials_that_they_may_come_from():
    """A value that another trial had tells apart; what none had, as a renamed arm, and a column that is gone do not."""
    used = [Used(print, f"{arm} {seed}", {"parameters": {"seed": seed, "arm": arm}}, "record")
            for seed in (0, 1) for arm in ("a", "b")]  # fmt: skip

    def found(*rows):
        return [each.key for each in trials_in(rows, used)]

    assert found({"seed": 0.0, "arm": "a", "loss": 3}) == ["a 0"]
    assert found({"seed": 0, "arm": "a"}, {"seed": 1, "arm": "b"}) == ["a 0", "b 1"]
    assert found({"seed": 1, "arm": "a, 1 layer"}) == found({"seed": 1}) == ["a 1", "b 1"]
    assert found({"loss": 3}) == [each.key for each in used] and found() == []


# The lab's own notebooks


@pytest.mark.parametrize("notebook", parameters.notebooks(), ids=lambda path: path.stem)
def test_every_claim_of_a_notebook_is_found(notebook):
    mine = {c.id for c in claims.ledger().values() if c.exercise == parameters.exercise_of(notebook) and not c.open}
    assert mine <= sweeps_behind(notebook).keys()
