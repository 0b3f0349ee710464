"""The command `lab class`: what a class guessed and answered, beside what was measured."""

from pathlib import Path
from typing import Annotated

import typer

from lab.commands.arguments import refuse
from lab.commands.browse import Language, speaks
from lab.language import tr, using

app = typer.Typer(no_args_is_help=True, help="What a class guessed and answered, beside what was measured.")
FOLDER = "class"  # where the table and the figures stand, below the folder
COLOURS = {"holds": "C2", "fails": "C1", "undecided": "C7"}


@app.callback()
def front():
    """What a class guessed and answered, beside what was measured."""


@app.command()
def collect(
    folder: Annotated[Path, typer.Argument(help="With what students handed in: notebooks, or folders of results.")],
    language: Language = "en",
):
    """One table, class/guesses.csv, and one figure a lesson of all guesses in a folder, beside what was measured."""
    from lab import answers, figures
    from lab.engine import runs

    speaks(language)
    if not folder.is_dir():
        refuse(f"{folder} is no folder")
    with using(language):
        table, wrong = answers.collected(folder)
        for path, why in wrong:
            typer.echo(f"{path}: {why}", err=True)
        if table.empty:
            refuse(
                tr(
                    "no notebook in {folder} holds guesses: students run it to its last cell, and save it",
                    folder=folder,
                )
            )
        runs.write_table(folder / FOLDER / "guesses.csv", table)
        typer.echo(folder / FOLDER / "guesses.csv")
        for exercise, rows in table.groupby("exercise"):
            picture = figures.draw(draw, rows)
            stem = folder / FOLDER / f"guesses-{exercise.replace('.', '-')}"
            figures.save(
                picture, stem, tr("For each sentence of {exercise}, how many guessed what.", exercise=exercise)
            )
            typer.echo(f"{stem}.png")
            typer.echo("\n".join(counted(rows)))


def counted(rows):
    """A line for each sentence: how many guessed and answered what was measured."""
    from lab.ledger import claims

    yield tr("{n} students", n=rows.student.nunique())
    for name, mine in rows.groupby("claim", sort=False):
        told = [found(mine, " ")]
        if mine.measured.iloc[0]:
            guessed, said = mine[mine.guess != ""], mine[mine.answer != ""]
            right = {"right": (guessed.guess == guessed.measured).sum(), "n": len(guessed)}
            told += [tr("{right} of {n} guessed so", **right)] * bool(len(guessed))
            right = {"right": (said.answer == said.measured).sum(), "n": len(said)}
            told += [tr("{right} of {n} answered so", **right)] * bool(len(said))
        yield from (claims.ledger()[name].sentence, f"    {' · '.join(told)}")


def found(rows, between):
    """The lab's verdict and effect on the claim of these rows."""
    from lab.ledger import cards, numerals

    first = next(rows.itertuples())
    return f"{cards.words()[first.verdict]}{between}{numerals.effect_of(first)}".strip()


def draw(rows):
    """A bar for each sentence, in parts of those who guessed alike; what was measured stands beside it."""
    import textwrap

    import matplotlib.pyplot as plt

    from lab import answers
    from lab.language import language
    from lab.ledger import claims

    known, words = claims.ledger(), answers.words()
    by = rows[rows.guess != ""].groupby(["claim", "guess"], sort=False).size().unstack(fill_value=0)
    by = by.reindex(columns=list(words), fill_value=0).reindex(list(dict.fromkeys(rows.claim)), fill_value=0)
    wide = 26 if language() == "zh" else 52
    fig, axis = plt.subplots(figsize=(9.6, 1.2 + 0.75 * len(by)))
    left = by.iloc[:, 0] * 0
    for word in words:
        axis.barh(range(len(by)), by[word], left=left, color=COLOURS[word], label=words[word], height=0.6)
        for y, (start, n) in enumerate(zip(left, by[word], strict=True)):
            axis.text(start + n / 2, y, n or "", ha="center", va="center", color="w", weight="bold")
        left += by[word]
    axis.set_yticks(range(len(by)), ["\n".join(textwrap.wrap(known[name].sentence, wide)) for name in by.index])
    for y, name in enumerate(by.index):
        mine = rows[rows.claim == name]
        colour = COLOURS.get(mine.measured.iloc[0], "k")
        axis.text(1.02, y, found(mine, "\n"), transform=axis.get_yaxis_transform(), va="center", color=colour)
    axis.set(title=tr("What did the class expect, and what was measured (on the right)?"), xlabel=tr("students"))
    axis.invert_yaxis(), axis.grid(False), axis.xaxis.get_major_locator().set_params(integer=True)
    fig.legend(loc="outside lower right", ncols=3)
