"""Registry: duplicate names raise, every variant has a hash, and variants from notebook cells run in workers."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from lab import key, uses
from lab.models.gpt import Position
from lab.models.registry import Seam

CELLS = """
    from pathlib import Path

    from IPython.core.interactiveshell import InteractiveShell

    from lab import trials, workers

    MINE = '''
    import torch
    from lab.models import ModelConfig, Transformer
    from lab.models.gpt import Position

    class Mine(Position, kind="mine"):
        def bias(self, q_len, k_len):
            t = torch.arange(k_len)
            return -0.01 * (t[k_len - q_len :, None] - t)[None] ** 2
    '''
    TRIAL = '''
    def logit(position, seed):
        model = Transformer(ModelConfig(vocab_size=8, block_size=8, d_model=8, position=position), seed=seed)
        return {"logit": model(torch.arange(8)[None])[0, -1, 0].item()}
    '''
    shell = InteractiveShell.instance()
    workers.pools[2] = workers.processes(1)  # otherwise such short trials run in this process
    for text in (MINE, MINE.replace("-0.01", "-0.5"), MINE):
        shell.run_cell(text).raise_error()
        shell.run_cell(TRIAL).raise_error()
        place = trials.Place("n", Path("store"), jobs=2)
        print("logits", *trials.sweep(shell.user_ns["logit"], {"position": "mine", "seed": [0, 1]}, place).logit)
    """


def test_notebook_variant_runs_in_workers_and_redefinition_takes_effect(tmp_path):
    (tmp_path / "cells.py").write_text(textwrap.dedent(CELLS))
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, "cells.py"]
    process = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    logits = [line for line in process.stdout.splitlines() if line.startswith("logits")]
    assert len(logits) == 3 and logits[0] != logits[1] and logits[0] == logits[2], process.stderr


def test_duplicate_registration_raises():
    with pytest.raises(ValueError, match="rotary' is already registered for lab.models.gpt.Rotary; .*Other another"):

        class Other(Position, kind="rotary"):
            pass

    assert Position.kinds["rotary"].__name__ == "Rotary"


def test_every_registered_variant_has_a_hash():
    ours = {name: seam for name, seam in uses.SEAMS.items() if seam.__module__.startswith("lab.")}
    hashes = {f"{name}.{kind}": key.now(f"{name}.{kind}") for name, seam in ours.items() for kind in seam.kinds}
    assert len(hashes) > 80 and all(hashes.values())
    assert set(ours) >= {each.kinds.seam for each in Seam.__subclasses__() if each.__module__.startswith("lab.")}
    assert key.now("Position.gone") is None and key.now("Nothing.gone") is None
