"""What parameters must be to each other, and to memory, stands in each notebook and is refused in words."""

import subprocess
import sys
import textwrap

import pytest
from pieces import notebook_with

from lab.engine import parameters
from lab.engine.parameters import Refused, notebook_of, validate
from lab.engine.runs import project_root


@pytest.fixture
def eight_gib(monkeypatch):
    monkeypatch.setattr(parameters, "available_memory", lambda: 8 * 2**30)


# The notebooks of the project

RELATIONS = {  # what is changed in a notebook; what the refusal says
    "1.1 scores": ("1.1", {"lengths": [10**6]}, "lengths = 1000000, score_heads = 4 needs about .* lengths that fits"),
    "1.1 memory": ("1.1", {"memory_lengths": [131072], "heads": [100]}, "memory_lengths = 131072, heads = 100 needs"),
    "1.1 timed blocks": ("1.1", {"block_widths": [4096]}, "block_widths = 4096 needs .* block_widths that fits"),
    "1.2 heads": ("1.2", {"n_heads": 5}, "d_model: 64 is no multiple of 10, twice n_heads 5"),
    "1.2 training": ("1.2", {"n_layers": 10**6}, "n_layers = 1000000, text_layers = 4, context = 64 needs"),
    "1.2 windows": ("1.2", {"windows": 10**7}, "windows = 10000000, context = 64, d_model = 64 needs"),
    "1.3 odd heads": ("1.3", {"d_model": 36}, "d_model: 36 is no multiple of 8"),
    "1.3 training": ("1.3", {"batch": 10**9}, "batch = 1000000000 needs"),
    "1.3 windows": ("1.3", {"windows": 10**9}, "windows = 1000000000"),
    "1.4 kind": ("1.4", {"other_position": "rotry"}, r"position 'rotry' is unknown.*\(other_position = 'rotry'\)"),
    "1.4 heads": ("1.4", {"wide_heads": [1, 5]}, "wide_heads: 5 does not divide 128; allowed are its divisors"),
    "1.4 rotary": ("1.4", {"other_heads": [64]}, "other_heads: 64 leaves 1; rotary turns pairs"),
    "1.4 yardstick": ("1.4", {"heads": [1, 2]}, r"heads: \[1, 2\] lacks 8, the yardstick"),
    "1.4 training": ("1.4", {"n_layers": 10**9}, "n_layers = 1000000000"),
    "1.5 heads": ("1.5", {"d_model": 40}, "d_model: 40 is no multiple of 16, twice n_heads"),
    "1.5 shared": ("1.5", {"kv_heads": [8, 3]}, r"kv_heads \[8, 3\]: 8 and divisors of it"),
    "1.5 caches": ("1.5", {"contexts": [8, 4194304]}, "contexts = 4194304, batches = 32 needs .* contexts that fits"),
    "1.5 training": ("1.5", {"n_layers": 10**9}, "n_layers = 1000000000"),
    "1.6 width": ("1.6", {"d_model": 10**5}, "d_model = 100000 needs"),
    "1.6 codes": ("1.6", {"offsets": 10**8}, "offsets = 100000000, positions = 1000, d_model = 64 needs"),
    "1.7 copies": ("1.7", {"longest": 4000}, "longest = 4000, texts = 128, d_model = 64, n_layers = 2 needs"),
    "1.7 training": ("1.7", {"batch": 10**8}, "batch = 100000000, adding_batch = 64 needs"),
    "1.7 heads": ("1.7", {"n_heads": 3}, "d_model = 64 is no multiple of 2 x n_heads = 3; rotary needs it"),
    "1.8 heads": ("1.8", {"n_heads": 3}, "d_model: 64 is no multiple of 6, twice n_heads 3"),
    "1.8 stride": ("1.8", {"stride": 65}, "stride: 65 is longer than the window of context 64; the largest is 64"),
    "1.8 scored": ("1.8", {"scored": 511}, "scored: 511 bytes do not fill a window of 8 times context 64"),
    "1.8 scores": ("1.8", {"lengths": [10**5]}, "lengths = 100000, timed_width = 512, timed_heads = 8 needs"),
    "1.8 depth": ("1.8", {"deep_width": 80000}, "deep_width = 80000, depths = 12, deep_context = 32 needs"),
    "1.8 training": ("1.8", {"n_layers": 10**9}, "n_layers = 1000000000"),
    "1.9 vectors": ("1.9", {"elements": [10**9]}, "elements = 1000000000 needs .* elements that fits is"),
    "1.9 networks": ("1.9", {"plain_width": 10**5}, "plain_width = 100000, depths = 48 needs"),
    "1.9 timed blocks": ("1.9", {"block_widths": [4096]}, "block_widths = 4096 needs"),
    "1.9 training": ("1.9", {"n_layers": 10**9}, "n_layers = 1000000000"),
    "1.10 training": ("1.10", {"n_layers": 10**9}, "n_layers = 1000000000"),
    "1.10 windows": ("1.10", {"windows": 10**9}, "windows = 1000000000"),
    "1.11 width": ("1.11", {"d_model": 10**5}, "d_model = 100000 needs"),
    "1.11 start": ("1.11", {"start_width": 10**5}, "start_width = 100000, start_depths = 32 needs"),
    "1.11 depth": ("1.11", {"deepest": 10**6}, "depths = 24, deepest = 1000000, code_layers = 4, d_model = 32 needs"),
    "1.12 width": ("1.12", {"d_model": 10**5}, "d_model = 100000 needs"),
    "1.12 start": ("1.12", {"start_depths": [10**6]}, "start_width = 96, start_depths = 1000000 needs"),
    "1.12 depth": ("1.12", {"code_layers": 10**6}, "depths = 48, code_layers = 1000000, d_model = 32 needs"),
    "1.13 training": ("1.13", {"batch": 10**8}, "d_model = 32, batch = 100000000 needs"),
    "1.14 training": ("1.14", {"batch": 10**8}, "d_model = 64, context = 64, batch = 100000000 needs"),
    "1.14 windows": ("1.14", {"windows": 10**9}, "windows = 1000000000"),
    "1.14 blocks": ("1.14", {"widths": [10**6]}, "widths = 1000000, context = 64 needs"),
    "1.15 scores": ("1.15", {"score_lengths": [10**5]}, "score_lengths = 100000 needs"),
    "1.15 timed": ("1.15", {"lengths": [10**6]}, "lengths = 1000000, score_heads = 4 needs .* lengths that fits"),
    "1.15 memory": ("1.15", {"memory_lengths": [64, 128, 131072]}, "memory_lengths = 131072, score_heads = 4 needs"),
    "1.15 few": ("1.15", {"memory_lengths": [64, 128]}, "memory_lengths = .* a list of at least 3 entries"),
    "1.15 steps": ("1.15", {"context": 10**6}, "context = 1000000, n_layers = 8, batch = 4 needs"),
    "1.15 depth": ("1.15", {"depths": [10**7]}, "depths = 10000000 needs"),
    "1.16 kind": ("1.16", {"position": "rotry"}, "position 'rotry' is unknown; choose one of .*rotary"),
    "1.16 heads": ("1.16", {"wide_heads": [1, 5]}, "wide_heads: 5 does not divide 128; allowed are its divisors"),
    "1.16 yardstick": ("1.16", {"heads": [1, 2]}, r"heads: \[1, 2\] lacks 8, the yardstick"),
    "1.16 patterns": ("1.16", {"pattern_heads": [8, 64]}, r"pattern_heads: \[8, 64\] are not among heads"),
    "1.16 training": ("1.16", {"n_layers": 10**9}, "n_layers = 1000000000"),
    "1.16 windows": ("1.16", {"windows": 10**9}, "windows = 1000000000"),
    "1.17 spans": ("1.17", {"spans": [1, 3]}, "spans: 3 does not divide context 16"),
    "1.17 few": ("1.17", {"scaling_widths": [8, 16, 32]}, "scaling_widths = .* a list of at least 4 entries"),
    "1.17 uneven": ("1.17", {"scaling_widths": [8, 16, 32, 128]}, "scaling_widths: .* not each as many times"),
    "1.17 falling": ("1.17", {"scaling_widths": [64, 32, 16, 8]}, "scaling_widths: .* not each as many times"),
    "1.17 training": ("1.17", {"batch": 10**9}, "batch = 1000000000 needs"),
    "1.17 windows": ("1.17", {"windows": 10**9}, "windows = 1000000000"),
    "1.17 scores": ("1.17", {"lengths": [10**5]}, "lengths = 100000 needs"),
    "1.17 blocks": ("1.17", {"widths": [10**6]}, "widths = 1000000, context = 16 needs"),
    "1.18 training": ("1.18", {"n_layers": 10**9}, "n_layers = 1000000000"),
    "1.18 windows": ("1.18", {"windows": 10**9}, "windows = 1000000000"),
    "1.19 heads": ("1.19", {"n_heads": 5}, "d_model: 48 is no multiple of 10"),
    "1.19 training": ("1.19", {"n_layers": 10**9}, "n_layers = 1000000000"),
    "1.19 windows": ("1.19", {"windows": 10**9}, "windows = 1000000000"),
    "1.20 budgets": ("1.20", {"budgets": [1e9]}, "budgets = .* a list of at least 2 entries"),
    "1.20 widths": ("1.20", {"budget_widths": [4, 8]}, "budget_widths = .* a list of at least 3 entries"),
    "1.20 ratios": ("1.20", {"ratios": [1, 2]}, "ratios = .* a list of at least 3 entries"),
    "1.20 ratio widths": ("1.20", {"ratio_widths": [8]}, "ratio_widths = .* a list of at least 2 entries"),
    "1.20 steps": ("1.20", {"steps": 7}, "steps = 7: a whole number, at least 8"),
    "1.20 width": ("1.20", {"d_model": 20}, "d_model = 20: a whole number, .*multiple of 8"),
    "1.20 training": ("1.20", {"d_model": 10**6}, "d_model = 1000000, context = 64 needs"),
    "1.20 windows": ("1.20", {"windows": 10**9}, "windows = 1000000000"),
    "1.21 heads": ("1.21", {"n_heads": 3}, "d_model: 32 is no multiple of 6"),
    "1.21 training": ("1.21", {"batch": 10**9}, "batch = 1000000000 needs"),
    "1.21 windows": ("1.21", {"windows": 10**9}, "windows = 1000000000"),
    "1.21 copies": ("1.21", {"longest": 4096}, "longest = 4096, texts = 128, d_model = 32, n_layers = 2 needs"),
    "1.21 depth": ("1.21", {"code_layers": 10**6}, "depths = 24, code_layers = 1000000, d_model = 32 needs"),
    "1.25 training": ("1.25", {"batch": 10**8}, "d_model = 64, context = 32, batch = 100000000 needs"),
    "1.25 windows": ("1.25", {"windows": 10**9}, "windows = 1000000000"),
    "1.25 scores": ("1.25", {"lengths": [10**5]}, "lengths = 100000 needs"),
    "1.25 blocks": ("1.25", {"widths": [10**6]}, "widths = 1000000, context = 32 needs"),
    "1.26 training": ("1.26", {"batch": 10**8}, "d_model = 64, n_layers = 2, context = 64, batch = 100000000 needs"),
    "1.26 kinds": ("1.26", {"kind_batch": 10**8}, "context = 64, kind_batch = 100000000 needs"),
    "1.26 windows": ("1.26", {"windows": 10**9}, "windows = 1000000000"),
    "1.26 paths": ("1.26", {"experts": 10**8}, "experts = 100000000, d_model = 64, n_layers = 2 needs"),
    "1.26 vectors": ("1.26", {"elements": 10**9}, "elements = 1000000000 needs"),
    "1.26 networks": ("1.26", {"plain_width": 10**5}, "plain_width = 100000: a whole number, .*at most 4096"),
    "1.27 heads": ("1.27", {"n_heads": 3}, "d_model: 64 is no multiple of 6, twice n_heads 3"),
    "1.27 training": ("1.27", {"n_layers": 10**9}, "n_layers = 1000000000"),
    "1.27 windows": ("1.27", {"windows": 10**9}, "windows = 1000000000, context = 64 needs"),
    "1.27 scores": ("1.27", {"lengths": [10**5]}, "lengths = 100000 needs"),
    "1.27 copies": ("1.27", {"longest": 4096}, "longest = 4096 needs"),
}  # fmt: skip


