"""Windows of source code, compared with the corpus; bracket and token labels, compared with the text."""

import random

import pytest
import torch
from helpers import generator

from lab.tasks.code import Code
from lab.tasks.corpus import read_corpus, split
from lab.tasks.labels import KINDS


@pytest.fixture
def folder(tmp_path):
    for i in range(40):
        text = f"# file {i}\nvalue_{i} = [{i}, ({i} + 1)]\n" * (i + 3)
        (tmp_path / f"module_{i:02}.py").write_text(text, "utf-8")
    return tmp_path


def test_targets_are_tokens_shifted_by_one_byte(folder):
    task = Code(context=16, path=str(folder))
    train, validation = (b"\n".join(part.values()) for part in split(read_corpus(task.path)[0]))
    for (tokens, targets), text in ((task.batch(generator(), 30), train), (task.validation(30), validation)):
        assert tokens.shape == targets.shape == (30, 16)
        assert torch.equal(tokens[:, 1:], targets[:, :-1])
        for row, target in zip(tokens.tolist(), targets.tolist(), strict=True):
            assert bytes([*row, target[-1]]) in text
    assert torch.equal(task.validation(30)[0], task.validation(30)[0])
    assert not torch.equal(task.validation(30)[0], task.validation(30, seed=1)[0])


@pytest.mark.parametrize("context", [16, 100])
def test_validation_windows_do_not_occur_in_training_text(tmp_path, context):
    licence = "".join(chr(33 + i % 90) * (i % 7 + 1) for i in range(60))
    for i in range(60):
        own = "".join(random.Random(i).choices("abcdefgh", k=300))
        (tmp_path / f"module_{i:02}.py").write_text(licence + own)
    task = Code(context=context, path=str(tmp_path))
    training_text, validation_text = (bytes(task.text(held_out=part).numpy()) for part in (False, True))
    tokens, targets = task.validation(100)
    windows = [bytes([*row, last]) for row, last in zip(tokens.tolist(), targets[:, -1].tolist(), strict=True)]
    assert all(window in validation_text for window in windows)
    if context >= 64:
        assert not any(window in training_text for window in windows)
    else:  # extended to 64 bytes; only windows with a unique position can be extended
        spans = [
            validation_text[validation_text.find(w) : validation_text.find(w) + 64]
            for w in windows
            if validation_text.count(w) == 1
        ]
        assert spans and not any(span in training_text for span in spans if len(span) == 64)


def test_repetitive_text_without_new_windows_raises(tmp_path):
    (tmp_path / "a").write_bytes(b"again and " * 400)
    with pytest.raises(ValueError, match="0 of 64 validation windows are new, need 8"):
        Code(context=16, path=str(tmp_path / "a")).validation(8)


def test_every_window_can_be_drawn(tmp_path):
    (tmp_path / "a").write_bytes(bytes(range(20)) * 2)
    task = Code(context=16, path=str(tmp_path / "a"), validation_share=0.5)
    starts = {tuple(row.tolist()) for row in task.batch(generator(), 200)[0]}
    assert starts == {tuple(range(i, i + 16)) for i in range(4)}


@pytest.mark.parametrize("path", ["no/such/folder", "/no/such/file.txt"])
def test_missing_path_raises(path):
    with pytest.raises(FileNotFoundError, match=path):
        Code(path=path).batch(generator(), 1)


def test_task_text_matches_its_hash_after_file_changes(folder):
    old, unread = (Code(context=16, path=str(folder)) for _ in range(2))
    batch, hash_before = old.batch(generator(), 8)[0], unread.hash
    (folder / "module_00.py").write_text("changed = 1\n" * 500)
    new = Code(context=16, path=str(folder))
    assert new.hash != old.hash == hash_before and not torch.equal(new.batch(generator(), 8)[0], batch)
    assert torch.equal(old.batch(generator(), 8)[0], batch) and torch.equal(unread.batch(generator(), 8)[0], batch)
    hashed = Code(context=16, path=str(folder), validation_share=0.2)
    assert hashed.hash == new.hash
    (folder / "module_00.py").unlink()
    with pytest.raises(RuntimeError, match="changed while it was in use"):
        hashed.batch(generator(), 8)


def test_too_short_text_raises(tmp_path):
    (tmp_path / "tiny.txt").write_text("too short")
    with pytest.raises(ValueError, match="tiny.txt.*bytes, too few"):
        Code(path=str(tmp_path / "tiny.txt")).batch(generator(), 1)


def test_unigram_frequencies_and_entropy(tmp_path):
    (tmp_path / "ab").write_bytes(b"ab" * 9 * 10 + b"aaab" * 5)
    task = Code(context=4, path=str(tmp_path / "ab"))
    assert task.log_frequency.exp().sum().item() == pytest.approx(1, abs=1e-6)
    assert task.log_frequency[ord("a")].item() == pytest.approx(torch.tensor(91 / (180 + 256)).log().item(), abs=1e-6)
    assert task.log_frequency[ord("z")].item() == pytest.approx(torch.tensor(1 / (180 + 256)).log().item(), abs=1e-6)
    p = torch.tensor([0.75, 0.25])
    assert task.unigram_entropy == pytest.approx(-(p * p.log()).sum().item(), abs=1e-6)


def test_annotated_windows_carry_correct_labels(folder):
    (folder / "module_00.py").write_text("def broken(:\n" * 20)
    got = Code(context=24, path=str(folder)).annotated(60)
    assert {"tokens", "targets", "kind", "opener"} <= set(got) and {part.shape for part in got.values()} == {(60, 24)}
    assert torch.equal(got["tokens"][:, 1:], got["targets"][:, :-1])
    pairs = 0
    for row, opener in zip(got["tokens"].tolist(), got["opener"].tolist(), strict=True):
        for t, o in enumerate(opener):
            if o >= 0:
                pairs += 1
                assert o < t and chr(row[o]) + chr(row[t]) in ("()", "[]", "{}")
                assert row[o:t].count(row[o]) - row[o:t].count(row[t]) == 1, "brackets in between are not balanced"
            elif chr(row[t]) in ")]}":  # the opening bracket is before the window
                assert row[:t].count(ord({")": "(", "]": "["}[chr(row[t])])) <= row[:t].count(row[t])
    assert pairs > 50
    comment = got["kind"] == KINDS.index("comment")
    assert comment.any() and comment[got["tokens"] == ord("#")].all()


def test_default_corpus_can_be_annotated():
    got = Code(context=64).annotated(200)
    assert set(got["kind"].unique().tolist()) == set(range(len(KINDS)))
    closing = sum((got["tokens"] == ord(c)).sum() for c in ")]}")
    assert 0.3 < (got["opener"] >= 0).sum() / closing <= 1


def test_annotating_text_without_python_raises(tmp_path):
    (tmp_path / "prose.txt").write_text("It is raining. " * 100)
    with pytest.raises(ValueError, match="no Python file"):
        Code(context=8, path=str(tmp_path / "prose.txt")).annotated(2)
