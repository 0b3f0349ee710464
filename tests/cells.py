"""Run the cells of a notebook in this process, without a kernel, and restore global state afterwards."""

import contextlib
import os
import sys
import warnings
from types import ModuleType
from unittest.mock import patch

import matplotlib as mpl
import matplotlib.pyplot as plt
import torch
from definitions import forget_kinds
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output
from matplotlib.layout_engine import ConstrainedLayoutEngine
from papermill.translators import PythonTranslator
from traitlets.config import Config

from lab import charts, files
from lab.measure import timing
from lab.tasks.code import Code

FEW = 4  # number of validation windows
all_windows = Code.validation


def few_windows(self, size, seed=0):
    """Replacement for Code.validation that returns at most FEW windows."""
    return all_windows(self, min(size, FEW), seed)


@contextlib.contextmanager
def rough():
    """Speed up: coarse figures without layout, few validation windows, three rounds per timing."""
    with (
        patch.object(Code, "validation", few_windows),
        patch.dict(charts.LOOK, {"savefig.dpi": 20.0}),
        patch.object(ConstrainedLayoutEngine, "execute", lambda self, figure: None),
        patch.multiple(timing, ROUND=1e-5, TOTAL=1e-5),
    ):
        yield


@contextlib.contextmanager
def shell():
    """An IPython shell whose namespace is a module without a file, as in a kernel."""
    module = ModuleType("typed_in_cells")
    config = Config({"HistoryManager": {"enabled": False}})
    threads = torch.get_num_threads()
    try:
        with rough(), mpl.rc_context(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # means of empty arrays warn
            yield InteractiveShell.instance(config=config, user_module=module)
    finally:
        plt.close("all")
        InteractiveShell.clear_instance()
        sys.modules.pop(module.__name__, None)
        torch.set_num_threads(threads)
        forget_kinds(module.__name__)
        vars(module).clear()  # free tables and models


def run(notebook, values, folder, **variables):
    """Run the cells as `lab run` would, with results in `folder`. Returns the outputs, [{MIME type: data}].

    `variables` are those of `lab.runs.environment`, such as store. If a cell raises an error, a note on the error
    gives the cell number.
    """
    folder.mkdir(parents=True, exist_ok=True)
    variables = {"notebook": notebook, "run": folder, "jobs": 1, "progress": os.devnull} | variables
    injected, shown = PythonTranslator.codify(values), []
    with shell() as here, patch.dict(os.environ, {f"LAB_{name.upper()}": str(x) for name, x in variables.items()}):
        for number, (kind, tags, source) in enumerate(files.cells_of(notebook), 1):
            for text in [source, *([injected] if "parameters" in tags else [])] if kind == "code" else []:
                with capture_output() as captured:
                    ended = here.run_cell(text, store_history=True)
                if error := ended.error_before_exec or ended.error_in_exec:
                    error.add_note(f"{notebook.name}, cell {number}")
                    raise error
                shown += [{"text/plain": captured.stdout}, *(output.data for output in captured.outputs)]
    return shown
