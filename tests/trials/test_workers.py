"""Worker processes of this machine and of a cluster: left alone, replaced when lost, and no other than one process."""

import asyncio
import importlib
import math
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pandas as pd
import pytest
from a_cell import defined_in_a_cell
from gate import allow, pass_gate
from helpers import without_times

from lab.trials import sweep as trials
from lab.trials import workers
from lab.trials.store import File

pytestmark = pytest.mark.slow


def product(seed, width):
    import torch

    generator = torch.Generator().manual_seed(seed)
    matrix = torch.randn(width, width, generator=generator)
    return {"value": (matrix @ matrix).sum().item(), "third": 1 / 3, "worst": math.inf, "lost": math.nan}


def accident_prone(seed):
    import os
    import time

    if seed == 3:
        os.kill(os.getpid(), 9)
    if seed == 4:
        raise ZeroDivisionError("no such luck")
    time.sleep(0.05)
    return {"double": 2 * seed}


def stored(folder):
    """The finished trials in a store."""
    return File(folder / "n.jsonl").trials


def gated(seed, gate):
    pass_gate(gate)
    return {"square": seed**2}


def test_processes_and_a_cluster_give_the_table_of_one_process(tmp_path):
    grid = {"seed": range(3), "width": [8, 64]}
    here = trials.sweep(product, grid, sources=trials.Sources("n", store=tmp_path / "here"))
    with workers.local(2) as client:
        address = client.scheduler_info()["address"]
        there = trials.sweep(product, grid, sources=trials.Sources("n", store=tmp_path / "there"), cluster=address)
        in_notebook = defined_in_a_cell("def in_notebook(seed):\n    return {'square': seed**2}\n")
        squares = trials.sweep(
            in_notebook, {"seed": range(4)}, sources=trials.Sources("n", store=tmp_path), cluster=address
        )
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
            trials.sweep(
                absent, {"seed": [1, 2]}, sources=trials.Sources("n", store=tmp_path / "there"), cluster=address
            )
        table = trials.sweep(
            half, {"seed": range(4)}, sources=trials.Sources("n", store=tmp_path / "here"), cluster=address
        )
    assert list(table.half) == [0, 0.5, 1, 1.5]


def test_a_module_imported_inside_a_trial_is_that_of_who_asks(tmp_path, monkeypatch):
    """Whatever file of that name the workers have and hold; and edited, it is the edited one."""
    helper = "from shapes.numbers import by\ndef half(x):\n    return x / by\n"
    for folder, by in (("mine", 2), ("theirs", 4)):
        (tmp_path / folder / "shapes").mkdir(parents=True)
        (tmp_path / folder / "shapes" / "numbers.py").write_text(f"by = {by}\n")
        (tmp_path / folder / "shapes" / "dividing.py").write_text(helper)
    trial = "def halved(seed):\n    from shapes.dividing import half\n    return {'half': half(seed)}\n"
    (tmp_path / "mine" / "insider.py").write_text(trial)
    found, theirs = [], str(tmp_path / "theirs")

    def hold():
        sys.path.insert(0, theirs)
        return importlib.import_module("shapes.dividing").half(1)

    with workers.local(2) as client:
        address = client.scheduler_info()["address"]
        assert set(client.run(hold).values()) == {0.25}
        monkeypatch.syspath_prepend(tmp_path / "mine")
        for by in (2, 10, 2):
            (tmp_path / "mine" / "shapes" / "numbers.py").write_text(f"by = {by}\n")
            sources = trials.Sources("n", store=tmp_path / f"store {len(found)}")
            halved = importlib.import_module("insider").halved
            table = trials.sweep(halved, {"seed": range(4)}, sources=sources, cluster=address)
            found.append(table.half.tolist())
    assert found == [[0, 0.5, 1, 1.5], [0, 0.1, 0.2, 0.3], [0, 0.5, 1, 1.5]]


def test_a_worker_of_many_threads_runs_one_trial_at_a_time():
    """Random numbers, threads of torch and modules belong to the whole process."""
    packed = workers.pack(defined_in_a_cell("def nothing(seed):\n    return {}\n"), ())
    under_way = []

    def counted(trial, point):
        under_way.append(point)
        time.sleep(0.02)  # for who would come between
        return len(under_way), under_way.pop()

    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(lambda n: workers._call(counted, packed, {"n": n}), range(12)))
    assert found == [(1, {"n": n}) for n in range(12)]


def test_workers_are_left_alone_while_they_train():
    def watched():
        from dask import config

        profile, tick = (
            config.get(f"distributed.{name}") for name in ("worker.profile.enabled", "admin.tick.interval")
        )
        return profile, tick, os.environ["MALLOC_TRIM_THRESHOLD_"]

    with workers.local(2) as client:
        assert set(client.run(watched).values()) == {(False, "1s", str(2**30))}


def noted(n, notes):
    with open(notes, "a") as file:
        file.write(f"{n}\n")
    return {"square": n**2}


def test_the_last_of_a_grid_is_begun_first(tmp_path):
    """Grids grow: with the long trials at its end, one worker would run alone while the others wait."""
    with workers.local(1) as client:
        table = trials.sweep(noted, {"n": list(range(20)), "notes": str(tmp_path / "notes")},
                             sources=trials.Sources("n", store=tmp_path / "store"),
                             cluster=client.scheduler_info()["address"])  # fmt: skip
    assert list(table.n) == list(range(20))
    assert [int(n) for n in (tmp_path / "notes").read_text().split()] == list(range(20))[::-1]


def test_worker_killing_trial_fails_alone(tmp_path):
    with pytest.raises(trials.TrialsFailed) as failure:
        trials.sweep(accident_prone, {"seed": range(8)}, sources=trials.Sources("n", store=tmp_path), jobs=2)
    causes = {parameters["seed"]: cause for parameters, cause, _ in failure.value.failures}
    assert set(causes) == {3, 4} and "killed" in causes[3] and "no such luck" in causes[4]
    assert '"seed": 3' in str(failure.value)
    assert sorted(body["parameters"]["seed"] for body in stored(tmp_path)) == [0, 1, 2, 5, 6, 7]


def test_workers_that_went_away_are_started_anew(tmp_path, monkeypatch):
    """Between sweeps, and in the midst of one: nobody waits for a worker that never comes."""
    monkeypatch.setattr(workers, "CONNECT_SECONDS", 1)
    monkeypatch.setitem(workers.PATIENCE, "distributed.scheduler.no-workers-timeout", "1s")

    gate = tmp_path / "gate"
    allow(gate, 1)

    def lose_them(done, total):
        if done == 1:  # the three workers wait, each with a trial
            cluster = workers._pools[3].cluster
            nannies = list(cluster.workers.values())
            cluster.sync(lambda: asyncio.gather(*(nanny.close(timeout=1) for nanny in nannies)))

    grid, sources = {"seed": range(12), "gate": str(gate)}, trials.Sources("n", store=tmp_path / "store")
    with pytest.raises(ConnectionError, match="went away.*run again"):
        trials.sweep(gated, grid, sources=sources, jobs=3, progress=lose_them)
    assert len(stored(tmp_path / "store")) == 1
    allow(gate, None)
    with workers.local(3) as client:
        client.retire_workers()
    assert len(trials.sweep(gated, grid, sources=sources, jobs=3)) == 12


def test_workers_start_anew_after_an_edit_of_lab(monkeypatch):
    with workers.local(2) as first:
        pass
    with workers.local(2) as again:
        assert again is first
    monkeypatch.setattr(workers.place, "files_hash", lambda: "edited")
    with workers.local(2) as other:
        assert other is not first and first.status == "closed"
