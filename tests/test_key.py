"""Cache keys: after an edit, a new kernel does not reuse old rows, except for the documented limitations.

Each case runs its cells before and after an edit, in two kernels that share a store.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from lab import key

TRIAL = "def trial(seed):\n    return {'v': float(%s)}\n"
DOUBLE = "import functools\ndef f(k): return k\n"
OBJECT = "class P:\n    def __init__(s, k): s.k = k\n    def __call__(s): return s.k\n"
FACTORY = "def make(k):\n    def inner(): return k\n    return inner\n"
WRAPS = "import functools\ndef by(f):\n    @functools.wraps(f)\n    def w(*a): return %d * f(*a)\n    return w\n"
BARE = "def by(f):\n    def w(*a): return f(*a)\n    return w\n"
BASE = "from lab.models.gpt import Position\nclass A(Position, kind='a'):\n    slope = %d\n"
CHOSEN = [
    "class B(A, kind='b'):\n    pass\n",
    "from lab.models.gpt import Position\n"
    "def trial(seed, kind='b'):\n    return {'v': float(Position.kinds[kind].slope)}\n",
]
INNER = "from helper import h\n"
METHOD = "class C:\n    def f(self): return %d\n"

EDITS = {  # name: (cells before, cells after)
    "class attribute": (["class C:\n    a = 1\n", TRIAL % "C.a"], ["class C:\n    a = 2\n", TRIAL % "C.a"]),
    "method": ([METHOD % 1, TRIAL % "C().f()"], [METHOD % 2, TRIAL % "C().f()"]),
    "default of a helper": (["def h(x=1): return x\n", TRIAL % "h()"], ["def h(x=2): return x\n", TRIAL % "h()"]),
    "default that was a global": (
        ["N = 1\n", "def h(x=N): return x\n", "N = 2\n", TRIAL % "h()"],
        ["N = 2\n", "def h(x=N): return x\n", TRIAL % "h()"],
    ),
    "lambda": (["h = lambda: 1\n", TRIAL % "h()"], ["h = lambda: 2\n", TRIAL % "h()"]),
    "first of two lambdas": (
        ["g = lambda: 0\n", "h = lambda: 1\n", TRIAL % "g()+h()"],
        ["g = lambda: 1\n", "h = lambda: 1\n", TRIAL % "g()+h()"],
    ),
    "closure of a factory": ([FACTORY, "h = make(1)\n", TRIAL % "h()"], [FACTORY, "h = make(2)\n", TRIAL % "h()"]),
    "decorator with wraps": (
        [WRAPS % 1, "@by\ndef h(): return 1\n", TRIAL % "h()"],
        [WRAPS % 2, "@by\ndef h(): return 1\n", TRIAL % "h()"],
    ),
    "function in a decorator without wraps": (
        [BARE, "@by\ndef h(): return 1\n", TRIAL % "h()"],
        [BARE, "@by\ndef h(): return 2\n", TRIAL % "h()"],
    ),
    "decorated trial": (
        ["import torch\n", "@torch.no_grad()\n" + TRIAL % "1"],
        ["import torch\n", "@torch.no_grad()\n" + TRIAL % "2"],
    ),
    "helper in torch.no_grad": (
        ["import torch\n", "@torch.no_grad()\ndef h(): return 1\n", TRIAL % "h()"],
        ["import torch\n", "@torch.no_grad()\ndef h(): return 2\n", TRIAL % "h()"],
    ),
    "second of two definitions": (
        ["def h(): return 1\n", "def h(): return 5\n", TRIAL % "h()"],
        ["def h(): return 1\n", "def h(): return 2\n", TRIAL % "h()"],
    ),
    "class whose name is a prefix of another": (
        ["class Foo:\n    a = 1\n", "class Foo2:\n    b = 0\n", TRIAL % "Foo.a"],
        ["class Foo:\n    a = 2\n", "class Foo2:\n    b = 0\n", TRIAL % "Foo.a"],
    ),
    "class inside an if": (
        ["if True:\n    class C:\n        a = 1\n", TRIAL % "C.a"],
        ["if True:\n    class C:\n        a = 2\n", TRIAL % "C.a"],
    ),
    "base of a kind, in another cell": ([BASE % 1, *CHOSEN], [BASE % 2, *CHOSEN]),
    "constant": (["K = 1\n", TRIAL % "K"], ["K = 2\n", TRIAL % "K"]),
    "user module": (
        [["helper.py", "def h(): return 1\n"], INNER, TRIAL % "h()"],
        [["helper.py", "def h(): return 2\n"], INNER, TRIAL % "h()"],
    ),
    "module imported by a user module": (
        [["helper.py", "from inner import h\n"], ["inner.py", "def h(): return 1\n"], INNER, TRIAL % "h()"],
        [["helper.py", "from inner import h\n"], ["inner.py", "def h(): return 2\n"], INNER, TRIAL % "h()"],
    ),
    "module imported inside the trial": (
        [["helper.py", "x = 1\n"], "def trial(seed):\n    import helper\n    return {'v': float(helper.x)}\n"],
        [["helper.py", "x = 2\n"], "def trial(seed):\n    import helper\n    return {'v': float(helper.x)}\n"],
    ),
    "path parameter": (
        [["a.txt", "1"], "def trial(seed, path='a.txt'):\n    return {'v': float(open(path).read())}\n"],
        [["a.txt", "2"], "def trial(seed, path='a.txt'):\n    return {'v': float(open(path).read())}\n"],
    ),
}
IMPURE = {  # variables whose changes cannot be detected
    "partial": [DOUBLE, "h = functools.partial(f, 1)\n", TRIAL % "h()"],
    "callable object": [OBJECT, "h = P(1)\n", TRIAL % "h()"],
    "module of torch in a global": ["import torch\nh = torch.nn.Dropout(0.1)\n", TRIAL % "h.p"],
    "dict of functions": ["def f(): return 1\nD = {'a': f}\n", TRIAL % "D['a']()"],
    "lab as a whole": ["import lab\nimport lab.names\n", TRIAL % "len(lab.names.meant('a', 'b'))"],
}
UNDETECTED = {  # documented in lab/key.py
    "attribute set later": (
        ["class C:\n    a = 1\n", "C.a = 1\n", TRIAL % "C.a"],
        ["class C:\n    a = 1\n", "C.a = 2\n", TRIAL % "C.a"],
    ),
    "file read by a module": (
        [
            ["data.txt", "1"],
            ["helper.py", "h = float(open('data.txt').read())\n"],
            "import helper\n",
            TRIAL % "helper.h",
        ],
        [
            ["data.txt", "2"],
            ["helper.py", "h = float(open('data.txt').read())\n"],
            "import helper\n",
            TRIAL % "helper.h",
        ],
    ),
}
BUILT = """
def trial(seed, position="alibi"):
    import time

    from lab.models import ModelConfig, Transformer

    Transformer(ModelConfig(vocab_size=4, block_size=4, d_model=8, n_layers=1, n_heads=2, position=position), seed=seed)
    return {"v": time.time()}
