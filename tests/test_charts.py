"""Pictures of attention say what their tables hold.

Of `lab.figures`.
"""

import math

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from pieces import random_maps

from lab import charts, figures
from lab.measure import maps as patterns
from lab.measure.attention import attention_probe
from lab.measure.heads import head_scores
from lab.tasks.blocks import Blocks


def test_a_map_in_long_form_is_the_map_but_for_what_is_light():
    weights = random_maps(1, 1, 9)[0, 0].numpy()
    table = charts.long_map(list("abcdefghi"), weights, panel="x")
    back = charts.dense_map(table)
    assert back.shape == (9, 9) and np.abs(back - weights).max() <= charts.LEAST
    assert (table.query_token == [chr(97 + q) for q in table["query"]]).all() and set(table.panel) == {"x"}
    assert table.weight.min() > charts.LEAST


def test_an_arc_for_every_weight_above_the_threshold():
    table = charts.long_map([100, 101, 10, 102], np.array([[1, 0, 0, 0], [0.6, 0.4, 0, 0], [0, 1, 0, 0], [0.25] * 4]))
    _, axis = plt.subplots()
    charts.draw_arcs(axis, table, 0.3)
    assert len(axis.lines) == 4
    assert [text.get_text() for text in axis.texts] == ["d", "e", "\u00b7", "f"]
    plt.close("all")


def test_the_bytes_of_a_character_are_one_text_in_their_middle():
    text = "a\u00e9 \u4e2d\U0001f600\n"  # of 1, 2, 1, 3, 4 and 1 bytes
    wanted = [(0, "a"), (1.5, "\u00e9"), (3, "\u00b7"), (5, "\u4e2d"), (8.5, "\U0001f600"), (11, "\u00b7")]
    assert charts.characters(list(text.encode())) == wanted
    cut = list("\u4e2d".encode())
    assert charts.characters([*cut[1:], 97, *cut[:2], 98]) == list(enumerate("\u00b7\u00b7a\u00b7\u00b7b")), (
        "a window's ends"
    )
    assert charts.characters([195, "word", 169, None, 400]) == [
        (0, "\u00b7"),
        (1, "word"),
        (2, "\u00b7"),
        (4, "\u00b7"),
    ]


def test_axes_and_arcs_name_a_character_once():
    tokens = list("x=\u00e9".encode())
    table = charts.long_map(tokens, np.eye(4))
    figure, (left, right, plain) = plt.subplots(1, 3)
    charts.draw_map(left, table)
    charts.draw_arcs(right, table, 0.3)
    for ticks in (left.xaxis, left.yaxis):
        assert [text.get_text() for text in ticks.get_ticklabels()] == ["x", "=", "\u00e9"]
        assert ticks.get_ticklocs().tolist() == [0, 1, 2.5]
    assert [(t.get_position()[0], t.get_text()) for t in right.texts] == [(0, "x"), (1, "="), (2.5, "\u00e9")]
    charts.draw_map(plain, charts.long_map([3, 1, 2, 0], np.eye(4)))
    assert "\u00b7" not in [text.get_text() for text in plain.xaxis.get_ticklabels()], "numbers that are no letters"
    plt.close(figure)


def test_a_checkpoint_from_elsewhere_gives_the_same_tables_and_pictures(tmp_path):
    transformers = pytest.importorskip("transformers")
    from lab.pretrained import load

    torch.manual_seed(0)
    sizes = {"vocab_size": 40, "n_positions": 100, "n_embd": 16, "n_layer": 3, "n_head": 2}
    config = transformers.GPT2Config(**sizes, bos_token_id=0, eos_token_id=0)
    transformers.GPT2LMHeadModel(config).save_pretrained(tmp_path)
    model, _ = load(tmp_path)
    tokens, targets = Blocks(vocabulary=model.config.vocab_size).batch(torch.Generator().manual_seed(7), 4)
    with torch.no_grad(), attention_probe([], keep_maps=True) as probe:
        model(tokens)
    table = head_scores(probe.maps, targets != -100, patterns.copying(25, 4))
    assert len(table.groupby(["layer", "head"])) == 6
    score = table[table.measure == "induction"]
    assert score.value.tolist() == pytest.approx([score.uniform.iloc[0]] * 6, rel=0.1), "at random it looks anywhere"
    panel = charts.long_map([str(t) for t in tokens[0].tolist()], probe.maps[0][0, 0].numpy(), panel="layer 0, head 0")
    assert not math.isnan(panel.weight.sum())
    for plot, kept in ((charts.plot_scores, table), (charts.plot_maps, panel), (charts.plot_arcs, panel)):
        figure = figures.draw(plot, kept)
        assert len(figures.png(figure)) > 1000
        plt.close(figure)
