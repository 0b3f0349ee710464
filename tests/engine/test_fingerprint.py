"""A fingerprint follows what a trial runs: it changes when that changes, and with nothing else."""

import importlib
import subprocess
import sys
import textwrap
import types
from pathlib import Path

import pytest

from lab.engine.fingerprint import ImpureTrial, code_fingerprint, trial_code, trial_fingerprint

PROJECT = Path(__file__).parents[2]

FILES = {
    "__init__.py": '''
        """A package with lazy parts."""
        import importlib
        def __getattr__(name):
            if name == "study":
                return importlib.import_module("toy.notebook").study
            raise AttributeError(name)
        ''',
    "training.py": '''
        """Trains."""
        from .models import block
        STEPS = 10
        def fit(width):
            """Fits."""  # and nothing else
            return block.size(width) * STEPS
        ''',
    "models/__init__.py": "from toy.models.register import kinds\n",
    "models/register.py": "kinds = {}\n",
    "models/block.py": """
        def size(width):
            from .. import shapes
            return shapes.square(width)
        """,
    "shapes.py": "def square(width):\n    return width * width\n",
    "figures.py": "import toy.training\n",
    "notebook.py": "from toy import results\ndef study(): return results\n",
    "results.py": "DIGITS = 3\n",
    "exercise.py": """
        import toy.training
        STEPS, calls = 5, []
        def trial(width):
            return {"loss": toy.training.fit(width) * STEPS}
        def remembers(width):
            calls.append(width)
        """,
}


@pytest.fixture
def toy(tmp_path, monkeypatch):
    """The folder of a small package that can be imported and edited."""
    for name, text in FILES.items():
        file = tmp_path / "toy" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(textwrap.dedent(text))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    forget()
    yield tmp_path / "toy"
    forget()


def forget():
    for name in [name for name in sys.modules if name.split(".")[0] in ("toy", "local_module")]:
        del sys.modules[name]
    importlib.invalidate_caches()


def local_trial(folder, source, name="trial"):
    """A function of a freshly imported module outside the package."""
    (folder.parent / "local_module.py").write_text(textwrap.dedent(source))
    forget()
    return getattr(importlib.import_module("local_module"), name)


def edit(file, old, new):
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


TRIAL = """
    import math
    import numpy as np
    from toy import training
    from math import pi
    def helper(width):
        return second(width) + np.exp(pi)
    def second(width):
        return math.sqrt(width)
    def unused(width):
        return 3
    class Kept:
        scale = 2
        def by(self, width): return third(width)
    def third(width): return width
    def trial(width, seed=0):
        "What it does."
        return {"loss": training.fit(width) + helper(width) + Kept().by(width)}
    """


def test_closure_follows_every_kind_of_import(toy):
    expected = ["toy", "toy.models", "toy.models.block", "toy.models.register", "toy.shapes", "toy.training"]
    assert sorted(trial_code(local_trial(toy, TRIAL), root=toy).modules) == expected


@pytest.mark.parametrize(
    "file, old, new, changes",
    [
        ("training.py", "# and nothing else", "# but more", False),
        ("training.py", '"""Fits."""', '"""Fits\n    well."""', False),
        ("training.py", "STEPS = 10", "STEPS  =  ( 10 )", False),
        ("figures.py", "import", "import math, ", False),
        ("results.py", "3", "4", False),
        ("training.py", "STEPS = 10", "STEPS = 11", True),
        ("shapes.py", "width * width", "width ** 2", True),
        ("models/register.py", "{}", "dict()", True),
        ("../local_module.py", '"What it does."', "", False),
        ("../local_module.py", "def trial(", "# a comment\n\ndef trial(", False),
        ("../local_module.py", "return 3", "return 4", False),
        ("../local_module.py", "math.sqrt(width)", "math.sqrt(width + 1)", True),
        ("../local_module.py", "return width\n", "return -width\n", True),
        ("../local_module.py", "scale = 2", "scale = 3", True),
        ("../local_module.py", "seed=0", "seed=1", True),
    ],
)
def test_trial_outside_the_package(toy, file, old, new, changes):
    before = trial_fingerprint(local_trial(toy, TRIAL), root=toy)
    edit(toy / file, old, new)
    after = trial_fingerprint(local_trial(toy, (toy.parent / "local_module.py").read_text()), root=toy)
    assert (before != after) == changes


@pytest.mark.parametrize(
    "file, old, new, changes", [("shapes.py", "*", "+", True), ("figures.py", "import", "import math,", False)]
)
def test_trial_of_the_package(toy, file, old, new, changes):
    before = trial_fingerprint(importlib.import_module("toy.exercise").trial, root=toy)
    edit(toy / file, old, new)
    forget()
    after = trial_fingerprint(importlib.import_module("toy.exercise").trial, root=toy)
    assert (before != after) == changes


