"""Corpus: bytes, hash and train/validation split of the default text and of other paths."""

import os
import tomllib
from pathlib import Path

import pytest

from lab.tasks import corpus
from lab.tasks.corpus import corpus_hash, read_corpus, split


@pytest.fixture
def folder(tmp_path):
    for i in range(40):
        text = f"# file {i}\nvalue_{i} = [{i}, ({i} + 1)]\n" * (i + 3)
        (tmp_path / f"module_{i:02}.py").write_bytes(text.encode())
    return tmp_path


def test_corpus_matches_pinned_package_versions():
    files, sha = read_corpus()
    assert sha == corpus.HASH
    assert (len(files), sum(map(len, files.values()))) == (1112, 19_693_406)
    project = tomllib.loads((Path(corpus.__file__).parents[2] / "pyproject.toml").read_text("utf-8"))["project"]
    for package, version in corpus.PACKAGES.items():
        assert f"{package}=={version}" in project["dependencies"]


def test_corpus_excludes_tests_and_generated_files():
    files, _ = read_corpus()
    assert list(files) == sorted(files)
    assert not [n for n in files if "/tests/" in n or "_antlr/" in n or n.startswith("sympy/polys/benchmarks/")]
    assert "networkx/algorithms/dag.py" in files and "sympy/polys/polyquinticconst.py" not in files
    digits = {n: sum(c in b"0123456789" for c in text) / len(text) for n, text in files.items() if len(text) > 5000}
    assert max(digits.values()) < 0.12, "a file is mostly numbers"
    assert not any(b"\r" in text for text in files.values())


def test_unpinned_package_versions_warn_once(monkeypatch):
    monkeypatch.setattr(corpus, "PACKAGES", {"networkx": "3.5", "sympy": "1.14.0"})
    monkeypatch.setattr(corpus, "HASH", "another")
    monkeypatch.setattr(corpus.metadata, "version", {"networkx": "3.6.1", "sympy": "1.14.0"}.get)
    corpus._read.cache_clear()
    with pytest.warns(UserWarning) as caught:
        assert corpus_hash() and corpus_hash()
    assert [str(w.message) for w in caught] == [
        "the text of the installed networkx 3.6.1 and sympy 1.14.0 differs from that of networkx 3.5 and sympy 1.14.0: "
        "recorded results on this text do not apply"
    ]
    monkeypatch.setattr(corpus, "PACKAGES", {"no_such_package": "1.0"})
    with pytest.raises(FileNotFoundError, match="no_such_package is not installed.*pip install no_such_package==1.0"):
        corpus_hash()


@pytest.mark.parametrize("path", ["", "folder"])
def test_split_shares_no_file(path, folder):
    files, _ = read_corpus(path and str(folder))
    train, validation = split(files)
    assert train | validation == files and not set(train) & set(validation)
    sizes = [sum(map(len, part.values())) for part in (train, validation)]
    assert 0 < sizes[1] < sizes[0]
    if not path:
        assert sizes == [17_338_918, 2_354_488]


def test_split_of_a_file_is_independent_of_other_files(folder):
    before = set(split(read_corpus(str(folder))[0])[1])
    (folder / "another.py").write_text("x = 1\n")
    assert set(split(read_corpus(str(folder))[0])[1]) - {"another.py"} == before != set()


def test_single_file_is_split_in_two(tmp_path):
    text = bytes(range(256)) * 10
    (tmp_path / "all bytes.bin").write_bytes(text)
    (train,), (validation,) = (part.values() for part in split(read_corpus(str(tmp_path / "all bytes.bin"))[0]))
    assert train + validation == text and len(train) == 2304


def test_line_endings_do_not_change_the_hash(tmp_path):
    (tmp_path / "a").write_bytes(b"x\ny\n")
    one = corpus_hash(str(tmp_path))
    (tmp_path / "a").write_bytes(b"x\r\ny\r\n")
    assert corpus_hash(str(tmp_path)) == one


def test_hash_depends_on_content_and_file_names(folder):
    hashes = set()

    def count_hashes():
        hashes.add(corpus_hash(str(folder)))
        return len(hashes)

    assert count_hashes() == count_hashes() == 1, "the hash of unchanged text changed"
    (folder / "module_00.py").write_text("changed = 1\n")
    assert count_hashes() == 2
    (folder / "module_00.py").write_text("changed = 2\n")
    os.utime(folder / "module_00.py", ns=(1, 1))  # same length, other mtime
    assert count_hashes() == 3
    (folder / "module_00.py").rename(folder / "renamed.py")
    assert count_hashes() == 4
    (folder / "module_01.py").unlink()
    assert count_hashes() == 5


def test_hash_detects_rewrites_with_the_same_mtime_and_follows_symlinks(folder, tmp_path_factory):
    link = tmp_path_factory.mktemp("linked")
    (link / "inner").symlink_to(folder)
    before = corpus.corpus_hash(folder), corpus.corpus_hash(link)
    file = next(path for path in folder.rglob("*") if path.is_file())
    state = file.stat()
    file.write_bytes(bytes(reversed(file.read_bytes())))
    os.utime(file, ns=(state.st_atime_ns, state.st_mtime_ns))
    after = corpus.corpus_hash(folder), corpus.corpus_hash(link)
    assert before[0] != after[0] and before[1] != after[1]


def test_unchanged_corpus_is_cached(folder, monkeypatch):
    first = read_corpus(str(folder))
    monkeypatch.setattr(Path, "read_bytes", None)
    assert read_corpus(str(folder)) is first and corpus_hash(str(folder)) == first[1]
