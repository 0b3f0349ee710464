"""A sweep keeps what is finished, whatever happens to it, and gives the same table whoever runs the trials.

Of `lab.device`, `lab.trials.points`, `lab.trials.rows`, `lab.trials.run` and `lab.trials.place`: a sweep is
how they are used.
"""

import math
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from helpers import without_times

from lab.device import device
from lab.trials import arithmetic, workers
from lab.trials import sweep as trials
from lab.trials.rows import LABELS
from lab.trials.store import File

PROJECT = Path(trials.__file__).parents[2]


def product(seed, width):
    import torch

    generator = torch.Generator().manual_seed(seed)
    matrix = torch.randn(width, width, generator=generator)
    return {"value": (matrix @ matrix).sum().item(), "third": 1 / 3, "worst": math.inf, "lost": math.nan}


CALLS = []


def counted(seed):
    CALLS.append(seed)
    return {"double": np.float32(seed * 2), "even": np.bool_(seed % 2 == 0)}


def faulty(seed):
    if seed == 1:
        raise ZeroDivisionError("no such luck")
    return {"double": 2 * seed}


def curve(seed, shape):
    return [{"step": step, "loss": shape["slope"] * step + seed} for step in range(3)]


def placed(wanted):
    import torch

    return {"found": str(device()), "at_work": torch.get_num_threads()}


def stored(folder):
    """The finished trials in a store."""
    return File(folder / "n.jsonl").trials


def test_table_is_in_grid_order_with_parameters_first(tmp_path):
    seen = []
    table = trials.sweep(
        curve,
        {"shape": [{"slope": 2.0}, {"slope": 1.0}], "seed": range(2)},
        sources=trials.Sources("n", store=tmp_path),
        progress=lambda *told: seen.append(told),
    )
    assert list(table.columns) == ["shape", "seed", "step", "loss", *LABELS]
    assert [shape["slope"] for shape in table["shape"]] == [2.0] * 6 + [1.0] * 6
    assert list(table["seed"]) == [0, 0, 0, 1, 1, 1] * 2
    assert seen == [(done, 4) for done in range(5)]


def test_resume_returns_the_same_table_without_calling_the_trial(tmp_path):
    CALLS.clear()
    grid = {"seed": [2, 1]}
    first = trials.sweep(counted, grid, sources=trials.Sources("n", store=tmp_path))
    more = trials.sweep(counted, grid | {"seed": [3, 1, 2, 3]}, sources=trials.Sources("n", store=tmp_path))
    assert CALLS == [2, 1, 3]
    assert list(more["double"]) == [6.0, 2.0, 4.0, 6.0] and list(more["even"]) == [False, False, True, False]
    pd.testing.assert_frame_equal(first, more.iloc[[2, 1]].reset_index(drop=True))


def test_floats_come_back_exactly(tmp_path):
    grid = {"seed": 0, "width": [3, 40]}
    first, again = (trials.sweep(product, grid, sources=trials.Sources("n", store=tmp_path)) for _ in range(2))
    assert first["value"].map(float.hex).tolist() == again["value"].map(float.hex).tolist()
    assert again["third"][0] == 1 / 3 and again["worst"][0] == math.inf and math.isnan(again["lost"][0])


