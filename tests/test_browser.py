"""JupyterLab in Chromium: notebooks, sliders and the training button."""

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

import nbformat
import pandas as pd
import pytest
import yaml
from nbformat.v4 import new_code_cell, new_notebook

from lab import files
from lab.files import project_root

sync_api = pytest.importorskip("playwright.sync_api")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = [pytest.mark.slow, pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")]


@pytest.fixture(scope="module")
def browser():
    with sync_api.sync_playwright() as playwright:
        options = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
        yield playwright.chromium.launch(executable_path=CHROMIUM, args=options)


@pytest.fixture
def page(browser):
    """A page that records failed requests and script errors."""
    page = browser.new_page(viewport={"width": 1400, "height": 1000})
    page.set_default_timeout(120_000)  # for busy machines
    page.trouble = []
    page.on("console", lambda message: page.trouble.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: page.trouble.append(str(error)))
    page.on("requestfailed", lambda request: page.trouble.append(f"{request.failure}: {request.url}"))
    yield page
    page.close()


# JupyterLab


@pytest.fixture(scope="module")
def jupyterlab():
    """(address, folder) of a local JupyterLab with temporary settings."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=project_root() / "results", prefix=".lab-")))
        own = {name: stack.enter_context(tempfile.TemporaryDirectory()) for name in
               ("JUPYTER_CONFIG_DIR", "JUPYTERLAB_SETTINGS_DIR", "JUPYTERLAB_WORKSPACES_DIR")}  # fmt: skip
        command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", "--ip=127.0.0.1",
                   f"--port={port}", "--IdentityProvider.token=test", "--LabApp.expose_app_in_browser=True",
                   "--ServerApp.port_retries=0", f"--ServerApp.root_dir={folder}"]  # fmt: skip
        own |= {"LAB_JOBS": "1", "LAB_STORE": str(folder / ".trials")}
        server = subprocess.Popen(
            command,
            env=os.environ | own,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=folder,
        )
        stack.callback(lambda: (server.terminate(), server.wait(30)))
        for _ in range(120):
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"http://127.0.0.1:{port}/api", timeout=2)
                break
            time.sleep(0.5)
        yield f"http://127.0.0.1:{port}", folder


def at_smoke_sizes(notebook, results):
    """The notebook with its smoke parameters and the results folder in the parameters cell."""
    book = nbformat.read(notebook, 4)
    values = yaml.safe_load((project_root() / "experiments" / "smoke" / f"{notebook.stem}.yaml").read_text("utf-8"))
    for cell in book.cells:
        if "parameters" in cell.metadata.get("tags", ()):
            chosen = values | {"results": str(results)}
            cell.source += "".join(f"\n{name} = {value!r}" for name, value in chosen.items())
    return book


CELLS = "window.jupyterapp.shell.currentWidget.content.widgets.filter(c => c.model.type === 'code')"


def run_all(page, address, name):
    """Open a notebook in JupyterLab and run its cells. Returns the outputs; fails if they contain an error."""
    page.goto(f"{address}/lab/tree/{name}?reset&token=test")
    page.wait_for_function("window.jupyterapp?.shell.currentWidget?.sessionContext?.session?.kernel?.status === 'idle'")
    page.evaluate("window.jupyterapp.commands.execute('notebook:run-all-cells')")
    done, failed = "c => c.model.executionCount", "c => c.model.outputs.toJSON().some(o => o.output_type === 'error')"
    page.wait_for_function(f"{CELLS}.every({done}) || {CELLS}.some({failed})", timeout=240_000)
    outputs = json.loads(page.evaluate(f"JSON.stringify({CELLS}.flatMap(c => c.model.outputs.toJSON()))"))
    assert [output["evalue"] for output in outputs if output["output_type"] == "error"] == []
    return outputs


def scroll_to(page, words):
    """Scroll to the cell whose source contains `words`, so that its widgets are rendered."""
    page.evaluate("""words => {
        const content = window.jupyterapp.shell.currentWidget.content
        const i = content.widgets.findIndex(c => c.model.sharedModel.source.includes(words))
        content.activeCellIndex = i
        content.scrollToItem(i)
    }""", words)  # fmt: skip


def shut_down(page):
    page.evaluate("window.jupyterapp.shell.currentWidget.sessionContext.shutdown()")


def test_slider_redraws_figure_in_jupyterlab(jupyterlab, page):
    notebook = files.notebook_of("1.6")
    address, folder = jupyterlab
    nbformat.write(at_smoke_sizes(notebook, folder), folder / notebook.name)
    outputs = run_all(page, address, notebook.name)
    assert any("image/png" in output.get("data", {}) for output in outputs)
    scroll_to(page, "study.play")
    picture = page.locator(".widget-output img").first
    picture.wait_for(timeout=20_000)
    before = picture.get_attribute("src")
    slider = page.locator(".widget-interact .noUi-handle").first
    slider.focus()
    for key in ("ArrowRight", "ArrowLeft", "ArrowLeft"):  # at least one of them moves the slider
        slider.press(key)
        with contextlib.suppress(sync_api.TimeoutError):
            page.wait_for_function(
                "before => { const i = document.querySelector('.widget-output img'); return i && i.src !== before }",
                arg=before, timeout=5_000,
            )  # fmt: skip
            break
    assert page.locator(".widget-output img").first.get_attribute("src") != before
    shut_down(page)


TURN = [
    "results: str = {results!r}",
    """
import matplotlib.pyplot as plt
import torch

import lab
from lab.models import ModelConfig, Transformer
from lab.tasks.sequences import Lookup
from lab.tasks.task import accuracy
from lab.training import TrainConfig, fit

study = lab.study("turn", globals())
""",
    """
def lookup(n_heads, steps, seed):
    task = Lookup(offsets=(1, 3), length=12)
    sizes = {"vocab_size": task.vocabulary, "block_size": task.length, "d_out": task.d_out}
    sizes |= {"d_model": 32, "n_layers": 1, "ffn": "none"}
    kinds = {"position": "learned", "initialization": {"kind": "fan-in", "embedding": 0.1}}
    model = Transformer(ModelConfig(n_heads=n_heads, **kinds, **sizes), seed=seed)
    fit(model, task, TrainConfig(steps=steps, learning_rate=5e-3, warmup=20), seed=seed)
    tokens, targets = task.batch(torch.Generator().manual_seed(10**6), 256)
    with torch.no_grad():
        return {"accuracy": accuracy(model(tokens), targets)}


grid = {"n_heads": [1, 2], "steps": [200], "seed": [0, 1]}
stored = study.table("stored", study.sweep(lookup, grid))
stored.to_csv("stored.csv")
""",
    """
def draw(rows):
    rows.to_csv("drawn.csv")
    _, ax = plt.subplots()
    ax.plot(stored.n_heads, stored.accuracy, "o")
    ax.plot(rows.n_heads, rows.accuracy, "*", ms=14)


study.live(lookup, draw, n_heads=[1, 2, 4], steps=[200, 10**6])
""",
]


def test_button_trains_after_an_interrupt(jupyterlab, page):
    """The task is two simultaneous lookups, which two heads learn with any seed and one head without FFN cannot."""
    address, folder = jupyterlab
    cells = [new_code_cell(source.strip("\n")) for source in TURN]
    cells[0].source = cells[0].source.format(results=str(folder))
    cells[0].metadata["tags"] = ["parameters"]
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3"}}
    nbformat.write(new_notebook(cells=cells, metadata=kernel), folder / "turn.ipynb")
    run_all(page, address, "turn.ipynb")
    scroll_to(page, "study.live")
    panel = page.locator(".widget-interact")
    train = panel.locator("button", has_text="Train now")
    heads, steps = (panel.locator("select").nth(i) for i in range(2))
    train.wait_for()

    heads.select_option("4")
    steps.select_option("1000000")
    train.click()
    sync_api.expect(train).to_be_disabled()
    page.evaluate("window.jupyterapp.commands.execute('notebook:interrupt-kernel')")
    sync_api.expect(train).to_be_enabled()
    assert not (folder / "drawn.csv").exists()

    heads.select_option("2")
    steps.select_option("200")
    train.click()
    panel.get_by_text("n_heads 2, steps 200, seed 3").wait_for()
    panel.locator("img").wait_for()
    stored, (drawn,) = (pd.read_csv(folder / "stored.csv"), pd.read_csv(folder / "drawn.csv").to_dict("records"))
    assert set(stored.n_heads) == {1, 2} and (drawn["n_heads"], drawn["steps"], drawn["seed"]) == (2, 200, 3)
    one, two = (stored.accuracy[stored.n_heads == count] for count in (1, 2))
    assert two.min() <= drawn["accuracy"] <= two.max() and one.max() < 0.9
    shut_down(page)
