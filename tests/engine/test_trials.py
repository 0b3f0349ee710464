"""A sweep keeps what is finished, whatever happens to it, and gives the same table whoever runs the trials."""

import asyncio
import importlib
import json
import linecache
import math
import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from lab.engine import trials, workers
from lab.engine.device import device

PROJECT = Path(trials.__file__).parents[2]


def product(seed, width):
    import torch

    generator = torch.Generator().manual_seed(seed)
    matrix = torch.randn(width, width, generator=generator)
    return {"value": (matrix @ matrix).sum().item(), "third": 1 / 3, "worst": math.inf, "lost": math.nan}


def counted(seed, notes):
    with open(notes, "a") as file:
        file.write(f"{seed}\n")
    return {"double": np.float32(seed * 2), "even": np.bool_(seed % 2 == 0)}


def accident_prone(seed):
    import os
    import time

    if seed == 3:
        os.kill(os.getpid(), 9)
    if seed == 4:
        raise ZeroDivisionError("no such luck")
    time.sleep(0.05)
    return {"double": 2 * seed}


def faulty(seed):
    if seed == 1:
        raise ZeroDivisionError("no such luck")
    return {"double": 2 * seed}


def curve(seed, shape):
    return [{"step": step, "loss": shape["slope"] * step + seed} for step in range(3)]


def placed(wanted):
    import torch

    return {"found": str(device()), "at_work": torch.get_num_threads()}


def defined_in_a_cell(source):
    """The function that a notebook cell defines: its module is __main__, its source is known to linecache alone."""
    linecache.cache["<cell 1>"] = (len(source), None, source.splitlines(True), "<cell 1>")
    scope = {"__name__": "__main__"}
    exec(compile(source, "<cell 1>", "exec"), scope)
    return next(value for name, value in scope.items() if not name.startswith("__"))


def without_times(table):
    return table.drop(columns="seconds")


def only_file(store):
    (file,) = store.rglob("*.json")
    return file


def test_table_is_in_grid_order_with_parameters_first(tmp_path):
    seen = []
    table = trials.sweep(
        curve,
        {"shape": [{"slope": 2.0}, {"slope": 1.0}], "seed": range(2)},
        sources=trials.Sources(store=tmp_path),
        progress=lambda done, total, workers, left: seen.append((done, total, workers)),
    )
    assert list(table.columns) == ["shape", "seed", "step", "loss", *trials.LABELS]
    assert [shape["slope"] for shape in table["shape"]] == [2.0] * 6 + [1.0] * 6
    assert list(table["seed"]) == [0, 0, 0, 1, 1, 1] * 2
    assert seen == [(done, 4, 1) for done in range(5)]


def test_resume_returns_the_same_table_without_calling_the_trial(tmp_path):
    grid = {"seed": [2, 1], "notes": str(tmp_path / "notes")}
    first = trials.sweep(counted, grid, sources=trials.Sources(store=tmp_path))
    more = trials.sweep(counted, grid | {"seed": [3, 1, 2, 3]}, sources=trials.Sources(store=tmp_path))
    assert (tmp_path / "notes").read_text().split() == ["2", "1", "3"]
    assert list(more["double"]) == [6.0, 2.0, 4.0, 6.0] and list(more["even"]) == [False, False, True, False]
    pd.testing.assert_frame_equal(first, more.iloc[[2, 1]].reset_index(drop=True))


def test_floats_come_back_exactly(tmp_path):
    grid = {"seed": 0, "width": [3, 40]}
    first, again = (trials.sweep(product, grid, sources=trials.Sources(store=tmp_path)) for _ in range(2))
    assert first["value"].map(float.hex).tolist() == again["value"].map(float.hex).tolist()
    assert again["third"][0] == 1 / 3 and again["worst"][0] == math.inf and math.isnan(again["lost"][0])


