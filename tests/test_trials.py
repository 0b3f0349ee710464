"""Sweeps: caching, invalidation, timing and the record. Also tests lab.state."""

import json
import math
import os
import random

import numpy as np
import pandas as pd
import pytest
import torch

from lab import trials, uses, workers
from lab.trials import Place, TrialsFailed, points_of, read, sweep

RUNS = []  # seeds of the trials that ran in this process


def squared(seed, power: int = 2, scale: float = 1):
    mark(seed)
    return [{"step": step, "value": scale * seed**power + step, "word": "None"} for step in range(2)]


def mark(seed):
    RUNS.append(seed)


@pytest.fixture
def place(tmp_path):
    RUNS.clear()
    return Place("notebook", tmp_path / "store", tmp_path / "record")


def the_file(folder, trial):
    (path,) = (folder / "notebook").glob(f"{trial.__name__}-*.jsonl")
    return path


def test_table_is_in_grid_order(place):
    table = sweep(squared, {"seed": [2, 1], "power": [1, 2]}, place)
    assert list(table.columns) == ["seed", "power", "scale", "step", "value", "word", "seconds"]
    assert table.seed.tolist() == [2, 2, 2, 2, 1, 1, 1, 1] and table.power.tolist() == [1, 1, 2, 2] * 2
    assert table.value.tolist() == [2, 3, 4, 5, 1, 2, 1, 2]
    assert table.dtypes[["seed", "value"]].tolist() == [np.dtype("int64"), np.dtype("float64")]


def test_cached_points_do_not_run_and_equal_numbers_are_one_point(place):
    sweep(squared, {"seed": [1, 2]}, place)
    again = sweep(squared, [{"seed": 1, "scale": 1}, {"seed": 3, "power": 2.0}], place)
    assert RUNS == [1, 2, 3] and again.seed.tolist() == [1, 1, 3, 3]
    assert len(place.used) == 1 and len(place.lines("squared")) == 3
    assert place.origins().startswith("Trials: 3 by ")


def test_recorded_points_do_not_run(place, tmp_path):
    sweep(squared, {"seed": [1, 2]}, place)
    (tmp_path / "store").rename(tmp_path / "record")
    table = sweep(squared, {"seed": [1, 2]}, place)
    assert RUNS == [1, 2] and table.value.tolist() == [1, 2, 4, 5]
    sweep(squared, {"seed": [1]}, Place("notebook", tmp_path / "store", None))
    assert RUNS == [1, 2, 1]
    sweep(squared, {"seed": [1]}, Place("another", tmp_path / "elsewhere", tmp_path / "record"))
    assert RUNS == [1, 2, 1, 1], "notebooks do not share trials"


def test_rows_older_than_a_parameter_have_its_default(place):
    sweep(squared, {"seed": [1, 2]}, place)
    path = the_file(place.store, squared)
    path.write_text(path.read_text().replace(', "scale": 1.0', ""))
    table = sweep(squared, {"seed": [1, 2]}, place)
    assert RUNS == [1, 2] and table.scale.tolist() == [1.0] * 4
    sweep(squared, {"seed": [1], "scale": 2.0}, place)
    assert RUNS == [1, 2, 1]


@pytest.mark.parametrize("words", [["None", "NA", "nan", "01", "1", ""], ["a\u0085b", "a\u2028b", "\ud800", "\r", '"']])
def test_strings_round_trip(place, words):
    def echo(seed, word):
        return {"echo": word}

    first = sweep(echo, {"seed": [0], "word": words}, place)
    second = sweep(echo, {"seed": [0], "word": words}, place)
    assert first.word.tolist() == second.word.tolist() == second.echo.tolist() == words


def test_numbers_round_trip_exactly(place):
    def odd(seed):
        values = [1 / 3, math.inf, -math.inf, math.nan, 1e-300, 5, True, None]
        return [{"value": value, "real": float(i)} for i, value in enumerate(values)]

    first, second = (sweep(odd, {"seed": [0]}, place) for _ in range(2))
    assert list(map(repr, first.value)) == list(map(repr, second.value))
    assert first.drop(columns="seconds").equals(second.drop(columns="seconds"))


def test_none_among_floats_becomes_nan(place):
    def some(seed):
        return {"loss": None if seed else 0.5}

    assert sweep(some, {"seed": [0, 1]}, place).loss.dtype == float


@pytest.mark.parametrize(
    ("grid", "error", "words"),
    [
        ({"seed": [1], "powr": [2]}, TypeError, "powr"),
        ({"power": [2]}, TypeError, "seed"),
        ({"seed": []}, ValueError, "empty"),
        ([], ValueError, "empty"),
        ({"seed": [object()]}, TypeError, "JSON"),
        ({"seed": [torch.zeros(2)]}, TypeError, "JSON"),
    ],
)
def test_invalid_grids(place, grid, error, words):
    with pytest.raises(error, match=words):
        sweep(squared, grid, place)
    assert not RUNS