def test_module_edited_under_a_running_process_is_refused_until_reloaded(toy):
    exercise = importlib.import_module("toy.exercise")
    before = trial_fingerprint(exercise.trial, root=toy)
    edit(toy / "training.py", "# and nothing else", "")
    assert trial_fingerprint(exercise.trial, root=toy) == before
    edit(toy / "training.py", "STEPS = 10", "STEPS = 11")
    with pytest.raises(RuntimeError, match="training.py was edited"):
        trial_fingerprint(exercise.trial, root=toy)
    importlib.reload(sys.modules["toy.training"])
    assert trial_fingerprint(exercise.trial, root=toy) != before


@pytest.mark.parametrize(
    "source",
    [
        "STEPS = 5\ndef trial(width): return {'x': width * STEPS}",
        "STEPS = 5\ndef trial(width, steps=STEPS): return {'x': width * steps}",
        "STEPS = [5]\ndef trial(width): return [{'x': s} for s in STEPS]",
        "STEPS = 5\ndef helper(): return STEPS\ndef trial(width): return {'x': helper()}",
        "STEPS = 5\nclass Model:\n    size = STEPS\ndef trial(width): return {'x': Model.size}",
        "def make(STEPS):\n    def trial(width): return {'x': STEPS}\n    return trial\ntrial = make(5)",
        "import types\nSTEPS = types.SimpleNamespace(n=5)\ndef trial(width): return {'x': STEPS.n}",
    ],
)
def test_data_from_outside_is_refused_by_name(toy, source):
    with pytest.raises(ImpureTrial, match="'STEPS'"):
        trial_fingerprint(local_trial(toy, source), root=toy)


def test_package_constants_are_code_but_its_variables_are_not(toy):
    exercise = importlib.import_module("toy.exercise")
    trial_fingerprint(exercise.trial, root=toy)
    with pytest.raises(ImpureTrial, match="'calls'"):
        trial_fingerprint(exercise.remembers, root=toy)


def test_decorated_trial_is_followed_to_its_own_source(toy):
    source = "import torch\n@torch.no_grad()\ndef trial(width):\n    return {'x': width}\n"
    assert trial_fingerprint(local_trial(toy, source), root=toy) != trial_fingerprint(
        local_trial(toy, source.replace("no_grad", "inference_mode")), root=toy
    )


def test_notebook_source_counts_with_what_it_uses(toy):
    notebook = "%matplotlib inline\nimport toy\n# a comment\nstudy = toy.study()\ntoy.training.fit(3)\n"
    before = code_fingerprint(notebook, root=toy)
    assert code_fingerprint(notebook.replace("# a comment", ""), root=toy) == before
    assert code_fingerprint(notebook.replace("fit(3)", "fit(4)"), root=toy) != before
    for file, old, new, changes in [
        ("figures.py", "import", "import math,", False),
        ("results.py", "3", "4", True),  # through the lazy export `study`
        ("shapes.py", "*", "+", True),
    ]:
        now = code_fingerprint(notebook, root=toy)
        edit(toy / file, old, new)
        assert (code_fingerprint(notebook, root=toy) != now) == changes


def test_list_of_modules(toy):
    before = code_fingerprint(["toy.training"], root=toy)
    edit(toy / "figures.py", "import", "import math,")
    assert code_fingerprint(["toy.training"], root=toy) == before
    edit(toy / "shapes.py", "*", "+")
    assert code_fingerprint(["toy.training"], root=toy) != before


def test_notebook_cells_are_read_in_ipython(tmp_path):
    cells = """
        from IPython.core.interactiveshell import InteractiveShell
        from lab.engine.fingerprint import trial_fingerprint
        shell = InteractiveShell.instance()
        shell.run_cell("from dataclasses import dataclass\\n@dataclass\\nclass Config:\\n    width: int = 3")
        shell.run_cell("%time\\ndef helper(x):\\n    return x + Config().width")
        shell.run_cell("def trial(x):\\n    return {'x': helper(x)}")
        first = trial_fingerprint(shell.user_ns["trial"])
        shell.run_cell("def helper(x):  # the same\\n    return x + Config().width")
        assert trial_fingerprint(shell.user_ns["trial"]) == first
        shell.run_cell("@dataclass\\nclass Config:\\n    width: int = 4")
        second = trial_fingerprint(shell.user_ns["trial"])
        shell.run_cell("def helper(x):\\n    return x - Config().width")
        assert len({first, second, trial_fingerprint(shell.user_ns["trial"])}) == 3
        print("read")
        """
    command = [sys.executable, "-c", textwrap.dedent(cells)]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, env={"IPYTHONDIR": str(tmp_path)})
    assert done.stdout.split()[-1:] == ["read"], done.stderr


def test_source_that_cannot_be_read_is_refused():
    scope = {"__name__": "typed_in"}
    sys.modules["typed_in"] = types.ModuleType("typed_in")
    exec("def trial(x): return {'x': x}", scope)
    try:
        with pytest.raises(ImpureTrial, match="source of trial cannot be read"):
            trial_fingerprint(scope["trial"])
    finally:
        del sys.modules["typed_in"]
