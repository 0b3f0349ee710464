"""The code of a trial: it changes when what the trial runs changes, or anything beside that in a module of it.

Of `lab.trials.code` and `lab.trials.syntax`.
"""

import importlib
import linecache
import shutil
import subprocess
import sys
import textwrap
import types
from pathlib import Path

import pytest

from lab.trials.code import OUTSIDE, RUN, ImpureTrial, code_of

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
        STEPS = 5
        def trial(width):
            return {"loss": toy.training.fit(width) * STEPS}
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


def test_the_trial_leads_to_modules_through_every_kind_of_import(toy):
    found = code_of(local_trial(toy, TRIAL))
    modules = ["local_module", "toy", "toy.models", "toy.models.block", "toy.models.register", "toy.shapes"]
    assert sorted(found.parts) == sorted([RUN, *modules, "toy.training"])


@pytest.mark.parametrize(
    "file, old, new, changes",
    [
        ("training.py", "# and nothing else", "# but more", False),
        ("training.py", '"""Fits."""', '"""Fits\n    well."""', False),
        ("training.py", "STEPS = 10", "STEPS  =  ( 10 )", False),
        ("figures.py", "import", "import math, ", False),
        ("results.py", "3", "4", False),
        ("models/register.py", "{}", "dict()", True),
        ("training.py", "STEPS = 10", "STEPS = 11", True),
        ("training.py", "STEPS = 10", "STEPS = 10\nprint('runs whenever the module does')", True),
        ("shapes.py", "width * width", "width ** 2", True),
        ("../local_module.py", '"What it does."', "", False),
        ("../local_module.py", "def trial(", "# a comment\n\ndef trial(", False),
        ("../local_module.py", "math.sqrt(width)", "math.sqrt(width + 1)", True),
        ("../local_module.py", "seed=0", "seed=1", True),
    ],
)
def test_an_edit_counts_where_the_trial_imports_it(toy, file, old, new, changes):
    before = code_of(local_trial(toy, TRIAL)).digest
    edit(toy / file, old, new)
    after = code_of(local_trial(toy, (toy.parent / "local_module.py").read_text())).digest
    assert (before != after) == changes


def test_a_module_that_is_renamed_changes_nothing(toy):
    before = code_of(local_trial(toy, TRIAL)).digest
    (toy / "training.py").rename(toy / "schooling.py")
    edit(toy.parent / "local_module.py", "from toy import training", "from toy import schooling as training")
    edit(toy.parent / "local_module.py", "training.fit", "training.fit")
    changed = code_of(local_trial(toy, (toy.parent / "local_module.py").read_text()))
    assert "toy.schooling" in changed.parts and changed.parts["toy.schooling"] in changed.parts.values()
    assert changed.digest != before, "the import says another name"


KINDS = """
    class Seam:
        kinds = {}
        def __init_subclass__(cls, kind=None):
            cls.kinds[kind] = cls
    class Position(Seam): pass
    class Near(Position, kind="near"): pass
    class Nearer(Near, kind="nearer"): pass
    class Far(Position, kind="far"): pass
    def shift(): return 1
    """
LOOKS_UP = "from toy.places import {}\ndef trial(kind):\n    return {{'x': {}.kinds[kind]}}\n"


def test_a_registered_kind_counts_by_its_python_name_and_by_who_inherits_from_it(toy):
    def parts(source):
        return {name for name in code_of(local_trial(toy, source)).parts if name.startswith("toy.places")}

    (toy / "places.py").write_text(textwrap.dedent(KINDS))
    assert parts(LOOKS_UP.format("Position", "Position")) == {"toy.places"}
    assert parts(LOOKS_UP.format("Far", "Far")) == {"toy.places", "toy.places.Far"}
    wanted = {"toy.places", "toy.places.Near", "toy.places.Nearer"}
    assert parts(LOOKS_UP.format("Nearer", "Nearer")) == wanted
    assert parts("from toy import places\ndef trial(kind):\n    return {'x': places.Nearer.kinds}\n") == wanted
    (toy / "handed.py").write_text("from toy.places import Nearer\n")
    assert parts("from toy.handed import Nearer\ndef trial(kind):\n    return {'x': Nearer.kinds}\n") == wanted