def test_numpy_and_torch_scalars_are_numbers():
    grid = [{"seed": np.int64(3), "power": torch.tensor(2), "scale": np.float32(0.5)}]
    assert points_of(squared, grid) == [{"seed": 3, "power": 2, "scale": 0.5}]
    assert [p["seed"] for p in points_of(squared, {"seed": np.arange(2)})] == [0, 1]


def test_invalid_trials(place):
    def timed(seed, repeat):
        return {}

    for wrong, words in ((lambda seed: {}, "def"), (timed, "repeat is a column"), (squared(1), "def")):
        with pytest.raises(TypeError, match=words):
            sweep(wrong, {"seed": [1], "repeat": [1]}, place)


@pytest.mark.parametrize("result", [3, {"seed": 1}, {"seconds": 1}, {"a": [1, 2]}, [1], {"a": object()}])
def test_invalid_results(result):
    with pytest.raises(TypeError):
        trials.columns_of(result, {"seed": 1})


def test_failed_trials_are_reported_and_others_cached(place):
    def frail(seed):
        if seed == 1:
            raise ZeroDivisionError("no such luck")
        if seed == 2:
            raise SystemExit(3)
        return {"value": seed}

    with pytest.raises(
        TrialsFailed, match=r"2 of 4 trials of frail failed(?s:.*)no such luck(?s:.*)sys.exit\(3\)"
    ) as failed:
        sweep(frail, {"seed": range(4)}, place)
    assert "in frail" in str(failed.value)  # the line of the trial is shown
    assert [line["at"]["seed"] for line in read(the_file(place.store, frail))[1]] == [0, 3]


def test_trial_restores_process_state(place, tmp_path):
    def messy(seed):
        torch.set_grad_enabled(False)
        torch.set_default_dtype(torch.float64)
        torch.set_default_device("meta")
        torch.set_num_threads(2)
        os.chdir(tempfile_folder())
        return {"value": random.random() + torch.rand(1, device="cpu").item() + np.random.rand()}

    def tempfile_folder():
        import tempfile

        return tempfile.gettempdir()

    random.seed(1), torch.manual_seed(1), np.random.seed(1)
    before = random.getstate(), torch.get_rng_state(), os.getcwd(), torch.get_num_threads()
    first = sweep(messy, {"seed": [0, 1]}, place)
    assert torch.is_grad_enabled() and torch.get_default_dtype() == torch.float32
    assert torch.get_default_device() == torch.device("cpu")
    after = random.getstate(), torch.get_rng_state(), os.getcwd(), torch.get_num_threads()
    assert before[0] == after[0] and torch.equal(before[1], after[1]) and before[2:] == after[2:]
    other = Place("notebook", tmp_path / "other")
    assert sweep(messy, {"seed": [1, 0]}, other).value.tolist() == first.value.tolist()[::-1]


def test_worker_processes_give_identical_results(place, tmp_path):
    def product(seed, width):
        import torch

        matrix = torch.randn(width, width)
        return {"value": (matrix @ matrix).sum().item(), "threads_used": torch.get_num_threads()}

    grid = {"seed": range(3), "width": [8, 64]}
    here = sweep(product, grid, place)
    workers.pool(2)  # otherwise a short sweep runs in this process
    there = sweep(product, grid, Place("notebook", tmp_path / "there", jobs=2))
    pd.testing.assert_frame_equal(here.drop(columns="seconds"), there.drop(columns="seconds"))


# Files


def test_corrupt_lines_are_reported_and_run_again(place):
    sweep(squared, {"seed": [1, 2, 3]}, place)
    path = the_file(place.store, squared)
    lines = path.read_bytes().split(b"\n")
    path.write_bytes(b"\n".join([lines[0], lines[1], lines[2][:40], lines[3][:-9]]))
    with pytest.warns(UserWarning, match="corrupt line 3, 4"):
        sweep(squared, {"seed": [1, 2, 3]}, place)
    assert RUNS == [1, 2, 3, 2, 3]
    with pytest.warns(UserWarning, match="corrupt line 3, 4"):
        sweep(squared, {"seed": [1, 2, 3]}, place)
    assert RUNS == [1, 2, 3, 2, 3], "a line after a partial one is intact"


def test_corrupt_header_loses_no_rows(place):
    sweep(squared, {"seed": [1]}, place)
    path = the_file(place.store, squared)
    path.write_bytes(path.read_bytes()[9:])
    with pytest.warns(UserWarning, match="corrupt line 1"):
        sweep(squared, {"seed": [1]}, place)
    assert RUNS == [1]


