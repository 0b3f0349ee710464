"""Lessons that are written: their shape, and that no sentence of theirs says what a table might deny."""

import json
import re
import subprocess
import sys

import pandas as pd
import pytest

from lab import language, study
from lab.engine import parameters, runs, store
from lab.engine.points import points_of
from lab.engine.record import File
from lab.ledger import claims

LEDGER = claims.ledger()
CELLS = {path: json.loads(path.read_text("utf-8"))["cells"] for path in parameters.notebooks()}


def written(notebook):
    mine = [c for c in LEDGER.values() if c.exercise == parameters.exercise_of(notebook)]
    return bool(mine) and all(c.place == "lesson" for c in mine)


LESSONS = [notebook for notebook in CELLS if written(notebook)]
each_lesson = pytest.mark.parametrize("notebook", LESSONS, ids=lambda path: path.stem)


def code_of(notebook):
    return ["".join(cell["source"]) for cell in CELLS[notebook] if cell["cell_type"] == "code"]


def prose_of(notebook):
    """Its Markdown without formulas, code spans and addresses."""
    text = "\n".join("".join(cell["source"]) for cell in CELLS[notebook] if cell["cell_type"] == "markdown")
    return re.sub(r"\$[^$]*\$|`[^`]*`|\([^)]*https?:[^)]*\)", " x ", text)


def test_there_is_a_lesson():
    assert parameters.notebook_of("1.4") in LESSONS


@each_lesson
def test_a_lesson_has_its_shape(notebook):
    code, words = code_of(notebook), re.findall(r"[A-Za-z][A-Za-z'’-]+", prose_of(notebook))
    lines = [len([line for line in cell.splitlines() if line.strip()]) for cell in code]
    tags = [cell["metadata"].get("tags", []) for cell in CELLS[notebook] if cell["cell_type"] == "code"]
    assert max(n for n, tag in zip(lines, tags, strict=True) if "parameters" not in tag) <= 12
    assert sum(lines) <= 260 and len(words) >= 6 * sum(lines)
    assert 2 <= "".join(code).count("study.judge(") <= 6 and "".join(code).count("study.figure(") <= 6


# Decimals that are typed in notebooks which are no lessons yet: fewer as they are rewritten, never more.
TYPED = {
    "11_layer_norm_placement": 10,
    "12_initialization": 10, "13_sparse_patterns": 14, "14_architecture_tradeoffs": 2, "15_more_on_attention": 2,
    "17_what_it_can_learn": 1, "18_regularisation": 3, "19_shapes_and_paths": 5, "20_budgets": 29, "21_one_change": 15,
    "16_more_on_heads": 2, "24_norms_and_numerics": 1, "25_shapes_and_stacking": 6,
}  # fmt: skip


@pytest.mark.parametrize("notebook", CELLS, ids=lambda path: path.stem)
def test_no_result_is_typed_into_prose(notebook):
    prose = re.sub(r"(^#|exercise) 1\.[12]\d\b", "", prose_of(notebook))  # numbers of exercises
    typed = re.findall(r"(?<![\w.§$\\-])\d*\.\d{2,}", prose)
    assert len(typed) <= TYPED.get(notebook.stem, 0), typed


