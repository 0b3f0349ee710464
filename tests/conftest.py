"""One thread for torch, so that numbers repeat; hypothesis without a clock; Ctrl-C ends what tests start; a project of
the tests' own; and no test reads the lessons or their results unless it says why."""

import json
import os
import signal
import subprocess
import sys

import pytest
import small_project
import torch
import warm_kernel
from hypothesis import settings

from lab.engine.runs import CHECKOUT

sys.modules.setdefault("rfc3987_syntax", None)  # as in `lab run`
for name in ("LAB_LANGUAGE", "LAB_PROJECT"):  # tests read English, and know their project
    os.environ.pop(name, None)
signal.signal(signal.SIGINT, signal.default_int_handler)  # what a job in the background would ignore
torch.set_num_threads(1)
settings.register_profile("lab", deadline=None)
settings.load_profile("lab")

LONGEST = ("test_notebooks.py", "test_batch.py", "test_extremes.py")  # minutes each: begun first, none alone at the end
APART = ("test_notebooks.py", "test_extremes.py", "test_committed_record.py")  # minutes; their tests share nothing


def pytest_configure(config):
    config.option.loadscopereorder = False  # xdist would begin with the file of most tests


def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: [*LONGEST, item.path.name].index(item.path.name))
    for item in items:
        if item.path.name not in APART:
            item.add_marker(pytest.mark.xdist_group(item.path.stem))  # a file's tests on one worker: its fixtures once


@pytest.fixture(scope="session")
def kernels(tmp_path_factory):
    """A folder for JUPYTER_PATH, by which kernels are forks of a process that has imported what notebooks import."""
    folder = tmp_path_factory.mktemp("kernels")
    command = [sys.executable, warm_kernel.__file__, warm_kernel.socket_in(folder)]
    spec = {"argv": [sys.executable, "-S", "-E", *command[1:], "-f", "{connection_file}"], "language": "python"}
    (folder / "kernels" / "python3").mkdir(parents=True)
    (folder / "kernels" / "python3" / "kernel.json").write_text(json.dumps(spec | {"display_name": "Python 3"}))
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=CHECKOUT) as process:
        assert process.stdout.readline() == b"ready\n"
        yield str(folder)
        process.kill()


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A project of two small notebooks, in which all tests of the file that asks for it work."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LAB_PROJECT", str(folder := small_project.write(tmp_path_factory.mktemp("project"))))
        yield folder


@pytest.fixture
def eight_gib(monkeypatch):
    """A machine with so much memory to spare."""
    monkeypatch.setattr("lab.measure.memory.available_memory", lambda: 8 * 2**30)