@pytest.mark.parametrize("harm", ["cut", "torn", "empty", "other"])
def test_a_damaged_line_is_named_and_its_trial_runs_again(tmp_path, harm):
    grid, sources = {"seed": [5, 6], "width": 20}, trials.Sources("n", store=tmp_path)
    first = trials.sweep(product, grid, sources=sources)
    file = tmp_path / "n.jsonl"
    *head, last = file.read_text().splitlines()
    harmed = {"cut": last[: len(last) // 2], "torn": last.replace(":", ";") + "\n", "empty": "{}\n", "other": "[1]\n"}
    file.write_text("\n".join([*head, harmed[harm]]))
    with pytest.warns(UserWarning, match="n.jsonl, line 4 is damaged"):
        used = []
        again = trials.sweep(product, grid, sources=sources, used=used)
    assert [each.origin for each in used] == ["store", "run"]
    pd.testing.assert_frame_equal(without_times(first), without_times(again))
    with pytest.warns(UserWarning, match="line 4"):
        assert len(stored(tmp_path)) == 2, "what is written after half a line begins a line of its own"


@pytest.mark.parametrize(
    "grid, error, words",
    [
        ({"seed": 1, "widht": 8}, TypeError, "'width' is missing, 'widht' is unknown"),
        ([{"seed": 1, "width": 8}, {"seed": 1}], TypeError, "'width' is missing"),
        ({"seed": [], "width": 8}, ValueError, "no value for 'seed'"),
        ({"seed": object(), "width": 8}, TypeError, "object"),
        ([], ValueError, "empty"),
    ],
)
def test_wrong_grid_is_refused_before_anything_runs(tmp_path, grid, error, words):
    with pytest.raises(error, match=words):
        trials.sweep(product, grid, sources=trials.Sources("n", store=tmp_path / "store"))
    assert not (tmp_path / "store").exists()


def test_failed_trial_is_named_and_the_others_are_kept(tmp_path):
    with pytest.raises(trials.TrialsFailed, match='(?s)1 of 3 .*"seed": 1.*ZeroDivisionError: no such luck.*faulty'):
        trials.sweep(faulty, {"seed": range(3)}, sources=trials.Sources("n", store=tmp_path))
    assert len(stored(tmp_path)) == 2


def test_device_and_threads_hold_where_the_trial_runs(tmp_path):
    import torch

    before = torch.get_num_threads()
    table = trials.sweep(
        placed, {"wanted": "cpu"}, sources=trials.Sources("n", store=tmp_path), device="cpu", threads=before + 1
    )
    assert (table["found"][0], table["at_work"][0], table["threads"][0]) == ("cpu", before + 1, before + 1)
    assert torch.get_num_threads() == before
    if not torch.cuda.is_available():
        with pytest.raises(ValueError, match="no device 'cuda' .* there is .*cpu"):
            trials.sweep(placed, {"wanted": "cuda"}, sources=trials.Sources("n", store=tmp_path), device="cuda")


def test_store_that_cannot_be_a_folder_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match=str(tmp_path / "file")):
        trials.sweep(faulty, {"seed": 0}, sources=trials.Sources("n", store=tmp_path / "file" / "store"))


def script(tmp_path, body):
    path = tmp_path / f"script{len(list(tmp_path.iterdir()))}.py"
    path.write_text(textwrap.dedent(body))
    return [sys.executable, str(path)], os.environ | {"PYTHONPATH": str(PROJECT)}


def test_full_disk_leaves_nothing_half_written(tmp_path):
    command, environment = script(
        tmp_path,
        f"""
        import resource
        from lab.trials import sweep as trials

        def long_row(seed):
            return {{"text": "x" * (100 if seed == 0 else 100_000)}}

        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
        trials.sweep(long_row, {{"seed": [0, 1]}}, sources=trials.Sources("n", store={str(tmp_path / "store")!r}))
        """,
    )
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 1 and str(tmp_path / "store" / "n.jsonl") in done.stderr.splitlines()[-1]
    with pytest.warns(UserWarning, match="is damaged"):
        assert [body["parameters"]["seed"] for body in stored(tmp_path / "store")] == [0]


def drawn(seed):
    import random

    import torch

    return {"value": random.random() + np.random.rand() + torch.rand(1).item()}


def test_random_numbers_without_a_generator_follow_from_the_seed(tmp_path):
    """Nothing of an earlier trial in the same process can be felt, nor in which order they ran."""
    sweeps = [trials.sweep(drawn, {"seed": order}, sources=trials.Sources("n", store=tmp_path / str(i)))
              for i, order in enumerate(([0, 1, 2], [2, 1, 0]))]  # fmt: skip
    assert list(sweeps[0].value) == list(sweeps[1].value)[::-1] and sweeps[0].value.nunique() == 3


def drawn_also(seed, width):
    import torch

    return {"value": torch.rand(1).item()}


def test_no_other_parameter_moves_these_numbers(tmp_path):
    table = trials.sweep(drawn_also, {"seed": [0, 1], "width": [1, 2]}, sources=trials.Sources("n", store=tmp_path))
    assert table.groupby("seed").value.nunique().tolist() == [1, 1] and table.value.nunique() == 2


def rated(rate: float, steps: int):
    return {"product": rate * steps}


def test_numbers_are_what_the_annotations_say(tmp_path):
    sources = trials.Sources("n", store=tmp_path)
    trials.sweep(rated, [{"rate": 1, "steps": 2}, {"rate": 1.0, "steps": 2.0}], sources=sources)
    assert len(stored(tmp_path)) == 1
    trials.sweep(rated, {"rate": 1, "steps": 2.5}, sources=sources)
    assert len(stored(tmp_path)) == 2


def clocked(seed):
    from lab.measure.timing import benchmark

    return benchmark({("x",): lambda: None}, ["name"]).drop(columns="name")


def test_clocks_are_read_in_timing_sweeps_alone_which_are_never_kept(tmp_path):
    sources, used = trials.Sources("n", store=tmp_path), []
    with pytest.raises(trials.TrialsFailed, match="timing=True"):
        trials.sweep(clocked, {"seed": 0}, sources=sources)
    assert len(trials.sweep(clocked, {"seed": 0}, sources=sources, timing=True, used=used)) == 1
    assert not used and not stored(tmp_path)


def test_cluster_that_does_not_answer_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(workers, "CONNECT_SECONDS", 1)
    with pytest.raises(ConnectionError, match="tcp://127.0.0.1:9.*check"):
        trials.sweep(faulty, {"seed": 0}, sources=trials.Sources("n", store=tmp_path), cluster="tcp://127.0.0.1:9")


def test_import_is_light():
    code = "import sys, lab.trials.sweep; print({'torch', 'dask', 'distributed', 'pandas', 'numpy'} & set(sys.modules))"
    shown = subprocess.run([sys.executable, "-c", code], cwd=PROJECT, capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "set()"


def test_a_store_filled_under_another_arithmetic_is_not_used(tmp_path, monkeypatch):
    """Another processor or build of torch rounds otherwise: what it stored is left alone, and there again for it."""
    found = []
    for digest in ("this", "another", "this"):
        monkeypatch.setattr(arithmetic, "digest", lambda *_, digest=digest: digest)
        trials.sweep(
            product, {"seed": [0, 1], "width": 8}, sources=trials.Sources("n", store=tmp_path), used=(used := [])
        )
        found.append({(each.origin, each.body["labels"]["arithmetic"]) for each in used})
    assert found == [{("run", "this")}, {("run", "another")}, {("store", "this")}]
    assert len(stored(tmp_path)) == 4
