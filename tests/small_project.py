"""A project of the tests' own, named by LAB_PROJECT: two notebooks in the lab's shape whose trials take milliseconds,
their parameter files and claims."""

import linecache
import sys
from types import ModuleType

import nbformat
import yaml
from gate import SOURCE
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from lab.engine import parameters, runs
from lab.language import folded

DICE = "01_dice"
THROWS = 8  # trials of its sweep in smoke
PARAMETERS = """
profile: str = "quick"  # smoke runs are not judged; one of smoke, quick, full
results: str = ""  # folder for the results; empty: results/interactive
text: str = ""  # read by nobody; a file or folder, may be empty
seeds: int = 4  # throws of each kind of dice; at most 10000
sides: list = [4, 8, 12]  # of the dice
dice: int = 2  # thrown at once
scale: float = 0.5  # of what is shown
"""
DECLARED = {"profile": "quick", "results": "", "text": "", "seeds": 4, "sides": [4, 8, 12], "dice": 2, "scale": 0.5}
CHECKS = """
from lab.measure.memory import within_memory

for n in sides:
    assert n % dice == 0, f"sides: {n} is no multiple of dice {dice}"
within_memory(lambda seeds, sides, dice: 8 * seeds * sides * dice, seeds=seeds, sides=sides, dice=dice)
"""
TRIAL = """
def thrown(seed: int, sides: int, dice: int, scale: float):
    import random

    pass_gate("GATE")
    total = sum(random.Random(seed).choices(range(1, sides + 1), k=dice))
    return [{"step": step, "mean": scale * total / dice / step} for step in (1, 3)]
"""
CELLS = (  # tag, source; what begins with # is Markdown
    ("", folded("# 1.1 What do dice show?\n\nNothing is trained here.", "# 1.1 骰子掷出多少？\n\n这里不训练。")),
    ("parameters", PARAMETERS),
    ("checks", CHECKS),
    ("", "import matplotlib.pyplot as plt\n\nimport lab\nfrom lab.charts import by_arm"),
    ("", folded("## Guess first\n\nTwo sentences are tested below.", "## 先猜\n\n下面检验两句话。")),
    ("", 'study = lab.study("1.1", globals())\nstudy.claims()'),
    ("", folded("## The throws", "## 投掷")),
    ("", SOURCE),
    ("", TRIAL),
    ("", 'grid = {"seed": list(range(seeds)), "sides": sides, "dice": dice, "scale": scale}\n'
         'throws = study.sweep(thrown, grid)\n'
         'shown = ["seed", "sides", "dice", "scale", "mean"]\n'
         'first = study.table("throws", throws[throws.step == 1][shown])'),
    ("", 'def draw(table):\n    """The mean of dice, by their sides.\n\n    骰子的平均点数，按面数。"""\n'
         '    by_arm(plt.subplots()[1], table, "sides", "mean", "dice")'),
    ("answer", 'study.figure("means", first, draw)'),
    ("answer", 'study.judge("dice-more-sides", first, figure="means")'),
    ("answer", 'study.judge("dice-count", float(len(first)) / len(sides) / seeds, table="throws")'),
    ("answer", "study.finish()"),
)  # fmt: skip
COINS = (
    ("", "# 1.2 What do coins show?"),
    ("parameters", 'profile: str = "quick"  # one of smoke, quick, full\nresults: str = ""  # folder\n'
                   "tosses: int = 3  # of a coin\n"),
    ("", 'import lab\n\nstudy = lab.study("1.2", globals())'),
    ("", 'study.judge("coins-two", 2.0)\nstudy.finish()'),
)  # fmt: skip
FILES = {
    "smoke/01_dice": {"profile": "smoke", "seeds": 4, "sides": [4, 8]},
    "full/01_dice": {"profile": "full", "seeds": 9},
    "smoke/02_coins": {"profile": "smoke", "tosses": 1},
    "full/02_coins": {"profile": "full", "tosses": 9},
}


def claim(name, exercise, kind, **fields):
    about = {"id": name, "exercise": exercise, "kind": kind, "priority": "B", "sources": ["chapter §1.1"]}
    about |= {"claim": f"It is so that {name}.", "claim_zh": f"断言：{name}。", "metric": "what dice show"}
    return about | {"place": "lesson"} | fields


CLAIMS = [
    claim(
        "dice-more-sides", "1.1", "comparison", unit="points",
        arms={"measure": "mean", "compare": {"sides": [8, 4]}, "sizes": ["dice"]},
        needs={"one model": {"same": ["scale"]}},
        prediction={"compares": "8 sides minus 4", "direction": "above", "because": "more sides, more points"},
    ),
    claim(
        "dice-count", "1.1", "arithmetic", unit="throws",
        prediction={"compares": "throws of each", "direction": "equal", "threshold": 1.0},
    ),
    claim(
        "coins-two", "1.2", "structure",
        prediction={"compares": "sides of a coin", "direction": "equal", "threshold": 2.0},
    ),
]  # fmt: skip


def write(folder):
    """Write the project to a folder, and return it. Where there is a folder `gate` in it, trials wait there."""
    for name, cells in ((DICE, CELLS), ("02_coins", COINS)):
        text = [(tag, source.strip("\n").replace("GATE", str(folder / "gate"))) for tag, source in cells]
        write_notebook(folder / "notebooks" / f"{name}.ipynb", text)
    for name, values in FILES.items():
        runs.write_text(folder / "experiments" / f"{name}.yaml", yaml.safe_dump(values))
    for name in ("errata", "glossary"):
        runs.write_text(folder / "experiments" / f"{name}.yaml", "[]\n")
    write_ledger(folder, CLAIMS)
    (folder / "results").mkdir()
    return folder


def write_notebook(path, cells):
    made = []
    for number, (tag, source) in enumerate(cells):
        new = new_markdown_cell if source.startswith("#") else new_code_cell
        made.append(new(source, id=f"cell-{number}", metadata={"tags": [tag] if tag else []}))
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    book = new_notebook(cells=made, metadata={"kernelspec": kernel})
    runs.write_text(path, nbformat.writes(book) + "\n")


def write_ledger(folder, claims):
    """A file of claims for each notebook."""
    for path in (folder / "notebooks").glob("*.ipynb"):
        mine = [each for each in claims if each["exercise"] == f"1.{int(path.stem[:2])}"]
        text = yaml.safe_dump(mine, allow_unicode=True)
        runs.write_text(folder / "experiments" / "claims" / f"{path.stem}.yaml", text)


def ran(folder, place="quick"):
    """The folder, in `place` of the results, of a run of the dice that took no kernel: its cells, in this process."""
    notebook, results = folder / "notebooks" / f"{DICE}.ipynb", folder / "results" / place
    runs.Options(jobs=1, headless=True, notebook=notebook).write(results)
    scope = vars(sys.modules.setdefault("typed_in_cells", ModuleType("typed_in_cells")))
    for number, (kind, tags, source) in enumerate(parameters.cells_of(notebook)):
        if kind == "code":
            name = f"<{DICE} {number}>"
            linecache.cache[name] = (len(source), None, source.splitlines(True), name)
            exec(compile(source, name, "exec"), scope)
        if "parameters" in tags:
            scope.update(parameters.of_profile(notebook, "quick"), results=str(results))
    (results / "options.json").unlink()
    runs.write_text(results / DICE / "notebook.ipynb", notebook.read_text("utf-8"))
    return results / DICE
