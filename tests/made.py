"""A small test project about dice and coins: notebooks, parameter files, claims and runs.

Its trials take milliseconds. The fixture `project` (conftest.py) sets LAB_PROJECT to it, for all tests of a file, the
function `project` for one test.
"""

import cells
import nbformat
import yaml
from gate import SOURCE
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from lab import files, parameters

ABOVE = {"question": "four over one", "direction": "above", "bar": 0.1}
EXACTLY = {"question": "sum minus one", "direction": "within", "bar": 1e-9}


def folded(english, chinese):
    """A bilingual text, as in a notebook."""
    return f"{english}\n\n<details><summary>中文</summary>\n\n{chinese}\n\n</details>"


def entry(name, kind="comparison", **fields):
    """A claim as in a YAML file."""
    words = name.replace("-", " ")
    says = {"place": "chapter §1.2", "en": f"It is said that {words}.", "zh": f"据称 {words}。"}
    return {"id": name, "kind": kind, "says": [says]} | (EXACTLY if kind == "exact" else ABOVE) | fields


def write_notebook(path, sources):
    """Write a notebook of (tag, source) pairs; sources that start with # are Markdown."""
    book = new_notebook(metadata={"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}})
    for number, (tag, source) in enumerate(sources):
        new = new_markdown_cell if source.startswith("#") else new_code_cell
        book.cells.append(new(source.strip("\n"), id=f"cell-{number}", metadata={"tags": [tag] if tag else []}))
    files.write_text(path, nbformat.writes(book) + "\n")


# Notebooks that run

DICE, COINS = "01_dice", "02_coins"
THROWS = 8  # number of trials of the dice notebook at smoke size
PARAMETERS = """
from typing import Annotated, Literal

from pydantic import Field, PositiveFloat, PositiveInt

profile: Literal["quick", "smoke"] = "quick"  # smoke runs are not judged
results: str = ""  # folder for the results; empty: results/interactive
text: str = ""  # read by nobody
seeds: Annotated[PositiveInt, Field(le=10_000)] = 4  # throws of each kind of dice
sides: list[PositiveInt] = [4, 8, 12]  # of the dice
dice: PositiveInt = 2  # thrown at once
scale: PositiveFloat = 0.5  # of what is shown
"""
CHECKS = """
for n in sides:
    assert n % dice == 0, f"sides: {n} is no multiple of dice {dice}"
"""
TRIAL = """
def thrown(seed: int, sides: int, dice: int, scale: float):
    import random

    pass_gate("GATE")
    total = sum(random.Random(seed).choices(range(1, sides + 1), k=dice))
    return [{"step": step, "mean": scale * total / dice / step} for step in (1, 3)]
"""
SWEEP = """
grid = {"seed": list(range(seeds)), "sides": sides, "dice": dice, "scale": scale}
throws = study.sweep(thrown, grid)
shown = ["seed", "sides", "dice", "scale", "mean"]
first = study.table("throws", throws[throws.step == 1][shown])
"""
DRAW = '''
def draw(table):
    """The mean of dice, by their sides."""
    by_arm(plt.subplots()[1], table, "sides", "mean", "dice")
'''
NOTEBOOKS = {
    DICE: [
        ("", folded("# 1.1 What do dice show?\n\n*How many?*\n\nNothing is trained here.",
                    "# 1.1 骰子掷出多少？\n\n*多少个？*\n\n这里不训练。")),
        ("parameters", PARAMETERS),
        ("checks", CHECKS),
        ("", "import matplotlib.pyplot as plt\n\nimport lab\nfrom lab.charts import by_arm"),
        ("", folded("## Guess first\n\nTwo sentences are tested below.", "## 先猜\n\n下面检验两句话。")),
        ("", 'study = lab.study("1.1", globals())\nstudy.claims()'),
        ("", folded("## The throws", "## 投掷")),
        ("", SOURCE),
        ("", TRIAL),
        ("", SWEEP),
        ("", DRAW),
        ("answer", 'study.figure("means", first, draw)'),
        ("answer", 'study.judge("dice-more-sides", first, figure="means")'),
        ("answer", 'study.judge("dice-count", float(len(first)) / len(sides) / seeds, table="throws")'),
        ("answer", "study.finish()"),
    ],
    COINS: [
        ("", "# 1.2 What do coins show?"),
        ("parameters", 'from typing import Literal\n\nprofile: Literal["quick", "smoke"] = "quick"\n'
                       'results: str = ""  # folder\ntosses: int = 3  # of a coin\n'),
        ("", 'import lab\n\nstudy = lab.study("1.2", globals())'),
        ("", 'study.judge("coins-two", 2.0)\nstudy.finish()'),
    ],
}  # fmt: skip
FILES = {
    f"smoke/{DICE}": {"profile": "smoke", "seeds": 4, "sides": [4, 8]},
    f"smoke/{COINS}": {"profile": "smoke", "tosses": 1},
}
BY_SIDES = {
    "question": "8 sides minus 4", "direction": "above", "bar": 0, "because": "more sides, more points",
    "measure": "mean", "compare": {"sides": [8, 4]}, "same": ["scale"],
}  # fmt: skip
CLAIMS = {
    DICE: [
        entry("dice-more-sides", unit="points", **BY_SIDES),
        entry("dice-count", "exact", unit="throws", question="throws of each", value=1.0, bar=0),
    ],
    COINS: [entry("coins-two", "exact", question="sides of a coin", value=2.0, bar=0)],
}


def write(folder):
    """Write the project to a folder. Returns the folder. If it contains `gate`, trials wait there."""
    gated = [(tag, source.replace("GATE", str(folder / "gate"))) for tag, source in NOTEBOOKS[DICE]]
    for stem, sources in (NOTEBOOKS | {DICE: gated}).items():
        write_notebook(folder / "notebooks" / f"{stem}.ipynb", sources)
    for name, values in FILES.items():
        files.write_text(folder / "experiments" / f"{name}.yaml", yaml.safe_dump(values))
    for stem, entries in CLAIMS.items():
        text = yaml.safe_dump(entries, allow_unicode=True, sort_keys=False)
        files.write_text(folder / "experiments" / "claims" / f"{stem}.yaml", text)
    (folder / "results").mkdir()
    return folder


def ran(folder, place="quick"):
    """Run the dice notebook in this process. Returns its folder in results/`place`."""
    notebook, run = folder / "notebooks" / f"{DICE}.ipynb", folder / "results" / place / DICE
    cells.run(notebook, parameters.validate(notebook), run)
    files.write_text(run / "notebook.ipynb", notebook.read_text("utf-8"))
    return run


def project(root, monkeypatch):
    """Write the project below `root` and set LAB_PROJECT. Returns the folder."""
    root = write(root / "project")
    monkeypatch.setenv("LAB_PROJECT", str(root))
    return root
