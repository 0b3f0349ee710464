"""Run cells in new processes, one after the other, to test how an edit in between affects a sweep.

    python fresh_kernels.py < cases.json > results.json

A case is a list of steps. A step is a list of cells, [file name, text] pairs and edits of files; the
files are written to the folder of the case. Each step runs in a new process: it runs its cells in
IPython, then sweeps the function `trial` at seed 0. Its result is the value `v` of the row, or the
error. The processes are forked from one that has imported slow packages but not lab.
"""

import json
import os
import shutil
import sys
import tempfile
import time
import traceback
from pathlib import Path

import IPython.core.interactiveshell
import matplotlib.pyplot
import numpy
import pandas
import pydantic
import scipy.stats
import torch

assert all([matplotlib, numpy, pandas, pydantic, scipy, torch])  # imported only to be preloaded
PROJECT = Path(__file__).parents[1]


def swept(cells, folder):
    """Run the cells and the sweep in this process. Returns the value of the trial."""
    os.chdir(folder)
    sys.path[:0] = [str(folder)]
    sys.dont_write_bytecode = True
    for cell in cells:
        if isinstance(cell, list):
            path = folder / cell[0]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(cell[1])
    time.sleep(0.02)  # files must be older than lab.STARTED
    import lab

    assert Path(lab.__file__).is_relative_to(folder if (folder / "lab").exists() else PROJECT)
    from lab import trials

    shell = IPython.core.interactiveshell.InteractiveShell.instance()
    for cell in cells:
        if isinstance(cell, str):
            shell.run_cell(cell, store_history=True).raise_error()
    place = trials.Place("kernel", folder / "store")
    return trials.sweep(shell.user_ns["trial"], {"seed": [0]}, place).v.iloc[0].item()


def in_a_process(cells, folder):
    """The result of `swept` in a forked process, or its error as text."""
    reads, writes = os.pipe()
    if os.fork() == 0:
        sys.stdout = sys.stderr = open(os.devnull, "w")
        torch.set_num_threads(1)
        try:
            result = swept(cells, folder)
        except BaseException as error:
            result = f"{type(error).__name__}: {error}\n{traceback.format_exc()}"
        os.write(writes, json.dumps(result).encode()[:60000])
        os._exit(0)
    os.close(writes)
    with os.fdopen(reads) as answer:
        return json.loads(answer.read() or '"the process died"')


def run(steps, with_lab):
    """The results of a case; `with_lab` gives it a copy of the package to edit."""
    folder = Path(tempfile.mkdtemp(prefix="kernels-"))
    if with_lab:
        shutil.copytree(PROJECT / "lab", folder / "lab", ignore=shutil.ignore_patterns("__pycache__"))
    try:
        results = []
        for cells in steps:
            edits = [cell for cell in cells if isinstance(cell, dict)]
            for edit in edits:
                path = folder / edit["file"]
                text = path.read_text() if path.exists() else ""
                assert edit["old"] in text, f"{path} lacks {edit['old']}"
                path.write_text(text.replace(edit["old"], edit["new"], 1) if edit["old"] else edit["new"])
            rest = [cell for cell in cells if not isinstance(cell, dict)]
            results.append(in_a_process(rest, folder))
        return results
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    cases = json.load(sys.stdin)
    json.dump({name: run(**case) for name, case in cases.items()}, sys.stdout)