@pytest.mark.slow
def test_a_lesson_runs_in_chinese(tmp_path):
    command = [sys.executable, "-m", "lab.cli", "run", "1.4", "--profile", "smoke", "--language", "zh"]
    done = subprocess.run([*command, "--results", tmp_path], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (path,) = tmp_path.glob("**/04_head_count*/notebook.ipynb")
    shown = [output["data"].get("text/markdown", "") for cell in json.loads(path.read_text("utf-8"))["cells"]
             for output in cell.get("outputs", ()) if "data" in output]  # fmt: skip
    cards = ["".join(text) for text in shown if "| :-- |" in "".join(text)]
    assert len(cards) == 6
    for card in cards:
        rows = [line.strip("| ").split(" | ", 1) for line in card.splitlines() if " | " in line.strip("| ")]
        for name, text in (row for row in rows if row[0] != ":--"):
            assert re.search("[\u4e00-\u9fff]", name), name
            assert re.search("[\u4e00-\u9fff]", text) or not re.search("[a-z]{4} [a-z]{4}", text), text


@each_lesson
def test_every_figure_says_what_it_shows(notebook):
    for cell in code_of(notebook):
        for call in cell.split("study.figure(")[1:]:
            assert "alt=" in call


@each_lesson
def test_cells_that_give_an_answer_are_tagged(notebook):
    """So that nbconvert's TagRemovePreprocessor leaves a lesson without its answers."""
    for cell in CELLS[notebook]:
        source, tags = "".join(cell["source"]), cell["metadata"].get("tags", [])
        gives = any(f"study.{verb}(" in source for verb in ("judge", "say", "finish"))
        assert (cell["cell_type"] == "code" and gives) == ("answer" in tags), source


# 1.4 on its record, as it is and turned round


class Record:
    """Sweeps answered by the rows of a record, each table as `changed` leaves it; `speed` is a made-up clock."""

    def __init__(self, notebook, changed):
        self.file, self.changed = File(runs.project_root() / "results" / "record" / f"{notebook.stem}.jsonl"), changed

    def __call__(self, trial, grid, *, timing=False, **_):
        name = trial.__name__
        if timing:
            ((counts,),) = [[point["counts"] for point in points_of(trial, grid)]]
            table = pd.DataFrame([{"n_heads": h, "repeat": r, "speed": 100 - h + r} for h in counts for r in (0, 1)])
        else:
            wanted = {store.canonical(point): i for i, point in enumerate(points_of(trial, grid))}
            found = [body for body in self.file.trials if body["trial"] == name]
            found = {wanted.get(store.canonical(body["parameters"])): body for body in found}
            rows = [found[i]["parameters"] | row | {"seconds": found[i]["seconds"]}
                    for i in sorted(wanted.values()) for row in store.rows(found[i])]  # fmt: skip
            table = self.changed(name, pd.DataFrame(rows))
        table.attrs["core_seconds"] = 0.0
        return table


def turned(name, table):
    """Who had most loses, who had least wins: accuracies and losses change places among the numbers of heads."""
    columns = [column for column in ("loss", "accuracy") if column in table]
    if name not in ("lookup", "language_model") or set(table.seed) == {1000}:
        return table  # the sweep of rates stays, so that the record has the rows
    swap = {1: 32, 2: 16, 4: 8, 8: 4, 16: 2, 32: 1} if name == "language_model" else {1: 4, 4: 1, 2: 8, 8: 2}
    others = [c for c in ("seed", "order", "k", "d_model", "position", "step") if c in table]
    given = table.drop_duplicates([*others, "n_heads"]).set_index([*others, "n_heads"])[columns]
    keys = table[[*others, "n_heads"]].assign(n_heads=table.n_heads.map(swap))
    found = given.reindex(pd.MultiIndex.from_frame(keys)).reset_index(drop=True)
    return table.assign(**{column: found[column].fillna(table[column]) for column in columns})


def told(notebook, changed, tmp_path, monkeypatch):
    """{claim: verdict} and all that is said, as one text, when the notebook runs on a record that was changed."""
    said = []
    monkeypatch.setattr("lab.study.trials.sweep", Record(notebook, changed))
    monkeypatch.setattr("lab.study.display", lambda shown, **_: said.append(getattr(shown, "data", "")))
    monkeypatch.setattr("lab.figures.show", lambda *_: None)
    monkeypatch.setattr(study.Study, "live", lambda *_, **__: None)
    monkeypatch.setattr(study.Study, "play", lambda *_, **__: None)
    monkeypatch.setattr(study.Study, "figure", lambda self, stem, *_, **__: (
        self.folder / "figures" / f"{stem}.png").write_bytes(b"") or runs.write_table(
        self.folder / "tables" / f"{stem}.csv", pd.DataFrame({"x": [0]})))  # fmt: skip
    names = {"__name__": "__main__"}
    for cell in code_of(notebook)[:-1]:
        cell = cell.replace('results: str = ""', f"results: str = {str(tmp_path)!r}")
        exec(compile(cell, notebook.stem, "exec"), names)
    language.use()
    verdicts = {name: verdict.verdict for name, verdict in names["study"]._verdicts.items()}
    return verdicts, "\n".join(str(each) for each in said)


def test_sentences_follow_the_table(tmp_path, monkeypatch):
    notebook = parameters.notebook_of("1.4")
    same, found = told(notebook, lambda name, table: table, tmp_path / "a", monkeypatch)
    committed = claims.read_verdicts(runs.project_root() / "results" / "quick" / notebook.stem)
    assert same == dict(zip(committed.id, committed.verdict, strict=True))
    other, turned_round = told(notebook, turned, tmp_path / "b", monkeypatch)
    assert other["heads-parallel-retrieval"] in ("refuted", "out of reach") != same["heads-parallel-retrieval"]
    sentences = {"supported": "Each of the four shows", "refuted": "says the opposite", "inconclusive": "is decided"}
    for verdicts, text in ((same, found), (other, turned_round)):
        shown = {word for word, sentence in sentences.items() if sentence in text}
        assert shown == {verdicts["heads-few-are-worse"]} & set(sentences)
