"""1.1 on made-up clocks and processes: its verdicts and sentences say what these do."""

import json

import pandas as pd
import pytest

from lab import language, study
from lab.engine import parameters, runs
from lab.engine.points import points_of

NOTEBOOK = parameters.notebook_of("1.1")
PAIRS, MAPS = (lambda n, d, h: 2 * n**2 * d), (lambda n, d, h: 4 * n * d**2)
TRUE = {"pairs": PAIRS, "maps": MAPS, "softmax": lambda n, d, h: 100 * h * n**2, "stored": lambda n: 2 * n**2}
ATTENTION = ("reused", "again", "fresh", "fused")


class Made:
    """Sweeps whose seconds and bytes follow from formulas; the operations are counted as ever."""

    def __init__(self, **formulas):
        self.of = TRUE | formulas

    def __call__(self, trial, grid, **_):
        rows = [point | row for point in points_of(trial, grid) for row in getattr(self, trial.__name__)(trial, point)]
        table = pd.DataFrame(rows).assign(device="cpu", threads=1, torch="", seconds=1.0)
        table.attrs["core_seconds"] = 0.0
        return table

    def count(self, trial, point):
        return trial(**point)

    def clocked(self, trial, point):
        spent = {(kind, *size): self.of["pairs"](*size) for kind in ATTENTION for size in map(tuple, point["sizes"])}
        spent |= {("projections", *size): self.of["maps"](*size) for size in map(tuple, point["sizes"])}
        spent["best", 1024, 1024, 1] = 1024**3
        keys = ("kind", "n", "d", "heads")
        return [dict(zip(keys, at, strict=True)) | timed for at, flops in spent.items() for timed in rounds(flops)]

    def timed_parts(self, trial, point):
        n, d, h = (point[name] for name in "ndh")
        spent = {"scores": n**2 * d, "mix": n**2 * d, "fused": 2 * n**2 * d, "projections": 4 * n * d**2}
        spent |= {"feedforward": 8 * n * d**2, "softmax": self.of["softmax"](n, d, h)}
        return [{"operation": name} | timed for name, flops in spent.items() for timed in rounds(flops)]

    def peak(self, trial, point):
        stored = self.of["stored"] if point["kind"] == "explicit" else lambda n: 0
        return [{"n": n, "bytes": 4 * point["heads"] * (stored(n) + 256 * n)} for n in point["lengths"]]


def rounds(flops):
    return [{"repeat": r, "seconds_a_call": 1e-9 * flops * (1 + 0.01 * r)} for r in range(3)]


def told(made, tmp_path, monkeypatch):
    """{claim: verdict} and all that is said when the notebook runs on a made-up machine."""
    said = []
    monkeypatch.setattr("lab.study.trials.sweep", made)
    monkeypatch.setattr("lab.study.display", lambda shown, **_: said.append(getattr(shown, "data", "")))
    for name in ("live", "play"):
        monkeypatch.setattr(study.Study, name, lambda *_, **__: None)
    monkeypatch.setattr(study.Study, "figure", lambda self, stem, *_, **__: (
        self.folder / "figures" / f"{stem}.png").write_bytes(b"") or runs.write_table(
        self.folder / "tables" / f"{stem}.csv", pd.DataFrame({"x": [0]})))  # fmt: skip
    names = {"__name__": "__main__"}
    cells = json.loads(NOTEBOOK.read_text("utf-8"))["cells"]
    for cell in ["".join(c["source"]) for c in cells if c["cell_type"] == "code"][:-1]:
        exec(compile(cell.replace('results: str = ""', f"results: str = {str(tmp_path)!r}"), "1.1", "exec"), names)
    language.use()
    found = {name.removeprefix("attention-"): each for name, each in names["study"]._verdicts.items()}
    return {name: each.verdict for name, each in found.items()}, "\n".join(map(str, said))


def test_where_time_is_operations_the_crossings_are_those_of_the_formulas(tmp_path, monkeypatch):
    verdicts, said = told(Made(softmax=lambda n, d, h: 0.3 * h * n**2), tmp_path, monkeypatch)
    assert verdicts == {
        "flops-n2d": "proved",
        "time-exponent": "supported",
        "memory-quadratic": "supported",
        "softmax-lower-order": "supported",
        "n-dominates": "proved",
        "wide-regime": "disproved",
    }
    assert "n / d = 2.0 to 2.0 if explicit" in said and "at 6.0 to 6.0 and 6.0 to 6.0" in said
    assert "A free softmax would be felt" not in said


@pytest.mark.parametrize("formulas, claim, verdict", [
    ({"pairs": lambda n, d, h: n * d}, "time-exponent", "refuted"),
    ({"pairs": lambda n, d, h: n**2 * d**1.5}, "time-exponent", "refuted"),
    ({"maps": PAIRS}, "time-exponent", "out of reach"),
    ({}, "softmax-lower-order", "refuted"),
    ({"stored": lambda n: 100 * n}, "memory-quadratic", "refuted"),
], ids=["linear in n", "steeper in d", "squares everywhere", "slow softmax", "nothing stored"])  # fmt: skip
def test_another_machine_is_told_as_it_is(formulas, claim, verdict, tmp_path, monkeypatch):
    verdicts, said = told(Made(**formulas), tmp_path, monkeypatch)
    assert verdicts[claim] == verdict
    assert ("A free softmax would be felt" in said) is (verdicts["softmax-lower-order"] == "refuted")