def test_a_new_kind_changes_nothing(toy):
    (toy / "places.py").write_text(textwrap.dedent(KINDS))
    source = LOOKS_UP.format("Position", "Position")
    before = code_of(local_trial(toy, source)).digest
    edit(toy / "places.py", "class Far(", "class New(Position, kind='new'): pass\nclass Far(")
    assert code_of(local_trial(toy, source)).digest == before
    edit(toy / "places.py", "return 1", "return 2")
    assert code_of(local_trial(toy, source)).digest != before


def test_how_a_trial_runs_counts_and_how_it_is_judged_or_drawn_does_not(typed_in):
    source = """
        def trial(seed):
            from lab import charts, study
            from lab.claims import judge
            from lab.measure import statistics

            return {"x": (charts, study, judge, statistics)}
        """
    parts = set(code_of(typed_in(textwrap.dedent(source))).parts)
    assert {RUN, "lab.measure.statistics"} <= parts
    assert not [name for name in parts - {RUN} if name.startswith(OUTSIDE)]


def test_module_edited_under_a_running_process_is_refused_until_reloaded(toy):
    exercise = importlib.import_module("toy.exercise")
    before = code_of(exercise.trial).digest
    edit(toy / "training.py", "# and nothing else", "")
    assert code_of(exercise.trial).digest == before
    edit(toy / "training.py", "STEPS = 10", "STEPS = 11")
    with pytest.raises(RuntimeError, match="training.py was edited"):
        code_of(exercise.trial)
    importlib.reload(sys.modules["toy.training"])
    assert code_of(exercise.trial).digest != before


@pytest.fixture
def typed_in():
    """typed_in(source): the function `trial` of a module without a file, as a notebook's cells are."""
    module = sys.modules["typed_in"] = types.ModuleType("typed_in")

    def define(source):
        linecache.cache["<cell>"] = (len(source), None, source.splitlines(True), "<cell>")
        exec(compile(source, "<cell>", "exec"), vars(module))
        return module.trial

    yield define
    del sys.modules["typed_in"]


@pytest.mark.parametrize(
    "source",
    [
        "STEPS = 5\ndef trial(width): return {'x': width * STEPS}",
        "STEPS = 5\ndef trial(width, steps=STEPS): return {'x': width * steps}",
        "STEPS = [5]\ndef trial(width): return [{'x': s} for s in STEPS]",
        "STEPS = 5\ndef helper(): return STEPS\ndef trial(width): return {'x': helper()}",
        "STEPS = 5\nclass Model:\n    size = STEPS\n    def two(self): return 2\n"
        "def trial(width): return {'x': Model.size}",
        "def make(STEPS):\n    def trial(width): return {'x': STEPS}\n    return trial\ntrial = make(5)",
        "import types\nSTEPS = types.SimpleNamespace(n=5)\ndef trial(width): return {'x': STEPS.n}",
    ],
)
def test_data_of_a_notebook_is_refused_by_name(toy, typed_in, source):
    with pytest.raises(ImpureTrial, match="'STEPS'"):
        code_of(typed_in(source))


def test_what_a_closure_holds_is_refused_in_a_file_too(toy):
    source = "def make(STEPS):\n    def trial(width): return {'x': STEPS}\n    return trial\ntrial = make(5)"
    with pytest.raises(ImpureTrial, match="'STEPS'"):
        code_of(local_trial(toy, source))


def test_a_constant_that_a_module_binds_counts_as_that_module(toy, typed_in):
    (toy / "shared.py").write_text("class Size:\n    pass\nSIZE = Size()\n")
    source = "from toy.shared import SIZE\ndef trial(width): return {'x': SIZE}"
    assert "toy.shared" in code_of(typed_in(source)).parts


def test_decorated_trial_is_followed_to_its_own_source(toy):
    source = "import torch\n@torch.no_grad()\ndef trial(width):\n    return {'x': width}\n"
    other = source.replace("no_grad", "inference_mode")
    assert code_of(local_trial(toy, source)).digest != code_of(local_trial(toy, other)).digest