"""
LOOKED_UP = """
def trial(seed, kind="mine"):
    import time

    return {"v": time.time() + Position.kinds[kind].slope}
"""
HALVED = BUILT.replace("time.time()", "half(time.time())")
HELPER = "def half(x): return x / %d\n"
NAMED = "\nclass Mine(Position, kind='mine'):\n    slope = %d\n"
IMPORT = "from lab.models.gpt import Position\n"
GPT, POSITIONS = "lab/models/gpt.py", "lab/models/positions.py"
SCENARIOS = {  # name: (steps, whether the second kernel reuses the row of the first)
    "a number in gpt.py": ([[BUILT], [{"file": GPT, "old": "eps=1e-5", "new": "eps=1e-4"}, BUILT]], False),
    "a docstring in gpt.py": ([[BUILT], [{"file": GPT, "old": "Ba 2016", "new": "Ba, 2016"}, BUILT]], True),
    "a kind looked up by name": (
        [
            [BUILT],
            [{"file": POSITIONS, "old": "class Alibi(Position", "new": "X = 1\n\n\nclass Alibi(Position"}, BUILT],
        ],
        False,
    ),
    "a file added in lab.models": (
        [[BUILT], [{"file": "lab/models/extra.py", "old": "", "new": "X = 1\n"}, BUILT]],
        True,
    ),
    "a variant added in a cell": ([[IMPORT, BUILT], [IMPORT + NAMED % 1, BUILT]], True),
    "a helper in another cell": (
        [[HELPER % 2, HALVED], [HELPER % 3, HALVED]],
        False,
    ),
    "a class in a cell, looked up by name": (
        [[IMPORT + NAMED % 1, LOOKED_UP], [IMPORT + NAMED % 2, LOOKED_UP]],
        False,
    ),
    "nothing": ([[BUILT], [BUILT]], True),
}


def test_comments_docstrings_and_blank_lines_do_not_count():
    bare = 'def f(x):\n    y = "# a"\n    return [\n        y,\n        """\n\n# b""",\n    ]\n'
    full = bare.replace("    y = ", '    """Doc.\n\n    More.\n    """\n\n    # why\n    y = ')
    full = "# top\n\n" + full.replace("        y,\n", "        y,  # first\n\n        # second\n")
    assert key.without_comments(full) == bare
    assert key.without_comments(bare.replace("# b", "# c")) != bare