@pytest.mark.parametrize("harm", ["cut", "flip", "empty", "other"])
def test_damaged_file_is_named_and_recomputed(tmp_path, harm):
    grid = {"seed": 5, "width": 20}
    first = trials.sweep(product, grid, sources=trials.Sources(store=tmp_path))
    file = only_file(tmp_path)
    sound = file.read_bytes()
    place = sound.index(b"value") + 10
    file.write_bytes(
        {
            "cut": sound[: len(sound) // 2],
            "flip": sound[:place] + bytes([sound[place] ^ 1]) + sound[place + 1 :],
            "empty": b"",
            "other": b'{"body": {"rows": [{"value": 1.0}]}}',
        }[harm]
    )
    with pytest.warns(UserWarning, match=file.name):
        again = trials.sweep(product, grid, sources=trials.Sources(store=tmp_path))
    pd.testing.assert_frame_equal(without_times(first), without_times(again))
    trials.sweep(product, grid, sources=trials.Sources(store=tmp_path))


def test_every_flipped_bit_is_noticed(tmp_path):
    trials.sweep(faulty, {"seed": 7}, sources=trials.Sources(store=tmp_path))
    file = only_file(tmp_path)
    sound = file.read_bytes()
    for bit in random.Random(0).sample(range(8 * len(sound)), 300):
        harmed = bytearray(sound)
        harmed[bit // 8] ^= 1 << bit % 8
        file.write_bytes(harmed)
        with pytest.warns(UserWarning, match="damaged"):
            assert trials.trial_store.read(file.parent, file.stem) is None


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
        trials.sweep(product, grid, sources=trials.Sources(store=tmp_path / "store"))
    assert not (tmp_path / "store").exists()


def test_failed_trial_is_named_and_the_others_are_kept(tmp_path):
    with pytest.raises(trials.TrialsFailed, match='(?s)1 of 3 .*"seed": 1.*ZeroDivisionError: no such luck.*faulty'):
        trials.sweep(faulty, {"seed": range(3)}, sources=trials.Sources(store=tmp_path))
    assert len(list(tmp_path.rglob("*.json"))) == 2


def test_device_and_threads_hold_where_the_trial_runs(tmp_path):
    import torch

    before = torch.get_num_threads()
    table = trials.sweep(
        placed, {"wanted": "cpu"}, sources=trials.Sources(store=tmp_path), device="cpu", threads=before + 1
    )
    assert (table["found"][0], table["at_work"][0], table["threads"][0]) == ("cpu", before + 1, before + 1)
    assert torch.get_num_threads() == before
    if not torch.cuda.is_available():
        with pytest.raises(ValueError, match="no device 'cuda' .* there is .*cpu"):
            trials.sweep(placed, {"wanted": "cuda"}, sources=trials.Sources(store=tmp_path), device="cuda")


def test_store_that_cannot_be_a_folder_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match=str(tmp_path / "file")):
        trials.sweep(faulty, {"seed": 0}, sources=trials.Sources(store=tmp_path / "file" / "store"))


def script(tmp_path, body):
    path = tmp_path / f"script{len(list(tmp_path.iterdir()))}.py"
    path.write_text(textwrap.dedent(body))
    return [sys.executable, str(path)], os.environ | {"PYTHONPATH": str(PROJECT)}


def test_full_disk_leaves_nothing_half_written(tmp_path):
    command, environment = script(
        tmp_path,
        f"""
        import resource
        from lab.engine import trials

        def long_row(seed):
            return {{"text": "x" * (100 if seed == 0 else 100_000)}}

        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
        trials.sweep(long_row, {{"seed": [0, 1]}}, sources=trials.Sources(store={str(tmp_path / "store")!r}))
        """,
    )
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 1 and str(tmp_path / "store" / "long_row") in done.stderr.splitlines()[-1]
    assert only_file(tmp_path / "store") == next(path for path in tmp_path.rglob("store/long_row/*"))


SLOW_SWEEP = """
import sys, time
from lab.engine import trials

def slow(seed):
    import random, time

    time.sleep(0.03)
    return [{{"step": step, "value": random.Random(seed).random() / (step + 1)}} for step in range(3)]

if __name__ == "__main__":
    table = trials.sweep(slow, {{"seed": range({trials})}}, sources=trials.Sources(store=sys.argv[1]), jobs={jobs})
    table.drop(columns="seconds").to_json(sys.argv[2], orient="table", double_precision=15)
"""


def wait_for(condition, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_runs_killed_at_any_moment_resume_to_the_undisturbed_result(tmp_path):
    command, environment = script(tmp_path, SLOW_SWEEP.format(trials=40, jobs=1))
    store, chance = tmp_path / "store", random.Random(1)
    calm = subprocess.Popen([*command, str(tmp_path / "calm"), str(tmp_path / "calm.json")], env=environment)
    for _ in range(3):
        before = len(list(store.rglob("*.json")))
        process = subprocess.Popen([*command, str(store), str(tmp_path / "end.json")], env=environment)
        wait_for(lambda start=before: len(list(store.rglob("*.json"))) > start)
        time.sleep(chance.uniform(0, 0.3))
        process.kill()
        process.wait()
    kept = {path: path.read_bytes() for path in store.rglob("*.json")}
    assert 3 <= len(kept) < 40
    subprocess.run([*command, str(store), str(tmp_path / "end.json")], env=environment, check=True)
    assert calm.wait(60) == 0 and (tmp_path / "calm.json").read_text() == (tmp_path / "end.json").read_text()
    assert all(path.read_bytes() == content for path, content in kept.items())
    assert {path.name for path in store.rglob("*.json")} == {path.name for path in (tmp_path / "calm").rglob("*.json")}


def processes_with(word):
    """Ids of the processes whose environment holds the word: it is handed down to all workers."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if word.encode() in (folder / "environ").read_bytes() and (folder / "stat").read_text().split()[2] != "Z":
                found.append(int(folder.name))
        except OSError:
            pass
    return found


@pytest.mark.skipif(not Path("/proc").exists(), reason="looks for orphans in /proc")
@pytest.mark.parametrize("blow", [signal.SIGKILL, signal.SIGINT])
def test_no_worker_outlives_its_runner(tmp_path, blow):
    command, environment = script(tmp_path, SLOW_SWEEP.format(trials=2000, jobs=2))
    mark = f"LAB_TEST_MARK={tmp_path}"
    process = subprocess.Popen(
        [*command, str(tmp_path / "store"), "unused"],
        env=environment | dict([mark.split("=")]),
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    wait_for(lambda: len(list(tmp_path.rglob("store/slow/*.json"))) > 3)
    assert len(processes_with(mark)) >= 3
    if blow == signal.SIGINT:  # as a terminal does: to the whole group
        os.killpg(process.pid, blow)
        assert "KeyboardInterrupt" in process.communicate(timeout=20)[1]
    else:
        process.kill()
        process.wait()
    wait_for(lambda: not processes_with(mark), 15)
    assert not list(tmp_path.rglob("*.tmp"))


def test_workers_are_left_alone_while_they_train():
    def watched():
        from dask import config

        profile, tick = (
            config.get(f"distributed.{name}") for name in ("worker.profile.enabled", "admin.tick.interval")
        )
        return profile, tick, os.environ["MALLOC_TRIM_THRESHOLD_"]

    with workers.local(2) as client:
        assert set(client.run(watched).values()) == {(False, "1s", str(2**30))}


def test_the_last_of_a_grid_is_begun_first(tmp_path):
    """Grids grow: with the long trials at its end, one worker would run alone while the others wait."""

    def begun(n):
        import time

        time.sleep(0.05)
        return {"at": time.time()}

    table = trials.sweep(begun, {"n": list(range(20))}, sources=trials.Sources(store=tmp_path), jobs=2)
    assert list(table.n) == list(range(20)) and table["at"].corr(table.n) < -0.8


def test_worker_killing_trial_fails_alone(tmp_path):
    with pytest.raises(trials.TrialsFailed) as failure:
        trials.sweep(accident_prone, {"seed": range(8)}, sources=trials.Sources(store=tmp_path), jobs=2)
    causes = {parameters["seed"]: cause for parameters, cause, _ in failure.value.failures}
    assert set(causes) == {3, 4} and "killed" in causes[3] and "no such luck" in causes[4]
    assert '"seed": 3' in str(failure.value)
    stored = [json.loads(path.read_text().partition("\n")[2]) for path in tmp_path.rglob("*.json")]
    assert sorted(body["parameters"]["seed"] for body in stored) == [0, 1, 2, 5, 6, 7]


def unhurried(seed):
    import time

    time.sleep(0.2)
    return {"square": seed**2}


def test_workers_that_went_away_are_started_anew(tmp_path, monkeypatch):
    """Between sweeps, and in the midst of one: nobody waits for a worker that never comes."""
    monkeypatch.setattr(workers, "CONNECT_SECONDS", 1)
    monkeypatch.setitem(workers.PATIENCE, "distributed.scheduler.no-workers-timeout", "1s")

    def lose_them(done, total, at_work, left):
        if done == 1:
            cluster = workers._pools[3].cluster
            nannies = list(cluster.workers.values())
            cluster.sync(lambda: asyncio.gather(*(nanny.close() for nanny in nannies)))

    grid = {"seed": range(90)}  # six seconds of work: some is left when the last of the three has gone
    with pytest.raises(ConnectionError, match="went away.*run again"):
        trials.sweep(unhurried, grid, sources=trials.Sources(store=tmp_path), jobs=3, progress=lose_them)
    assert 0 < len(list(tmp_path.rglob("*.json"))) < 90
    with workers.local(3) as client:
        client.retire_workers()
    assert len(trials.sweep(unhurried, grid, sources=trials.Sources(store=tmp_path), jobs=3)) == 90


def test_processes_and_a_cluster_give_the_table_of_one_process(tmp_path):
    grid = {"seed": range(3), "width": [8, 64]}
    here = trials.sweep(product, grid, sources=trials.Sources(store=tmp_path / "here"))
    with workers.local(2) as client:
        address = client.scheduler_info()["address"]
        there = trials.sweep(product, grid, sources=trials.Sources(store=tmp_path / "there"), cluster=address)
        in_notebook = defined_in_a_cell("def in_notebook(seed):\n    return {'square': seed**2}\n")
        squares = trials.sweep(in_notebook, {"seed": range(4)}, sources=trials.Sources(store=tmp_path), cluster=address)
    pd.testing.assert_frame_equal(without_times(here), without_times(there))
    assert list(squares["square"]) == [0, 1, 4, 9]


def test_a_module_of_ones_own_travels_and_an_installed_one_does_not(tmp_path, monkeypatch):
    """A cluster that lacks an installed module is told so, and lives on."""
    (tmp_path / "latecomer.py").write_text("def half(seed):\n    return {'half': seed / 2}\n")
    (tmp_path / "site-packages").mkdir()
    (tmp_path / "site-packages" / "absentee.py").write_text("def half(seed):\n    return {'half': seed / 2}\n")
    with workers.local(2) as client:
        address = client.scheduler_info()["address"]
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.syspath_prepend(tmp_path / "site-packages")
        half, absent = (importlib.import_module(name).half for name in ("latecomer", "absentee"))
        with pytest.raises(RuntimeError, match="absentee.*same commit"):
            trials.sweep(absent, {"seed": [1, 2]}, sources=trials.Sources(store=tmp_path / "there"), cluster=address)
        table = trials.sweep(half, {"seed": range(4)}, sources=trials.Sources(store=tmp_path / "here"), cluster=address)
    assert list(table.half) == [0, 0.5, 1, 1.5]


def drawn(seed):
    import random

    import torch

    return {"value": random.random() + np.random.rand() + torch.rand(1).item()}


def test_random_numbers_without_a_generator_follow_from_the_parameters(tmp_path):
    """Nothing of an earlier trial in the same process can be felt, nor in which order they ran."""
    sweeps = [trials.sweep(drawn, {"seed": order}, sources=trials.Sources(store=tmp_path / str(i)))
              for i, order in enumerate(([0, 1, 2], [2, 1, 0]))]  # fmt: skip
    assert list(sweeps[0].value) == list(sweeps[1].value)[::-1] and sweeps[0].value.nunique() == 3


def rated(rate: float, steps: int):
    return {"product": rate * steps}


def test_numbers_are_what_the_annotations_say(tmp_path):
    sources = trials.Sources(store=tmp_path)
    trials.sweep(rated, [{"rate": 1, "steps": 2}, {"rate": 1.0, "steps": 2.0}], sources=sources)
    assert len(list(tmp_path.rglob("*.json"))) == 1
    trials.sweep(rated, {"rate": 1, "steps": 2.5}, sources=sources)
    assert len(list(tmp_path.rglob("*.json"))) == 2


def clocked(seed):
    from lab.measure.timing import seconds_a_call

    return seconds_a_call({("x",): lambda: None}, ["name"], 2).drop(columns="name")


def test_clocks_are_read_in_timing_sweeps_alone_which_are_never_kept(tmp_path):
    sources, used = trials.Sources(store=tmp_path), []
    with pytest.raises(trials.TrialsFailed, match="timing=True"):
        trials.sweep(clocked, {"seed": 0}, sources=sources)
    assert len(trials.sweep(clocked, {"seed": 0}, sources=sources, timing=True, used=used)) == 2
    assert not used and not list(tmp_path.rglob("*.json"))


def test_a_sweep_out_of_time_keeps_what_it_finished(tmp_path):
    end = time.time() + 1
    with pytest.raises(trials.OutOfTime, match="of 40 trials of unhurried are left"):
        trials.sweep(unhurried, {"seed": range(40)}, sources=trials.Sources(store=tmp_path, deadline=end))
    assert 2 <= len(list(tmp_path.rglob("*.json"))) < 40
    assert time.time() < end + 2
    with pytest.raises(trials.OutOfTime), workers.local(2):
        trials.sweep(unhurried, {"seed": range(200)}, jobs=2,
                     sources=trials.Sources(store=tmp_path, deadline=time.time() + 3))  # fmt: skip
    assert 8 <= len(list(tmp_path.rglob("*.json"))) < 100


def test_cluster_that_does_not_answer_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(workers, "CONNECT_SECONDS", 1)
    with pytest.raises(ConnectionError, match="tcp://127.0.0.1:9.*check"):
        trials.sweep(faulty, {"seed": 0}, sources=trials.Sources(store=tmp_path), cluster="tcp://127.0.0.1:9")


def test_import_is_light():
    code = (
        "import sys, lab.engine.trials; print({'torch', 'dask', 'distributed', 'pandas', 'numpy'} & set(sys.modules))"
    )
    shown = subprocess.run([sys.executable, "-c", code], cwd=PROJECT, capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "set()"
