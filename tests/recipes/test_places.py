"""Where a token stands, read from the stream: the start marker, and a probe that finds what is there and no more."""

import pandas as pd
import torch

from lab.models.gpt import ModelConfig, Transformer
from lab.recipes.places import MARKER, Marked, places, probed, shuffling_cost
from lab.tasks.code import Code


def test_every_window_begins_with_a_marker_that_no_text_holds():
    marked, plain = Marked(32), Code(32)
    assert not (plain.text() == MARKER).any() and not (plain.text(held_out=True) == MARKER).any()
    draw = lambda task: task.batch(torch.Generator().manual_seed(0), 8)  # noqa: E731
    for ours, theirs in ((marked.validation(8), plain.validation(8)), (draw(marked), draw(plain))):
        assert (ours[0][:, 0] == MARKER).all() and torch.equal(ours[0][:, 1:], theirs[0][:, 1:])
        assert torch.equal(ours[1], theirs[1])


def model(position, mask="causal"):
    start = {"kind": "fan-in", "embedding": 0.3}
    return Transformer(
        ModelConfig(vocab_size=256, block_size=32, d_model=32, position=position, mask=mask, initialization=start)
    )


def test_the_probe_finds_a_position_that_was_added_and_none_in_bytes_alone():
    task = Marked(32)
    assert probed(model("sinusoidal"), task, 128)[0] > 0.9
    alone = probed(model("none"), task, 128)
    assert alone[0] < 0.15, "the marker alone tells one position"
    assert alone[-1] > alone[0] + 0.1, "the causal mask tells something before any training"


def test_only_a_second_layer_tells_orders_apart_without_positions():
    task, start = Marked(32), {"kind": "fan-in", "embedding": 1.0}
    sizes = {"vocab_size": 256, "block_size": 32, "d_model": 32, "initialization": start}
    rise = [abs(shuffling_cost(Transformer(ModelConfig(**sizes, position=kind, n_layers=n)), task, 64))
            for kind, n in (("none", 1), ("none", 2), ("rotary", 1))]  # fmt: skip
    assert rise[0] < 1e-5 < min(rise[1:])


def test_a_trial_probes_before_and_after_and_stops_at_the_mark():
    sizes = {"n_layers": 2, "d_model": 16, "n_heads": 2, "context": 16, "batch": 4, "corpus": ""}
    table = pd.DataFrame(places(0, "none", learning_rate=0.01, steps=2, **sizes))
    probes = table[table.what == "probe"].groupby("stage").layer.apply(list).to_dict()
    assert probes == {"untrained": [0, 1, 2], "trained": [0, 1, 2]}
    assert set(table[table.what == "order"].stage) == {"untrained", "trained"}
    assert (table[["final", "trigram", "data_hash", "fingerprint", "taken"]].nunique() == 1).all()
    assert table.taken[0] == 2 and table.steps_to_mark.isna().all()
