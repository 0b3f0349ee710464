"""Trials of the notebooks on a device that is not the CPU: part of each smoke grid under the stand-in of pretend.py.

Of `lab.engine.device`.
"""

from unittest.mock import MagicMock

import pandas as pd
import pytest
import torch
from pretend import device

import lab
from lab import trace
from lab.engine import parameters
from lab.engine.points import points_of
from lab.engine.running import run_trial

SEEN = ["1.4", "1.6", "1.10", "1.11", "1.12", "1.22", "1.26"]  # those whose trials were looked at there
FAULTS = {  # trials that ask for float64, which MPS has not; CUDA has it
    "1.11": "gradient_profile, output_change",
    "1.12": "by_layer, first_step",
    "1.22": "gradient_profile, output_change",
}


def each_notebook():
    for exercise in SEEN:
        fault = FAULTS.get(exercise)
        marks = pytest.mark.xfail(strict=True, raises=AssertionError, reason=f"float64: {fault}") if fault else ()
        yield pytest.param(parameters.notebook_of(exercise), id=exercise, marks=marks)


class Elsewhere:
    """What a notebook calls its study: sweeps run a few points there, all else is nothing."""

    def __init__(self):
        self.ran, self.failed, self.timed = [], [], []

    def sweep(self, trial, grid, *, timing=False, **_):
        """The first point, and each that has a word, list or mapping that none before it has: their rows."""
        if timing:
            self.timed.append(trial.__name__)
            raise TimeoutError("times are of a machine")
        rows, seen = [], set()
        for point in points_of(trial, grid):
            words = {(name, str(value)) for name, value in point.items() if not isinstance(value, int | float)}
            if rows and words <= seen:
                continue
            seen |= words
            outcome = run_trial(trial, point, device=str(device()), threads=1)
            if "failed" in outcome:
                self.failed.append(f"{trial.__name__} {point}: {outcome['failed']}")
            else:
                self.ran.append(trial.__name__)
                named = {name: [value] * outcome["n"] for name, value in point.items()}
                rows.append(pd.DataFrame(named | outcome["columns"]))
        return pd.concat(rows, ignore_index=True)

    def table(self, stem, frame):
        return frame

    def __getattr__(self, name):
        return MagicMock()


@pytest.fixture
def elsewhere(monkeypatch):
    study, kinds = Elsewhere(), {name: dict(seam.kinds) for name, seam in trace.SEAMS.items()}
    monkeypatch.setattr(lab, "study", lambda *_: study)
    monkeypatch.setattr("lab.engine.device.available", lambda wanted: str(device()))
    before = torch.__future__.get_swap_module_params_on_conversion()
    torch.__future__.set_swap_module_params_on_conversion(True)  # as in pretend.moved
    yield study
    torch.__future__.set_swap_module_params_on_conversion(before)
    for name, registered in kinds.items():
        trace.SEAMS[name].kinds.clear()
        trace.SEAMS[name].kinds.update(registered)


@pytest.mark.slow
@pytest.mark.parametrize("notebook", each_notebook())
def test_trials_of_a_notebook_run_there(notebook, elsewhere):
    scope = {"__name__": "__main__"}
    for kind, tags, source in parameters.cells_of(notebook):
        if kind != "code":
            continue
        source = "\n".join(line for line in source.splitlines() if not line.startswith("%"))
        try:
            exec(compile(source, notebook.stem, "exec"), scope)
        except Exception:  # it wanted the whole table, or a time
            continue
        if "parameters" in tags:
            smoke = parameters.of_profile(notebook, "smoke")
            scope |= smoke | {name: min(3, n) for name, n in smoke.items() if "steps" in name and isinstance(n, int)}
    assert elsewhere.failed == []
    assert elsewhere.ran or elsewhere.timed
