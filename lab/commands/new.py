"""The command `lab new`: a notebook of one's own that runs at once, and the ledger of its claims beside it."""

from pathlib import Path
from typing import Annotated

import typer

from lab.commands.arguments import refuse
from lab.language import languages, tr, using

LEDGER = """\
# The claims of {name}.ipynb, written before the run. Fields: the book's page "Your own idea", or lab/ledger/claims.py.
- id: {slug}-holds-beyond
  claim: {claim}
  metric: share of right symbols at length 16, after training up to 8
  prediction:
    compares: mine - rotary
    direction: above  # or below; or equal, with a tolerance
    threshold: 0.05
    because: a difference of one symbol in twenty would be seen by a user
  arms: {{measure: accuracy, rows: {{length: 16}}, compare: {{arm: [mine, rotary]}}, sizes: [d_model, steps]}}
  reference: {{arm: rotary}}  # it must have learned before anything is compared
  needs:
    learned: {{measure: learned, above: 0.95}}
    headroom: {{measure: accuracy, floor: 0.18, ceiling: 1.0}}
    equal budget: {{same: [data_hash, steps, batch]}}
    no answer: {{told: leak}}
    held out: {{rule: every test text is drawn anew}}
"""

PARAMETERS = """\
seeds: int = 5  # paired runs of each arm; at least 2
steps: int = 900  # optimiser steps
d_model: int = 64  # width; multiple of 8
results: str = ""  # folder for the results; empty: lab-results beside the ledger
home: str = {home!r}  # folder of the ledger, for who runs this from elsewhere"""

IDEA = """\
import matplotlib.pyplot as plt
import torch

import lab
from lab.charts import by_arm
from lab.language import tr
from lab.models.positions import Position
from lab.recipes.comparison import trained


class Mine(Position, kind="{slug}"):
    \"\"\"Scores fall with the square root of the distance.\"\"\"

    def bias(self, q_len, k_len):
        t = torch.arange(k_len)
        return -(t[k_len - q_len :, None] - t).abs().float().sqrt()[None]


study = lab.study(globals(), ledger=f"{{home}}/{name}.yaml")
study.claims()"""

RUN = """\
arms = {{"rotary": "rotary", "mine": "{slug}"}}
task = {{"kind": "copy", "symbols": 16, "longest": 8}}
sizes = {{"d_model": d_model, "n_layers": 2, "n_heads": 4}}
schedule = {{"steps": steps, "batch": 64, "learning_rate": 0.004}}
same = {{"task": task, "schedule": schedule, "lengths": [8, 10, 12, 16], "measure": "accuracy", "pass_at": 0.95}}
points = [same | {{"seed": s, "config": sizes | {{"position": kind}}}} for kind in arms.values() for s in range(seeds)]
rows = study.sweep(trained, points)
names = {{kind: name for name, kind in arms.items()}}
rows["arm"] = [names[config["position"]] for config in rows.config]
end = rows[rows.step == rows.steps].drop(columns=[*same, "config"]).assign(d_model=d_model)
learned = end[end.length == 8].set_index(["arm", "seed"]).accuracy
end["learned"] = learned.loc[list(zip(end.arm, end.seed))].to_numpy()"""

FIGURE = """\
def draw(table):
    _, axes = plt.subplots(figsize=(5.5, 3.2))
    words = {"title": "Who still copies beyond length 8?", "xlabel": "length", "ylabel": "share of right symbols"}
    by_arm(axes, table, "length", "accuracy", "arm", **words)


study.figure("lengths", end, draw, caption="Right symbols by length, a line for each encoding.")"""

CARD = """\
study.judge("{slug}-holds-beyond", end, figure="lengths")
study.finish()"""


def new(
    name: Annotated[str, typer.Argument(help="Such as mine, or ideas/mine: the folder is made.")],
    language: Annotated[str, typer.Option(envvar="LAB_LANGUAGE", help="Of its prose: en or zh.")] = "en",
):
    """Make NAME.ipynb (parameters, question, experiment, card) and NAME.yaml, its claims. Both run as they are."""
    import re

    path = Path(name).expanduser().resolve()
    path = path.with_suffix("") if path.suffix in (".ipynb", ".yaml") else path
    slug = re.sub(r"[^a-z0-9]+", "-", path.name.lower()).strip("-")
    if language not in languages():
        refuse(f"--language {language!r}: one of {', '.join(languages())}")
    if not slug:
        refuse(f"{name!r}: a name with a letter or digit of ASCII is wanted")
    files = [path.with_name(f"{path.name}.ipynb"), path.with_name(f"{path.name}.yaml")]
    if there := [str(file) for file in files if file.exists()]:
        refuse(f"{' and '.join(there)} stays as it is: choose another name")
    with using(language):
        write(files, path.name, slug)
    typer.echo("\n".join(map(str, files)))
    typer.echo(f"to run it: lab run {files[0]}, or open it in JupyterLab")


def write(files, name, slug):
    """The two files."""
    from lab.engine.runs import write_text

    claim = tr("My encoding still copies at twice the length where rotary does not.")
    write_text(files[1], LEDGER.format(name=name, slug=slug, claim=claim))
    write_text(files[0], notebook(name, slug, files[0].parent))


def notebook(name, slug, folder):
    """The text of the notebook, in the language in use."""
    import nbformat
    from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, writes

    def code(source, *tags):
        return new_code_cell(source, metadata={"tags": list(tags)} if tags else {})

    title = tr("*What do I want to know, and what do I expect?*\n\nThe expectation stands in `{name}.yaml`, with the "
               "smallest difference that would matter. Write it before you run.", name=name)  # fmt: skip
    cells = [
        new_markdown_cell(f"# {name}\n\n{title}"),
        code(PARAMETERS.format(home=str(folder)), "parameters"),
        new_markdown_cell(tr("## The idea\n\nA variant is one class. Any seam takes one: Position, Mixer, Mask, Score, "
                             "FeedForward, Norm, Residual …")),
        code(IDEA.format(name=name, slug=slug)),
        new_markdown_cell(tr("## The experiment\n\nEvery arm learns the same texts, seed by seed. What has run once is "
                             "kept; what you edit runs again.")),
        code(RUN.format(slug=slug)),
        new_markdown_cell(tr("## The figure")),
        code(FIGURE),
        new_markdown_cell(tr("## The verdict\n\nGates come first: did the reference learn, and was it fair?")),
        code(CARD.format(slug=slug)),
    ]  # fmt: skip
    for number, cell in enumerate(cells):
        cell.id = str(number)
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    book = new_notebook(cells=cells, metadata={"kernelspec": kernel})
    nbformat.validate(book)
    return writes(book) + "\n"
