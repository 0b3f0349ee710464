"""A project of the tests' own: two notebooks, a ledger with claims of every kind, and runs of them."""

import json

import nbformat
import pandas as pd
import yaml
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from lab.engine import runs
from lab.language import folded
from lab.ledger.claims import Verdict, ledger

ABOVE = {"compares": "four over one", "compares_zh": "四比一", "direction": "above", "threshold": 0.1}
EXACTLY = {"compares": "sum minus one", "direction": "equal", "tolerance": 1e-9}
ARMS = {"measure": "score", "compare": {"heads": [4, 1]}, "sizes": ["width"]}
FINDING = {
    "supported": "Four heads gain {effect:.1f}, {times:.1f} times.",
    "refuted": "Four heads gain nothing: {low:.1f}.",
}
FOUND = {"supported": "四个头多得 {effect:.1f}，为 {times:.1f} 倍。", "refuted": "四个头没有多得：{low:.1f}。"}


def entry(name, kind="comparison", exercise="1.1", **fields):
    """A claim as it stands in a file; None takes a field away."""
    words = name.replace("-", " ")
    said = {
        "id": name, "exercise": exercise, "kind": kind, "priority": "B", "sources": ["chapter §1.2"],
        "claim": f"It is said that {words}.", "claim_zh": f"据称 {words}。", "metric": "score", "place": "lesson",
        "prediction": EXACTLY if kind in ("theorem", "arithmetic") else ABOVE,
    }  # fmt: skip
    return {field: value for field, value in (said | fields).items() if value is not None}


LEDGER = {
    "01_first": [
        entry("rows-sum-to-one", "theorem"),
        entry("two-parts", "arithmetic", prediction={"compares": "parts", "direction": "equal", "threshold": 2}),
        entry("four-win", unit="points", arms=ARMS, reference={"heads": 4}, needs={"regime": {"width": [8, None]}},
              finding=FINDING, finding_zh=FOUND),
        entry("four-win-early", unit="relative change", values={"heads": [1, 4]}),
        entry("how-many", "question"),
    ],
    "02_second": [
        entry("one-is-faster", exercise="1.2", place="appendix", unit="points", needs={"machine": True}),
        entry("one-is-smaller", exercise="1.2", place="appendix", prediction=ABOVE | {"revised": "before: by half"}),
        entry("some-day", "question", exercise="1.2", place="appendix", prediction=None, open="a larger machine"),
    ],
    "beyond": [entry("elsewhere", exercise="beyond", place=None, prediction=None, expected="more")],
}  # fmt: skip
PARAMETERS = 'profile: str = "quick"\nheads: list = [1, 4]\nseeds: int = 5\nresults: str = ""'
RUN = {
    "status": "done", "profile": "quick", "parameters": {"profile": "quick", "heads": [1, 4]}, "own_parameters": {},
    "seconds": 60.0, "core_seconds": 120.0, "commit": "c0ffee", "changes": False,
    "machine": "A machine, 2 cores, Linux x86_64", "card": "", "device": "cpu", "versions": {"torch": "2"},
}  # fmt: skip
PIXEL = bytes.fromhex("89504e470d0a1a0a0000000d4948445200000001000000010802000000907753de0000000c49444154789c63f8ff"
                      "ff3f0005fe02fe0def46b80000000049454e44ae426082")  # fmt: skip


def write_ledger(root, ledger=LEDGER):
    """experiments/claims of a project, a file a notebook; returns the folder."""
    folder = root / "experiments" / "claims"
    for stem, entries in ledger.items():
        runs.write_text(folder / f"{stem}.yaml", yaml.safe_dump(entries, allow_unicode=True, sort_keys=False))
    return folder


def notebook(title, question, chinese, *cells):
    opening = folded(f"# {title}\n\n*{question}*", f"# 第一\n\n*{chinese}*\n\n训练。")
    declared = new_code_cell(PARAMETERS, metadata={"tags": ["parameters"]})
    return new_notebook(cells=[new_markdown_cell(opening), declared, *map(new_code_cell, cells)])


def project(root, monkeypatch, ledger=LEDGER):
    """Make a project in the folder `root` and let the lab believe that it lives there; returns the folder."""
    root = root / "project"
    (root / "notebooks").mkdir(parents=True)
    for stem, number in (("01_first", 1), ("02_second", 2)):
        drawn = 'study.figure("drawn", rows, draw)\nstudy.figure("other", rows, draw)'
        book = notebook(f"1.{number} {stem[3:].title()}", "How many?", "多少个？", f'study("1.{number}")', drawn)
        nbformat.write(book, root / "notebooks" / f"{stem}.ipynb")
        for profile in ("smoke", "full"):
            runs.write_text(root / "experiments" / profile / f"{stem}.yaml", f"profile: {profile}\n")
    write_ledger(root, ledger)
    monkeypatch.setenv("LAB_PROJECT", str(root))
    return root


def verdict(name, word="supported", effect=1.5, **fields):
    """A verdict on a claim of the ledger, with a figure and its table."""
    about = ledger()[name]
    said = {"low": effect - 1, "high": effect + 1, "n": 5, "unit": about.unit, "threshold": about.compared}
    said |= {"figure": "drawn", "table": "drawn"} | fields
    return Verdict(id=name, exercise=about.exercise, verdict=word, effect=effect, **said)


def finish(root, *verdicts, place="quick/01_first", **run):
    """A finished run with these verdicts in results/`place`, with the figures and tables that they name."""
    folder = root / "results" / place
    for each in verdicts:
        if each.figure:
            (folder / "figures").mkdir(parents=True, exist_ok=True)
            (folder / "figures" / f"{each.figure}.png").write_bytes(PIXEL)
        if each.table:
            runs.write_table(folder / "tables" / f"{each.table}.csv", pd.DataFrame({"score": [0.1]}))
    table = pd.DataFrame([each.model_dump() for each in verdicts], columns=list(Verdict.model_fields))
    runs.write_table(folder / "verdicts.csv", table.astype({"n": "Int64"}))
    source = root / "notebooks" / f"{folder.name}.ipynb"
    if source.exists():
        runs.write_text(folder / "notebook.ipynb", json.dumps(json.loads(source.read_text("utf-8"))))
    runs.write_run(folder, RUN | {"exercise": verdicts[0].exercise if verdicts else "1.1"} | run)
    return folder