def in_fresh_kernels(cases):
    """{name: results of its steps}, computed by fresh_kernels.py."""
    command = [sys.executable, Path(__file__).with_name("fresh_kernels.py")]
    done = subprocess.run(command, input=json.dumps(cases), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def edits():
    cases = {name: {"steps": steps, "with_lab": False} for name, steps in (EDITS | UNDETECTED).items()}
    cases |= {name: {"steps": [cells], "with_lab": False} for name, cells in IMPURE.items()}
    return in_fresh_kernels(cases)


@pytest.mark.parametrize("name", EDITS)
def test_edit_invalidates_cached_row(edits, name):
    assert edits[name] == [edits[name][0], 2.0] and edits[name][0] != 2.0


@pytest.mark.parametrize("name", IMPURE)
def test_unhashable_dependency_raises_impure_trial(edits, name):
    (error,) = edits[name]
    assert error.startswith("ImpureTrial") and ("parameter" in error or "from lab" in error), error


@pytest.mark.parametrize("name", UNDETECTED)
def test_edits_documented_as_undetected_reuse_the_cached_row(edits, name):
    assert edits[name] == [1.0, 1.0]


@pytest.fixture(scope="module")
def scenarios():
    cases = {name: {"steps": steps, "with_lab": True} for name, (steps, _) in SCENARIOS.items()}
    return in_fresh_kernels(cases)


@pytest.mark.parametrize("name", SCENARIOS)
def test_edit_of_lab_or_cells_invalidates_only_dependent_rows(scenarios, name):
    first, second = scenarios[name]
    assert isinstance(first, float) and isinstance(second, float), scenarios[name]
    assert (first == second) == SCENARIOS[name][1]


def test_content_hash_changes_with_content_at_equal_modification_time(tmp_path):
    folder = tmp_path / "folder"
    (folder / "inner").mkdir(parents=True)
    file = folder / "inner" / "a.txt"
    file.write_text("one")
    before = [key.content_hash(each) for each in (file, folder)]
    state = file.stat()
    file.write_text("two")
    os.utime(file, ns=(state.st_atime_ns, state.st_mtime_ns))
    after = [key.content_hash(each) for each in (file, folder)]
    assert all(one != other for one, other in zip(before, after, strict=True))
    assert key.content_hash(tmp_path / "none") is None


def test_file_edited_after_start_raises_error(tmp_path, monkeypatch):
    (tmp_path / "edited_later.py").write_text("def trial(seed):\n    return {'v': 1}\n")
    monkeypatch.syspath_prepend(tmp_path)
    import edited_later

    monkeypatch.setattr(key, "STARTED", (tmp_path / "edited_later.py").stat().st_ctime + 1)
    assert "edited_later" in key.code_of(edited_later.trial)
    monkeypatch.setattr(key, "STARTED", 0)
    with pytest.raises(RuntimeError, match=r"\.py was edited after this kernel started: restart"):
        key.code_of(edited_later.trial)


def test_worker_with_different_files_raises_error():
    from lab.models import positions

    code = key.file_hashes(key.code_of(positions.Alibi))
    assert "lab.models.positions" in code and "lab.state" in code
    key.require_same_files(code)
    with pytest.raises(RuntimeError, match="lab.models.positions differs on this worker: install the same commit"):
        key.require_same_files(code | {"lab.models.positions": "0"})
    with pytest.raises(RuntimeError, match="users_own differs on this worker"):
        key.require_same_files(code | {"users_own": "0"})
