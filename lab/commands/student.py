"""The command `lab student`: the lessons without their answers, and a student's answers beside the lab's."""

import ast
from pathlib import Path
from typing import Annotated

import typer

from lab.commands.arguments import refuse
from lab.commands.browse import Language, speaks
from lab.language import tr, using


def student(
    lessons: Annotated[list[str] | None, typer.Argument(help="1.4, 04 or 04_head_count; none: all lessons.")] = None,
    language: Language = "en",
    to: Annotated[Path, typer.Option(help="The folder for them.")] = Path("student"),
    compare: Annotated[Path | None, typer.Option(help="A student's notebook: its answers beside the lab's.")] = None,
):
    """Write the lessons without their answers: questions, definitions, "Your turn" and empty answer cells stay."""
    from lab.engine import parameters, runs

    speaks(language)
    with using(language):
        try:
            if compare:
                typer.echo(beside(compare))
                return
            chosen = [parameters.notebook_of(name) for name in lessons or []]
            for notebook in chosen or filter(answered, parameters.notebooks()):
                if not answered(notebook):
                    raise parameters.Refused(f"{notebook.stem} is no lesson yet: none of its cells is tagged `answer`")
                if (path := to / notebook.name).exists():
                    raise parameters.Refused(f"{path} stays as it is: choose another folder with --to")
                runs.write_text(path, without_answers(notebook, language))
                typer.echo(path)
        except ValueError as error:
            refuse(error)


def answered(notebook):
    """Whether a notebook has cells that give an answer."""
    from lab.engine import parameters

    return any("answer" in tags for _, tags, _ in parameters.cells_of(notebook))


def without_answers(notebook, language):
    """The text of a student's notebook in a language. It runs from top to bottom: what later cells need stays."""
    import nbformat
    from nbconvert.preprocessors import ClearOutputPreprocessor
    from nbformat.v4 import new_code_cell

    from lab.engine import parameters
    from lab.language import translated
    from lab.ledger import claims, rests

    book = translated(nbformat.read(notebook, 4), language)
    book, _ = ClearOutputPreprocessor().preprocess(book, {})
    code = [cell for cell in book.cells if cell.cell_type == "code"]
    bodies = {cell.id: parameters.parsed(cell.source).body for cell in code}
    *answers, last = [cell for cell in code if "answer" in cell.metadata.get("tags", ())]
    stays = needed(code, bodies)
    defined = {name for body in bodies.values() for node in body if not is_import(node) for name in rests.bound(node)}
    known = [claim.id for claim in claims.ledger().values() if claim.exercise == parameters.exercise_of(notebook)]
    for cell in answers:
        cell.source = empty(cell.source, bodies[cell.id], stays, defined, known)
    for cell in (*answers, last):
        cell.metadata.tags = ["student"]
    if language != "en":
        book.cells.insert(0, new_code_cell(f"%env LAB_LANGUAGE={language}", id="language"))
    return nbformat.writes(book) + "\n"


def needed(code, bodies):
    """The statements of answers that stay: sweeps, and what they and cells that are no answers read."""
    from lab.engine.source import outside_names
    from lab.ledger import rests

    wanted, stays = {"study"}, []
    for cell in reversed(code):
        answer = "answer" in cell.metadata.get("tags", ())
        for node in reversed(bodies[cell.id]):
            made = rests.bound(node)
            if not answer or wanted & {*made, *rests.changed_in(node)} or list(rests.calls([node], "sweep")):
                wanted = (wanted - made) | outside_names(node) | set(rests.changed_in(node))
                stays += [node] * answer
    return stays


def empty(source, body, stays, defined, known):
    """An empty answer cell: what stays of it, what is at hand, and for each claim a call that checks the answer."""
    from lab.engine.source import outside_names
    from lab.ledger import rests

    gone = [node for node in body if node not in stays]
    lines = [ast.get_source_segment(source, node) for node in body if node in stays]
    read = set().union(*map(outside_names, gone)).difference(*map(rests.bound, gone), {"study"})
    words = {each.value for node in gone for each in ast.walk(node) if isinstance(each, ast.Constant)}
    hand = sorted(read & defined)
    asked = [name for name in known if name in words]
    if asked:
        lines += [tr("# Draw and compute. Does it hold? Write holds, fails or undecided, and the effect you measured.")]
    else:
        lines += [tr("# What do you see? Compute what you need.")]
    lines += [tr("# At hand: {names}", names=", ".join(hand))] * bool(hand)
    return "\n".join(lines + [f'study.answer("{name}", "", effect=None)' for name in asked])


def is_import(node):
    return isinstance(node, (ast.Import, ast.ImportFrom))


def beside(path):
    """The guesses and answers of a student's notebook, saved after its run, beside what the lab's run measured."""
    from lab import answers
    from lab.engine.parameters import Refused

    kept = answers.handed(path) if path.is_file() else None
    if not kept:
        raise Refused(tr("{path} holds no guesses and no answers: run it to its last cell, and save it", path=path))
    return "\n".join(answers.lines(answers.table([("", kept)])))
