"""Reading with longer windows: the same bytes at every length, and what each way of reading changes."""

import pandas as pd
import pytest
import torch

from lab.models.gpt import Transformer
from lab.recipes.byte_model import byte_model
from lab.recipes.longer import TEXTS, held_out_texts, longer_windows, read_longer, scored_losses, stretched

SIZES = {"d_model": 16, "n_layers": 1, "n_heads": 2}


@pytest.fixture(scope="module")
def model():
    config, _, _ = byte_model(1, context=64, **SIZES)
    return Transformer(config, seed=0).eval()


def test_every_length_and_way_scores_the_same_bytes(model):
    texts = held_out_texts("", 64, 128)
    assert texts.shape == (TEXTS, 64 + 128)
    counted = [scored_losses(model, texts, length, step, 64).numel() for length, step in ((16, 16), (64, 64), (64, 8))]
    assert set(counted) == {TEXTS * 128}


def test_a_sliding_window_gives_each_byte_the_context_that_a_longer_reading_has(model):
    """The last byte of a window of 64 has the same loss, whether the text was cut there or slid there."""
    texts = held_out_texts("", 64, 64)
    cut, slid = (scored_losses(model, texts, 64, step, 64) for step in (64, 1))
    torch.testing.assert_close(cut[:, -1], slid.view(TEXTS, 64)[:, -1])


def test_ways_of_reading_keep_the_weights_and_change_what_is_beyond_the_first_token(model):
    wider = stretched(model, "larger base", 4)
    assert stretched(model, "as trained", 4) is model
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), wider.parameters(), strict=True))
    tokens = torch.arange(40)[None]
    with torch.no_grad():
        before, after = model(tokens), wider(tokens)
    torch.testing.assert_close(before[:, 0], after[:, 0])
    assert not torch.allclose(before[:, 30], after[:, 30])


def test_alibi_is_read_in_one_way_and_rotary_in_two(model):
    texts = held_out_texts("", 32, 32)
    table = pd.DataFrame(read_longer(model, 16, [1, 2], texts, 8))
    read = table[table.what == "read"]
    assert read.groupby("way").size().to_dict() == {"as trained": 4, "larger base": 2}
    place = table[table.what == "place"]
    assert list(place.place) == [0, 1, 2, 4, 8, 16] and place.loss.notna().all()
    other = Transformer(model.config.model_copy(update={"position": "alibi"}), seed=0).eval()
    assert set(pd.DataFrame(read_longer(other, 16, [1, 2], texts, 8)).way.dropna()) == {"as trained"}


def test_a_trial_tells_its_run_in_every_row():
    options = {"context": 16, "batch": 4, "steps": 2, "factors": [1, 2], "scored": 32, "stride": 8, "corpus": ""}
    table = pd.DataFrame(longer_windows(0, 0, "alibi", 0.01, **SIZES, **options))
    assert set(table.what) == {"curve", "read", "place"}
    same = ["fingerprint", "data_hash", "parameters", "trigram", "in_range", "mark"]
    assert (table[same].nunique() == 1).all() and (table.trigram == table.mark).all()
    last = table[table.what == "curve"].iloc[-1]
    assert last.step == 2 and last.loss == last.in_range
    other = pd.DataFrame(longer_windows(0, 500, "alibi", 0.01, **SIZES, **options))
    assert other.fingerprint[0] == table.fingerprint[0] and other.data_hash[0] != table.data_hash[0]
