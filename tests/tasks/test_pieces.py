"""Pieces spell the bytes they are made of, are learnt on training files alone, and their loss compares with bytes'."""

import builtins
import importlib.util
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lab import trace
from lab.tasks import pieces
from lab.tasks.code import Code
from lab.tasks.corpus import read_corpus, split
from lab.tasks.pieces import Pieces, pieces_hash

pytest.importorskip("tokenizers")
TEXT = importlib.util.find_spec("networkx").submodule_search_locations[0] + "/generators"


def generator():
    return torch.Generator().manual_seed(0)


def small(vocabulary=400, **options):
    return Pieces(vocabulary, 16, TEXT, **options)


@given(st.binary(max_size=60) | st.text(max_size=30).map(str.encode))
@settings(max_examples=60)
def test_any_bytes_are_what_their_pieces_spell(text):
    assert small().decode(small().encode(text)) == text


def test_the_text_is_what_its_pieces_spell_and_takes_fewer_of_them():
    for held_out in (False, True):
        spelt, text = small().text(held_out).tolist(), bytes(Code(16, TEXT).text(held_out).numpy())
        assert small().decode(spelt) == text and len(spelt) < 0.6 * len(text)
    assert len(small().spellings) == 400 and small().spellings[:256] == [bytes([byte]) for byte in range(256)]


def test_with_the_bytes_alone_it_is_the_task_of_bytes():
    mine, code = small(256), Code(16, TEXT)
    for one, other in zip(mine.batch(generator(), 40), code.batch(generator(), 40), strict=True):
        assert torch.equal(one, other)
    for one, other in zip(mine.validation(40), code.validation(40), strict=True):
        assert torch.equal(one, other)
    assert mine.marks().chance == pytest.approx(code.marks().chance)
    assert mine.marks().unigram_entropy == pytest.approx(code.unigram_entropy)
    assert mine.nats_per_byte(1.5, mine.validation(40)[1]) == 1.5


def test_merges_are_learnt_on_training_files_alone(tmp_path):
    for i in range(30):
        (tmp_path / f"file_{i}").write_text("a few common words, a few common words\n" * 20)
    train, held_out = split(read_corpus(str(tmp_path))[0])
    before = Pieces(300, 16, str(tmp_path)).spellings
    assert train and held_out and any(b"common" in spelling for spelling in before)
    for name in held_out:
        (tmp_path / name).write_text("zyx " * 2000)
    assert Pieces(300, 16, str(tmp_path)).spellings == before


def test_a_loss_in_nats_a_byte_is_that_of_the_text_whatever_its_pieces():
    """A sum of losses is the nats of a text; single pieces hold more of it than single bytes do."""
    code, mine = Code(16, TEXT), small()
    _, targets = mine.validation(50)
    spelt = sum(len(mine.decode(row)) for row in targets.tolist())
    assert mine.nats_per_byte(2.0, targets) == pytest.approx(2.0 * targets.numel() / spelt)
    few, many = (
        task.nats_per_byte(task.marks().unigram_entropy, task.text(held_out=True)) for task in (small(300), mine)
    )
    assert code.unigram_entropy > few > many > 0


def test_what_was_learnt_is_part_of_the_data_of_a_trial():
    digests = []
    for _ in range(2):  # learnt anew: the same; kept: reported again
        pieces._tokenizer.cache_clear()
        for _ in range(2):
            with trace.touching() as touched:
                small().encode(b"x = 1")
            digests.append(touched.data[f"pieces 400 {TEXT}"])
            assert touched.data[f"corpus {TEXT}"] == small().hash
    with trace.touching() as touched:
        small(300).encode(b"x = 1")
    assert set(digests) == {pieces_hash(f"400 {TEXT}")} and touched.data[f"pieces 300 {TEXT}"] not in digests


def test_what_cannot_be_is_named(monkeypatch, tmp_path):
    with pytest.raises(ValueError, match="at least 256"):
        Pieces(255)
    (tmp_path / "tiny").write_text("too short")
    with pytest.raises(ValueError, match="training text of corpus .*tiny.* pieces, too few"):
        Pieces(256, path=str(tmp_path / "tiny")).batch(generator(), 1)
    usual = builtins.__import__

    def without(name, *rest):
        if name == "tokenizers":
            raise ModuleNotFoundError("gone", name=name)
        return usual(name, *rest)

    monkeypatch.delitem(sys.modules, "tokenizers")
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ImportError, match=r"tokenizers is missing: pip install 'transformer-lab\[pieces\]'"):
        Pieces(301, path=TEXT).spellings  # noqa: B018
