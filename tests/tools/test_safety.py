"""Nothing is unpickled, and nothing listens beyond this machine."""

import ast

import psutil
import pytest
from lab.trials.runs import CHECKOUT

from lab.trials import workers

SOURCES = [*sorted((CHECKOUT / "lab").rglob("*.py")), *sorted((CHECKOUT / "benchmarks").glob("*.py"))]
PICKLES = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.relative_to(CHECKOUT).as_posix())
def test_nothing_is_unpickled_and_yaml_is_read_safely(path):
    travels = path.name == "workers.py"  # the trial itself, over the pool's own pickled traffic
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            assert travels or not PICKLES & {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert (node.module or "").partition(".")[0] not in PICKLES
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            call = ast.unparse(node)
            assert node.func.attr not in ("read_pickle", "unsafe_load", "full_load")
            assert not call.startswith("torch.load(") or "weights_only=True" in call
            assert "allow_pickle=True" not in call
            assert not call.startswith("yaml.load(") or call.endswith(("EachOnce)", "SafeLoader)"))


@pytest.mark.slow
def test_jupyter_and_the_workers_listen_on_this_machine_alone():
    makefile = (CHECKOUT / "Makefile").read_text("utf-8")
    started = [line for line in makefile.splitlines() if "jupyter lab" in line]
    assert started and all("--ip 127.0.0.1" in line for line in started)
    with workers.local(2):
        family = [psutil.Process(), *psutil.Process().children(recursive=True)]
        open_at = {c.laddr.ip for p in family for c in p.net_connections("inet") if c.status == psutil.CONN_LISTEN}
    assert open_at and open_at <= {"127.0.0.1", "::1"}