def test_full_disk_error_suggests_results_option(place, monkeypatch):
    monkeypatch.setattr(trials, "FileLock", lambda path: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(OSError, match="No space left on device; choose another folder with --results"):
        sweep(squared, {"seed": [1]}, place)


# Changed code and kinds


def change_code(monkeypatch):
    """Change the code hash of every trial."""
    from lab import key

    before = key.code_of
    monkeypatch.setattr(key, "code_of", lambda item: before(item) | {"lab.models.gpt": "other"})


def test_rows_of_older_code_are_reported_and_used_only_with_anyway(place, monkeypatch, capsys):
    sweep(squared, {"seed": [1, 2]}, place)
    change_code(monkeypatch)
    anyway = sweep(squared, {"seed": [1, 2]}, Place("notebook", place.store, anyway=True))
    assert RUNS == [1, 2] and anyway.value.tolist() == [1, 2, 4, 5]
    sweep(squared, {"seed": [2, 3]}, place)
    assert RUNS == [1, 2, 2, 3]
    assert "1 trials of squared run again because lab.models.gpt changed" in capsys.readouterr().out


def test_changed_kind_invalidates_its_rows(place, monkeypatch, capsys):
    def chosen(seed, kind):
        uses.looked_up("Toy", kind)
        mark(seed)
        return {"value": seed}

    hashes = {"Toy.one": "1", "Toy.two": "1"}
    monkeypatch.setattr(trials.key, "now", lambda name: hashes[name])
    monkeypatch.setattr(trials.key, "kind_of", lambda name: None)
    grid = {"seed": [5], "kind": ["one", "two"]}
    sweep(chosen, grid, place)
    hashes["Toy.two"] = "2"
    sweep(chosen, grid, place)
    assert RUNS == [5, 5, 5] and "because Toy.two changed" in capsys.readouterr().out
    sweep(chosen, grid, place)
    assert RUNS == [5, 5, 5]


def test_file_parameter_is_hashed_by_content(place, tmp_path):
    def counted(seed, path):
        mark(seed)
        return {"letters": len(open(path).read())}

    file = tmp_path / "text.txt"
    for text, runs in (("one", 1), ("three", 2), ("three", 2)):
        file.write_text(text)
        assert sweep(counted, {"seed": [0], "path": str(file)}, place).letters.tolist() == [len(text)]
        assert len(RUNS) == runs


# Timings


def clocked(seed=0, n=1):
    import os

    uses.clock("a stopwatch")
    return {"process": os.getpid(), "milliseconds": 1.0}


def test_trial_that_measures_time_requires_timing(place):
    with pytest.raises(TrialsFailed, match="pass timing=True"):
        sweep(clocked, {"n": [1]}, place)
    table = sweep(clocked, {"n": [1, 2]}, place, timing=True)
    assert set(table.process) == {os.getpid()} and "repeat" not in table


def test_timing_runs_in_fresh_processes_and_is_cached(place, tmp_path):
    table = sweep(clocked, {"n": [1, 2]}, place, timing=True, processes=2)
    assert table.repeat.tolist() == [0, 0, 1, 1] and table.process.nunique() == 2
    assert set(table.groupby("repeat").process.nunique()) == {1}
    again = sweep(clocked, {"n": [1, 2]}, place, timing=True, processes=2)
    assert again.equals(table)
    (tmp_path / "store").rename(tmp_path / "record")
    assert sweep(clocked, {"n": [1, 2]}, place, timing=True, processes=2).equals(table)


def test_timings_of_two_machines_are_not_mixed(place, tmp_path):
    """A timing with more repeats reuses complete repeats of the store, but not of the record."""
    recorded = sweep(clocked, {"n": [1, 2]}, place, timing=True, processes=1)
    (tmp_path / "store").rename(tmp_path / "record")
    larger = sweep(clocked, {"n": [1, 2]}, place, timing=True, processes=2)
    assert not set(larger.process) & set(recorded.process)
    path = the_file(place.store, clocked)
    path.write_text("\n".join(path.read_text().splitlines()[:4]) + "\n")  # the second process was killed
    again = sweep(clocked, {"n": [1, 2]}, place, timing=True, processes=2)
    assert again.process[:2].equals(larger.process[:2]) and not set(again.process[2:]) & set(larger.process)


# The record


def test_record_holds_only_used_points(place, tmp_path):
    sweep(squared, {"seed": [1, 2]}, place)
    (tmp_path / "store").rename(tmp_path / "record")
    path = the_file(place.record, squared)
    (path.parent / "gone-123.jsonl").write_text("{}\n")
    later = Place("notebook", tmp_path / "store", tmp_path / "record")
    sweep(squared, {"seed": [2, 3]}, later)
    used = {file: list(lines) for file, lines in later.used.items()}
    trials.record(later, used)
    assert [line["at"]["seed"] for line in read(path)[1]] == [2, 3]
    assert [each.name for each in path.parent.glob("*.jsonl")] == [path.name]
    assert read(path)[0] == read(the_file(place.store, squared))[0]
    before = path.read_bytes()
    trials.record(later, used)
    assert path.read_bytes() == before
    with pytest.raises(RuntimeError, match="1 trials of the run are not stored"):
        trials.record(later, {path.name: [trials.name_of({"seed": 4}), *used[path.name]]})
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("here", "there", "difference"),
    [
        ({"a": 1.0, "b": "x"}, {"a": 1.0, "b": "x"}, 0),
        ({"a": 1.0}, {"a": 1.0 + 1e-9}, 1e-9),
        ({"a": [0.0, math.nan]}, {"a": [0.0, math.nan]}, 0),
        ({"a": [1.0, 2.0]}, {"a": [1.0, 4.0]}, 0.5),
        (0.0, -0.0, 0),
        (math.nan, math.nan, 0),
        (math.inf, math.inf, 0),
        (math.nan, 1.0, math.inf),
        (1.0, math.nan, math.inf),
        (math.inf, 1.0, math.inf),
        (math.inf, -math.inf, math.inf),
        (math.inf, math.nan, math.inf),
        ([1, 2], [1, math.nan], math.inf),
        ({"a": [1.0, 2.0]}, {"a": [1.0, math.nan]}, math.inf),
        ({"a": 1.0, "b": math.nan}, {"a": 1.0, "b": 2.0}, math.inf),
        ({"a": 1}, {"a": 2}, math.inf),
        ({"a": "x"}, {"a": "y"}, math.inf),
        ({"a": 1.0}, {"b": 1.0}, math.inf),
        ({"a": [1.0]}, {"a": [1.0, 1.0]}, math.inf),
        ("RuntimeError()", {"a": 1.0}, math.inf),
    ],
)
def test_difference_of_finite_floats_is_relative_and_any_other_is_infinite(here, there, difference):
    assert trials.difference(here, there) == pytest.approx(difference, rel=1e-6)