def test_what_nobody_can_follow_is_refused(toy):
    for call in ("importlib.import_module(name)", "__import__(name)", "eval(name)", "exec(name)"):
        source = f"import importlib\ndef trial(name):\n    {call}\n    return {{'x': 1}}\n"
        with pytest.raises(ImpureTrial, match="with a computed argument"):
            code_of(local_trial(toy, source))
    source = (
        "import importlib\nimport re\ndef trial(model):\n    model.eval()\n    importlib.import_module('toy.shapes')\n"
    )
    code_of(local_trial(toy, source))


def runs(version):
    """The command of a version of Python that runs here, from pyenv or the system."""
    found = [shutil.which(f"python{version}"), *sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))]
    return next(
        (str(p) for p in found if p and not subprocess.run([p, "-c", ""], capture_output=True).returncode), None
    )


VERSIONS = [command for version in ("3.11", "3.12", "3.13") if (command := runs(version))]


@pytest.mark.skipif(len(VERSIONS) < 2, reason="one version of Python here")
def test_one_hash_on_all_versions_of_python():
    """All of the package and of the notebooks: the same trees as text, where those of ast.dump differ."""
    code = """
        import ast, json, pathlib
        scope = {"__name__": "source"}
        exec(compile(pathlib.Path("lab/trials/syntax.py").read_text(), "source.py", "exec"), scope)
        texts = [path.read_text() for path in sorted(pathlib.Path("lab").rglob("*.py"))]
        for path in sorted(pathlib.Path("notebooks").glob("*.ipynb")):
            texts += ["".join(c["source"]) for c in json.loads(path.read_text())["cells"] if c["cell_type"] == "code"]
        print(len(texts), [scope["digest"](scope["normal"](ast.parse(text))) for text in texts])
        """
    outputs = {"cwd": PROJECT, "capture_output": True, "text": True, "check": True}
    found = {subprocess.run([python, "-c", textwrap.dedent(code)], **outputs).stdout for python in VERSIONS}
    assert len(found) == 1 and int(found.pop().split()[0]) > 500


def test_notebook_cells_are_read_in_ipython(tmp_path):
    cells = """
        from IPython.core.interactiveshell import InteractiveShell
        from lab.trials.code import code_of
        shell = InteractiveShell.instance()
        shell.run_cell("from dataclasses import dataclass\\n@dataclass\\nclass Config:\\n    width: int = 3")
        shell.run_cell("%time\\ndef helper(x):\\n    return x + Config().width")
        shell.run_cell("def trial(x):\\n    return {'x': helper(x)}")
        first = code_of(shell.user_ns["trial"]).digest
        shell.run_cell("def helper(x):  # the same\\n    return x + Config().width")
        assert code_of(shell.user_ns["trial"]).digest == first
        shell.run_cell("@dataclass\\nclass Config:\\n    width: int = 4")
        second = code_of(shell.user_ns["trial"]).digest
        shell.run_cell("def helper(x):\\n    return x - Config().width")
        assert len({first, second, code_of(shell.user_ns["trial"]).digest}) == 3
        print("read")
        """
    command = [sys.executable, "-c", textwrap.dedent(cells)]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, env={"IPYTHONDIR": str(tmp_path)})
    assert done.stdout.split()[-1:] == ["read"], done.stderr


def test_of_cells_that_ran_again_the_last_one_counts(typed_in):
    """A class without methods of its own does not say which cell it is from."""
    text = "from dataclasses import dataclass\n@dataclass\nclass Config:\n    width: int = {}\n"
    trial = "def trial(x):\n    return {'x': Config().width}\n"
    scope, found = vars(sys.modules["typed_in"]), []
    scope["In"] = []
    for width in (3, 4, 3):
        name, source = f"<cell {width}>", text.format(width)
        linecache.cache.setdefault(name, (len(source), None, source.splitlines(True), name))
        scope["In"] += [source, "class Config(:"]  # and one that is no Python
        exec(compile(source, name, "exec"), scope)
        found.append(code_of(typed_in(trial)).digest)
    assert found[0] == found[2] != found[1]


def test_source_that_cannot_be_read_is_refused():
    scope = {"__name__": "typed_in"}
    sys.modules["typed_in"] = types.ModuleType("typed_in")
    exec("def trial(x): return {'x': x}", scope)
    try:
        with pytest.raises(ImpureTrial, match="source of trial cannot be read"):
            code_of(scope["trial"])
    finally:
        del sys.modules["typed_in"]