@pytest.mark.parametrize("exercise, values, said", RELATIONS.values(), ids=RELATIONS)
def test_what_the_relations_of_a_notebook_refuse(exercise, values, said, eight_gib):
    with pytest.raises(Refused, match=f"^my file: (?:.*, )?{said}") as error:
        validate(notebook_of(exercise), values, "my file")
    assert "\n" not in str(error.value)


def test_most_notebooks_are_checked_without_torch():
    code = """
        import sys
        from lab.engine import parameters
        for notebook in parameters.notebooks():
            seam = any("lab.models" in cell for _, tags, cell in parameters.cells_of(notebook) if "checks" in tags)
            None if seam else parameters.of_profile(notebook, "full")
        sys.exit("torch" in sys.modules)
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True, cwd=project_root())


# Memory

MODERATE = {"d_model": 64, "n_layers": 2, "context": 64, "batch": 8, "lengths": [64], "score_heads": 2, "widths": [64],
            "longest": 64, "texts": 8, "windows": 8}  # fmt: skip


@pytest.mark.parametrize("need", [parameters.training_bytes, parameters.window_bytes, parameters.score_bytes,
                                  parameters.block_bytes, parameters.copy_bytes], ids=lambda f: f.__name__)  # fmt: skip
def test_each_size_that_exhausts_memory_is_named(need, eight_gib):
    sizes = {name: MODERATE[name] for name in need.__code__.co_varnames[: need.__code__.co_argcount]}
    parameters.within_memory(need, **sizes)
    for name, value in sizes.items():
        huge = sizes | {name: [2, 10**9] if isinstance(value, list) else 10**9}
        with pytest.raises(Refused, match=rf"{name} = {10**9}\b.* GiB are available; .*\b{name} that fits is \d+"):
            parameters.within_memory(need, **huge)


def test_where_no_single_size_helps_memory_says_so(eight_gib):
    with pytest.raises(Refused, match="a = 9, b = 9 needs about 90.0 GiB, 8.0 GiB .* no single size makes it fit"):
        parameters.within_memory(lambda a, b: (9 + a * b) * 2**30, a=9, b=9)


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
