"""How the record stands: `lab.record_command` tells and accepts edits."""

import shutil

import made
import pytest
from helpers import recorded
from made import DICE
from typer.testing import CliRunner

from lab.run import app
from lab.trials.store import File


@pytest.fixture(scope="module")
def rows(project):
    """The trials of a run of the dice, as the store keeps them."""
    made.ran(project)
    found = File(project / "results" / ".trials" / f"{DICE}.jsonl").trials
    assert len(found) == 12
    return found


def record(project, rows, **wrong):
    """Record the rows, those with the sides `wrong` names by another digit, and forget the trials themselves."""
    changed = []
    for each in rows:
        if each["parameters"]["sides"] == wrong.get("sides") and each["parameters"]["seed"] == 0:
            first, *rest = each["columns"]["mean"]
            each = each | {"columns": each["columns"] | {"mean": [first + 2**-30, *rest]}}
        changed.append(each)
    file = recorded(project / "results" / "record" / f"{DICE}.jsonl", changed)
    shutil.rmtree(project / "results" / ".trials", ignore_errors=True)
    return file


def command(*arguments):
    done = CliRunner().invoke(app, ["record", *arguments])
    return done.exit_code, done.output


@pytest.fixture
def edited(project):
    """edit(old, new): the notebook's sources with a change, until the test ends."""
    path = project / "notebooks" / f"{DICE}.ipynb"
    before = path.read_text("utf-8")

    def edit(old, new):
        assert old in before
        path.write_text(before.replace(old, new), "utf-8")

    yield edit
    path.write_text(before, "utf-8")


def counts(said):
    """(fresh, accepted, stale) of the dice, as the table of the status has them."""
    line = next(line for line in said.splitlines() if line.startswith(DICE))
    return tuple(map(int, line.split()[1:4]))


def test_the_status_names_what_was_edited_and_what_it_takes(project, rows, edited):
    record(project, rows)
    made.ran(project)
    code, said = command("--status", "--strict")
    assert (code, counts(said)) == (0, (12, 0, 0)) and "12 rows fresh, 0 accepted, 0 stale" in said
    edited("scale * total", "total * scale")
    code, said = command("--status", "1.1")
    assert (code, counts(said)) == (0, (0, 0, 12)) and "changed: thrown" in said
    assert "older code: thrown" in said
    assert command("--status", "--strict")[0] == 1, "as a release asks"
    edited("What do dice show", "What do the dice show")
    assert counts(command("--status")[1]) == (12, 0, 0), "prose is no code"


def test_an_edit_that_moves_no_digit_is_accepted_and_one_that_does_is_refused(project, rows, edited):
    file = record(project, rows)
    made.ran(project)
    edited("scale * total", "total * scale")
    assert "older code: thrown" in command("--status")[1]
    code, said = command("--accept", "the same product", "1.1")
    assert code == 0 and "12 rows of thrown accepted" in said, said
    said = command("--status")[1]
    assert counts(said) == (0, 12, 0) and "older code: thrown" not in said, "nor is the run of these rows older"
    edited("scale * total", "1.5 * scale * total")
    before = file.path.read_bytes()
    code, said = command("--accept", "no reason", "1.1")
    assert code == 1 and "stays stale: thrown" in said and "mean is" in said
    assert counts(command("--status")[1]) == (0, 0, 12) and file.path.read_bytes() == before
