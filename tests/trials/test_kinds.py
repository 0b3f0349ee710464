"""What a trial looks up by name is part of what its numbers follow from, wherever it stands, and travels with it.

Of `lab.models.registry` and `lab.trials.state`.
"""

import importlib
import subprocess
import sys
import textwrap

import pytest

from lab import trace
from lab.models.gpt import Norm, Position
from lab.models.registry import Seam
from lab.trials import sweep as trials
from lab.trials.code import Code, code_of, kind_hash
from lab.trials.state import State

MINE = """
    import torch
    from lab.models import ModelConfig, Transformer
    from lab.models.gpt import Position

    class Mine(Position, kind="mine"):
        def bias(self, q_len, k_len):
            t = torch.arange(k_len)
            return -0.01 * (t[k_len - q_len :, None] - t)[None] ** 2
    """
TRIAL = """
    def logit(position, seed):
        from lab.models import ModelConfig, Transformer
        import torch

        model = Transformer(ModelConfig(vocab_size=8, block_size=8, d_model=8, position=position), seed=seed)
        return {"logit": model(torch.arange(8)[None])[0, -1, 0].item()}
    """


@pytest.fixture
def beside(tmp_path, monkeypatch):
    """write(name, text): a module beside the notebook, imported anew."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def write(name, *texts):
        (tmp_path / f"{name}.py").write_text("\n".join(map(textwrap.dedent, texts)))
        sys.modules.pop(name, None)
        importlib.invalidate_caches()
        return importlib.import_module(name)

    yield write
    for name in ("mine", "mine_2"):
        sys.modules.pop(name, None)
    Position.kinds.pop("mine", None)


@pytest.mark.parametrize("jobs", [1, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize("apart", [True, False], ids=["beside the notebook", "in the trial's own file"])
def test_an_edited_kind_of_ones_own_is_run_again(beside, tmp_path, apart, jobs):
    def module():
        mine = beside("mine", *texts) if not apart else beside("mine", *texts[1:])
        return beside("mine_2", texts[0]).logit if apart else mine.logit

    texts = [TRIAL, MINE]
    grid, sources = {"position": ["mine", "rotary"], "seed": [0, 1]}, trials.Sources("n", store=tmp_path / "store")
    before, used = trials.sweep(module(), grid, sources=sources, jobs=jobs), []
    texts[1] = MINE.replace("-0.01", "-0.5")
    after = trials.sweep(module(), grid, sources=sources, jobs=jobs, used=used)
    changed = (before.logit != after.logit).tolist()
    assert changed == [True, True, False, False], "each trial that looked it up, and no other"
    assert [each.origin for each in used] == ["run", "run", "store", "store"]


@pytest.mark.slow
@pytest.mark.parametrize("where", ["from mine_2 import half", "    from mine_2 import half"], ids=["above", "inside"])
def test_workers_do_not_keep_a_helper_that_was_edited(beside, tmp_path, where):
    """What a trial's module imports, at its top or inside a function, is new in processes that are there already."""
    trial = f"{where if where[0] == 'f' else ''}\ndef halved(seed):\n{where if where[0] == ' ' else ''}\n"
    trial += "    return {'half': half(seed)}\n"
    found, grid = [], {"seed": [2, 4, 6]}
    for divisor in (2, 4, 2):
        beside("mine_2", f"def half(x):\n    return x / {divisor}\n")
        sources = trials.Sources("n", store=tmp_path / f"store {len(found)}")
        found.append(trials.sweep(beside("mine", trial).halved, grid, sources=sources, jobs=2).half.tolist())
    assert found == [[1, 2, 3], [0.5, 1, 1.5], [1, 2, 3]]


@pytest.mark.slow
def test_readmes_own_kind_runs_in_workers_from_a_notebook_cell(tmp_path):
    """Cells that define a kind, a trial that names it, then the kind changed in its cell: nothing old is seen."""
    cells = f"""
        from pathlib import Path
        from IPython.core.interactiveshell import InteractiveShell
        from lab.trials import sweep as trials
        if __name__ == "__main__":
            shell = InteractiveShell.instance()
            mine = {textwrap.dedent(MINE)!r}
            for text in (mine, mine.replace("-0.01", "-0.5"), mine):
                shell.run_cell(text).raise_error()
                shell.run_cell({textwrap.dedent(TRIAL)!r}).raise_error()
                table = trials.sweep(shell.user_ns["logit"], {{"position": "mine", "seed": [0, 1]}}, jobs=2,
                                     sources=trials.Sources("n", store=Path({str(tmp_path)!r})))
                print("logits", *table.logit)
            shell.run_cell("class Rotary(Position, kind='rotary'): pass")
        """
    (tmp_path / "cells.py").write_text(textwrap.dedent(cells))
    done = subprocess.run([sys.executable, tmp_path / "cells.py"], capture_output=True, text=True, timeout=300)
    first, second, third = (line for line in done.stdout.splitlines() if line.startswith("logits"))
    assert first != second and first == third, done.stderr
    assert "position 'rotary' is already lab.models.gpt.Rotary" in done.stdout


def test_two_definitions_of_one_kind_are_an_error():
    with pytest.raises(ValueError, match="rotary' is already lab.models.gpt.Rotary, so .*Other needs another"):

        class Other(Position, kind="rotary"):
            pass

    assert Position.kinds["rotary"].__name__ == "Rotary"


def test_a_kind_counts_with_its_module_and_without_the_other_kinds_there():
    rotary, alibi = (code_of(dict.get(Position.kinds, kind)).parts for kind in ("rotary", "alibi"))
    assert {"lab.models.gpt.Rotary", "lab.models.gpt"} <= rotary.keys()
    assert {"lab.models.positions.Alibi", "lab.models.positions"} <= alibi.keys()
    assert "lab.models.positions.Alibi" not in rotary and "lab.models.gpt.Rotary" not in alibi


def test_a_row_knows_what_it_looked_up_and_is_stale_when_that_changes(monkeypatch):
    with trace.touching() as touched:
        Position.resolve("alibi")
        Norm.kinds["rmsnorm"]
    assert touched.kinds == {"Position.alibi", "Norm.rmsnorm"}
    hashes = {name: kind_hash(name) for name in touched.kinds}
    code = Code()
    state = State(code, kind_hash, lambda name: None)
    assert state.agrees({"code": code.digest, "kinds": hashes, "data": {}})
    for name in hashes:
        assert not state.agrees({"code": code.digest, "kinds": hashes | {name: "other"}, "data": {}})
    assert kind_hash("Position.gone") is None and kind_hash("Nothing.gone") is None


def test_every_registered_kind_has_a_hash():
    hashes = {f"{name}.{kind}": kind_hash(f"{name}.{kind}") for name, seam in trace.SEAMS.items()
              for kind in seam.kinds if seam.__module__.startswith("lab.")}  # fmt: skip
    assert len(hashes) > 90 and all(hashes.values())
    assert {name for name in trace.SEAMS if trace.SEAMS[name].__module__.startswith("lab.")} >= {
        each.kinds.seam for each in Seam.__subclasses__() if each.__module__.startswith("lab.")
    }
