"""What a trial may open, what is refused, and that the content of a path which is a parameter counts."""

import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from lab import trace
from lab.files import CHECKOUT
from lab.trials import files
from lab.trials import sweep as trials


def length(text):
    return {"length": len(Path(text).read_text())}


def total(folder):
    return {"length": sum(len(path.read_text()) for path in Path(folder).rglob("*.txt"))}


NOTES = "notes.txt"  # in the working folder


def careless(seed):
    return {"length": len(open(NOTES).read())}


def careful(seed):
    with open("written.txt", "w") as file:
        file.write("abc")
    return {"length": len(open("written.txt").read())}


def asks_a_database(seed):
    return {"rows": len(sqlite3.connect("numbers.db").execute("select 1").fetchall())}


def asks_a_process(seed):
    return {"said": subprocess.run(["echo", "3"], capture_output=True, text=True).stdout}


def reads_its_own_code(seed):
    return {"length": len(Path(__file__).read_text())}


@pytest.fixture
def sources(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return trials.Sources("n", store=tmp_path / "store", root=tmp_path)


@pytest.mark.parametrize("trial, given", [(length, {"text": "a.txt"}), (total, {"folder": "texts/"})])
def test_a_path_that_is_a_parameter_counts_by_its_content(sources, tmp_path, trial, given):
    def write(text):
        for path in (tmp_path / "a.txt", tmp_path / "texts" / "b" / "a.txt"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    def swept():
        used = []
        table = trials.sweep(trial, given, sources=sources, used=used)
        return table.length.tolist(), [each.origin for each in used], list(used[0].body["data"])

    write("a")
    (name,) = given.values()
    assert swept() == ([1], ["run"], [name.rstrip("/")])
    assert swept() == ([1], ["store"], [name.rstrip("/")])
    write("aaa")
    assert swept() == ([3], ["run"], [name.rstrip("/")])
    write("a")
    assert swept() == ([1], ["store"], [name.rstrip("/")])


def test_a_cached_function_of_ones_own_sees_the_file_as_it_is_now(sources, tmp_path, monkeypatch):
    """A function that was called before a sweep, and again in the trial, is asked anew in every sweep."""
    source = """
import functools
@functools.lru_cache
def read(path):
    return open(path).read()
def trial(x, path):
    return {"length": len(read(path))}
"""
    (tmp_path / "cachedreader.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    import cachedreader

    found = []
    for text in ("a", "aaa"):
        (tmp_path / "top.txt").write_text(text)
        found.append(trials.sweep(cachedreader.trial, {"x": [0, 1, 2], "path": "top.txt"}, sources=sources))
    del sys.modules["cachedreader"]
    assert [table.length.tolist() for table in found] == [[1, 1, 1], [3, 3, 3]]


@pytest.mark.parametrize(
    "trial, said",
    [
        (careless, "reads .*notes.txt.*pass the path as a parameter"),
        (asks_a_database, "calls sqlite3.connect"),
        (asks_a_process, "calls subprocess.Popen"),
    ],
)
def test_what_is_not_declared_is_refused(sources, tmp_path, trial, said):
    (tmp_path / NOTES).write_text("abc")
    with pytest.raises(trials.TrialsFailed, match=said):
        trials.sweep(trial, {"seed": 0}, sources=sources)
    assert not list(sources.store.glob("*.jsonl"))


def test_its_own_files_and_timings_are_free(sources, tmp_path):
    assert trials.sweep(careful, {"seed": 0}, sources=sources).length.tolist() == [3]
    assert len(trials.sweep(asks_a_process, {"seed": 0}, sources=sources, timing=True)) == 1


def lists_plugins(seed):
    return {"length": len(Path("mine.egg-info/entry_points.txt").read_text())}


def test_what_an_editable_installation_says_of_itself_is_free(sources, tmp_path):
    """Packages that look for their plugins read it, such as networkx when torch.compile imports it."""
    folder = tmp_path / "mine.egg-info"
    folder.mkdir()
    (folder / "entry_points.txt").write_text("[console_scripts]")
    assert trials.sweep(lists_plugins, {"seed": 0}, sources=sources).length.tolist() == [17]


def test_code_is_imported_and_not_read(sources):
    with pytest.raises(trials.TrialsFailed, match="reads .*test_files.py"):
        trials.sweep(reads_its_own_code, {"seed": 0}, sources=sources)


def test_what_belongs_to_python_or_to_the_system_is_free(monkeypatch):
    files.watch()
    with trace.touching():
        for path in (torch.__file__, "/dev/null", "/proc/self/status"):
            if not path.endswith(".py") and Path(path).exists():
                open(path, "rb").close()
        open(torch.__file__, "rb").close()
    with trace.touching(), trace.apart():
        open(CHECKOUT / "README.md").close()
    open(CHECKOUT / "README.md").close()


def test_a_file_that_changed_has_another_hash(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("abc")
    before = files.file_hash(path)
    path.write_text("abcd")
    assert files.file_hash(path) != before
    path.write_text("abc")
    assert files.file_hash(path) == before
    assert files.content_hash(tmp_path) != files.content_hash(path)
    assert files.content_hash(tmp_path / "none") is None