def test_check_runs_one_row_per_set_of_kinds_and_accept_moves_all_rows(place, tmp_path, monkeypatch):
    def chosen(seed, kind):
        uses.looked_up("Toy", kind)
        return {"value": seed / 3}

    hashes = {"Toy.one": "1", "Toy.two": "1"}
    monkeypatch.setattr(trials.key, "now", lambda name: hashes[name])
    monkeypatch.setattr(trials.key, "kind_of", lambda name: None)
    grid = {"seed": [1, 2, 3], "kind": ["one", "two"]}
    sweep(chosen, grid, place)
    (tmp_path / "store").rename(tmp_path / "record")
    (old,) = (place.record / "notebook").glob("*.jsonl")
    there = Place("notebook", tmp_path / "store", place.record, anyway=True, check=tmp_path / "check" / "there")
    with monkeypatch.context() as later:
        change_code(later)
        hashes["Toy.two"] = "2"
        here = Place("notebook", tmp_path / "store", place.record, anyway=True, check=tmp_path / "check" / "here")
        sweep(chosen, grid, here)
        sweep(chosen, grid, here)
    written = tmp_path / "check" / "here" / "notebook" / old.name
    result = json.loads(written.read_text())
    assert sorted(point["kind"] for point in result["points"]) == ["one", "two"]
    hashes["Toy.two"] = "1"
    sweep(chosen, grid, there)
    other = json.loads((tmp_path / "check" / "there" / "notebook" / old.name).read_text())
    assert other["rows"] == result["rows"] and other["name"] == old.name != result["name"]
    assert result["defaults"] == {}
    trials.accept(place.record / "notebook", old.name, result | {"defaults": {"width": 4}})
    (new,) = (place.record / "notebook").glob("*.jsonl")
    code, lines = read(new)
    assert new.name == result["name"] and code["lab.models.gpt"] == "other" and len(lines) == 6
    assert {line["also"].get("Toy.two") for line in lines} == {None, "2"}
    assert {line["at"]["width"] for line in lines} == {4}


def test_timings_are_never_accepted(place, tmp_path):
    sweep(clocked, {"n": [1, 2]}, place, timing=True)
    path = the_file(place.store, clocked)
    code, _ = read(path)
    trials.accept(
        path.parent, path.name, {"name": "clocked-new.jsonl", "code": code, "also": {"clock": "clock"}, "defaults": {}}
    )
    assert read(path.with_name("clocked-new.jsonl"))[1] == []
