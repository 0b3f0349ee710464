"""In a real browser (Chromium, where it is installed): the book, and the cheapest notebook in JupyterLab."""

import contextlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

import nbformat
import pytest
import yaml

from lab import book
from lab.book import runs
from lab.engine import parameters
from lab.engine.runs import Options, project_root

sync_api = pytest.importorskip("playwright.sync_api")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = [pytest.mark.slow, pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")]
FINISHED = runs.finished_runs()
SETTLED = "async () => { await window.MathJax?.startup?.promise; await document.fonts.ready; }"


@pytest.fixture(scope="module")
def browser():
    with sync_api.sync_playwright() as playwright:
        options = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
        yield playwright.chromium.launch(executable_path=CHROMIUM, args=options)


@pytest.fixture
def page(browser):
    """A page that keeps what went wrong on it: failed requests, requests to elsewhere, errors of scripts."""
    page = browser.new_page(viewport={"width": 1400, "height": 1000})
    page.trouble = []
    page.on("console", lambda message: page.trouble.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: page.trouble.append(str(error)))
    page.on("requestfailed", lambda request: page.trouble.append(f"{request.failure}: {request.url}"))
    yield page
    page.close()


# The book


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    if not FINISHED:
        pytest.skip("no results to make a book of")
    return book.build(tmp_path_factory.mktemp("book") / "html").parent


def test_every_page_opens_without_an_error_or_a_network(built, page):
    page.on("request", lambda r: page.trouble.append(r.url) if r.url.startswith("http") else None)
    for path in sorted(built.rglob("*.html")):
        if "_static" not in path.parts:
            page.goto(path.as_uri(), wait_until="networkidle")
            page.evaluate(SETTLED)  # what loads when the next page is asked for is cut short, and counts as failed
            assert page.trouble == [], path.relative_to(built)


def test_formulas_are_rendered(built, page):
    page.goto((built / "exercises" / f"{FINISHED[0].stem}.html").as_uri())
    page.wait_for_selector("mjx-container mjx-math")
    assert "$" not in page.locator("article p").first.inner_text()


def test_the_scoreboard_searches_and_filters(built, page):
    page.goto((built / "scoreboard.html").as_uri())
    rows = page.locator("table.dataTable tbody tr")
    rows.first.wait_for()
    everything = page.locator(".dt-info").inner_text()
    page.locator(".dt-search input").fill("heads-params-independent")
    page.wait_for_function("document.querySelectorAll('table.dataTable tbody tr').length === 1")
    assert "heads-params-independent" in rows.inner_text()
    page.locator(".dt-search input").fill("")
    page.locator("table.dataTable thead input").nth(1).press_sequentially("disproved")
    page.wait_for_function("before => document.querySelector('.dt-info').innerText !== before", arg=everything)
    assert {"disproved"} == set(page.locator("table.dataTable tbody td:nth-child(2)").all_inner_texts())


def test_a_figure_opens_its_table(built, page):
    page.goto((built / "gallery.html").as_uri())
    page.locator("article .sd-card").first.click()
    run = FINISHED[0]
    assert re.search(rf"tables/{run.stem}.html#[\w-]+$", page.url)
    section = page.locator(f"section#{page.url.split('#')[1]}")
    section.locator("img").wait_for()
    assert section.locator("img").count() == 1 and section.locator("table.lab tr").count() > 1


def test_the_book_turns_dark_and_speaks_chinese(built, page):
    page.goto((built / "index.html").as_uri())
    colour = "getComputedStyle(document.body).backgroundColor"
    page.evaluate("document.documentElement.dataset.theme = 'light'")
    light = page.evaluate(colour)
    page.evaluate("document.documentElement.dataset.theme = 'dark'")
    assert page.evaluate(colour) != light
    page.locator("article a", has_text="中文").first.click()
    assert re.search("[\u4e00-\u9fff]", page.locator("article h1").inner_text())


# JupyterLab


@pytest.fixture(scope="module")
def jupyterlab():
    """The address of a JupyterLab on this machine, its folder inside the project, its settings its own."""
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
        Options(jobs=1, store=folder / ".trials").write(folder)
        server = subprocess.Popen(
            command, env=os.environ | own, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=folder
        )
        stack.callback(lambda: (server.terminate(), server.wait(30)))
        for _ in range(120):
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"http://127.0.0.1:{port}/api", timeout=2)
                break
            time.sleep(0.5)
        yield f"http://127.0.0.1:{port}", folder


def at_smoke_sizes(notebook, results):
    """The notebook with the values of the smoke profile, and the folder for its results, in its parameters cell."""
    book = nbformat.read(notebook, 4)
    values = yaml.safe_load((project_root() / "experiments" / "smoke" / f"{notebook.stem}.yaml").read_text("utf-8"))
    for cell in book.cells:
        if "parameters" in cell.metadata.get("tags", ()):
            chosen = values | {"results": str(results)}
            cell.source += "".join(f"\n{name} = {value!r}" for name, value in chosen.items())
    return book


CELLS = "window.jupyterapp.shell.currentWidget.content.widgets.filter(c => c.model.type === 'code')"


def test_a_notebook_runs_in_jupyterlab_and_its_slider_moves_its_figure(jupyterlab, page):
    notebook = parameters.notebook_of("1.6")
    address, folder = jupyterlab
    nbformat.write(at_smoke_sizes(notebook, folder), folder / notebook.name)
    page.goto(f"{address}/lab/tree/{notebook.name}?reset&token=test")
    page.wait_for_function(
        "window.jupyterapp?.shell.currentWidget?.sessionContext?.session?.kernel?.status === 'idle'", timeout=90_000
    )
    page.evaluate("window.jupyterapp.commands.execute('notebook:run-all-cells')")
    done, failed = "c => c.model.executionCount", "c => c.model.outputs.toJSON().some(o => o.output_type === 'error')"
    page.wait_for_function(f"{CELLS}.every({done}) || {CELLS}.some({failed})", timeout=240_000)
    outputs = json.loads(page.evaluate(f"JSON.stringify({CELLS}.flatMap(c => c.model.outputs.toJSON()))"))
    assert [output["evalue"] for output in outputs if output["output_type"] == "error"] == []
    assert any("image/png" in output.get("data", {}) for output in outputs)
    page.evaluate("""() => {
        const content = window.jupyterapp.shell.currentWidget.content
        const i = content.widgets.findIndex(c => c.model.sharedModel.source.includes('study.play'))
        content.activeCellIndex = i
        content.scrollToItem(i)
    }""")
    picture = page.locator(".widget-interact img").first
    picture.wait_for(timeout=20_000)
    before = picture.get_attribute("src")
    slider = page.locator(".widget-interact .noUi-handle").first
    slider.focus()
    for key in ("ArrowRight", "ArrowLeft", "ArrowLeft"):  # one of them moves, wherever the slider stands
        slider.press(key)
        with contextlib.suppress(sync_api.TimeoutError):
            page.wait_for_function(
                "before => { const i = document.querySelector('.widget-interact img'); return i && i.src !== before }",
                arg=before, timeout=5_000,
            )  # fmt: skip
            break
    assert page.locator(".widget-interact img").first.get_attribute("src") != before
    page.evaluate("window.jupyterapp.shell.currentWidget.sessionContext.shutdown()")
