"""Every benchmark runs at tiny sizes, counts its operations, and reports a target as met only if it is."""

from importlib import import_module
from pathlib import Path

import pandas as pd
import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from lab.measure.statistics import Interval


@pytest.fixture
def benchmark(monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[1] / "benchmarks")
    return import_module


@pytest.mark.slow
@pytest.mark.parametrize(
    "name, sizes, lines",
    [
        ("training_step", "--widths 32 64 --repeats 2 --pairs 2", 9),
        ("decoding", "--widths 32 --batches 1 2 --new 3 --repeats 2", 2),
        ("attention_probe", "--width 32 --length 128 --repeats 1", 2),
    ],
)
def test_benchmark_writes_table_figure_and_summary_rows(benchmark, tmp_path, name, sizes, lines):
    if name == "training_step":
        pytest.importorskip("x_transformers", reason="of the bench extra")
    (tmp_path / "summary.csv").write_text(
        f"benchmark,case,measured,low,high,n,target,met\nother,,1,1,1,2,>= 1,yes\n{name},old,1,1,1,2,>= 1,yes\n"
    )
    benchmark(name).main([*sizes.split(), "--folder", str(tmp_path)])
    table, summary = (pd.read_csv(tmp_path / f"{file}.csv") for file in (name, "summary"))
    assert not table.drop(columns="tokens_per_second", errors="ignore").isna().any(axis=None)
    assert {file.suffix for file in tmp_path.glob(f"{name}.*")} == {".csv", ".png"}
    assert (summary.benchmark == "other").sum() == 1 and "old" not in set(summary.case)
    written = summary[summary.benchmark == name]
    assert len(written) == lines and set(written.met) <= {"yes", "no", "unclear"}
    assert (written.low <= written.measured).all() and (written.measured <= written.high).all()
    page = (tmp_path / "README.md").read_text("utf-8")
    assert all(f": {case} |" in page for case in summary.case.dropna())


def test_committed_benchmark_page_matches_summary_csv(benchmark):
    summary = benchmark("summary")
    made = summary.page(pd.read_csv(summary.FOLDER / "summary.csv"))
    assert made == (summary.FOLDER / "README.md").read_text("utf-8")


def test_target_is_met_only_if_the_whole_interval_meets_it(benchmark):
    line = benchmark("summary").line
    near, far = Interval(2.0, 1.5, 2.5, 5), Interval(4.0, 3.5, 4.5, 5)
    assert [line("", near, at_least=x)["met"] for x in (1.5, 2, 2.6)] == ["yes", "unclear", "no"]
    assert [line("", near, at_most=x)["met"] for x in (2.5, 2, 1.4)] == ["yes", "unclear", "no"]
    assert line("", far, at_most=1 / 8)["target"] == "<= 0.125"


def test_operations_of_a_step_equal_torch_flop_count_without_masked_pairs(benchmark):
    pytest.importorskip("x_transformers", reason="of the bench extra")
    step, d = benchmark("training_step"), 64
    _, loss = step.ours(d)
    tokens = torch.zeros(step.BATCH, step.CONTEXT, dtype=torch.long)
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        loss(tokens, tokens).backward()
    unseen = step.CONTEXT * (step.CONTEXT - 1) // 2  # pairs that this kernel computes, then masks
    assert counter.get_total_flops() == step.operations(d) + 2 * 3 * step.BATCH * step.N_LAYERS * 2 * d * unseen
