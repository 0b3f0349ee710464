"""Charts: labels, attention maps, plot functions and layout."""

import math

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
import torch
from helpers import random_maps
from scipy import stats

from lab import charts


def test_long_map_round_trip():
    weights = random_maps(1, 1, 9)[0, 0].numpy()
    table = charts.long_map(list("abcdefghi"), weights, panel="x")
    back = charts.dense_map(table)
    assert back.shape == (9, 9) and np.abs(back - weights).max() <= charts.MIN_WEIGHT
    assert (table.query_token == [chr(97 + q) for q in table["query"]]).all() and set(table.panel) == {"x"}
    assert table.weight.min() > charts.MIN_WEIGHT


def test_long_map_keeps_shape_with_small_weights():
    even = np.tril(np.ones((256, 256))) / np.arange(1, 257)[:, None]
    assert charts.dense_map(charts.long_map(list(range(256)), even)).shape == (256, 256)
    wide = np.random.default_rng(0).dirichlet(np.ones(9), size=4)  # 4 queries, 9 keys (5 cached)
    table = charts.long_map(list("abcdefghi"), wide)
    back = charts.dense_map(table)
    assert back.shape == (4, 9) and np.abs(back - wide).max() <= charts.MIN_WEIGHT
    assert set(table.query_token) == set("fghi")
    figure, axis = plt.subplots()
    charts.draw_map(axis, table)
    assert axis.images[0].get_array().shape == (4, 9)
    assert [label.get_text() for label in axis.get_yticklabels()] == list("fghi")
    plt.close(figure)


def test_multi_byte_characters_have_one_label():
    text = "a\u00e9 \u4e2d\U0001f600\n"  # characters of 1, 2, 1, 3, 4 and 1 bytes
    wanted = [(0, "a"), (1.5, "\u00e9"), (3, "\u00b7"), (5, "\u4e2d"), (8.5, "\U0001f600"), (11, "\u00b7")]
    assert charts.characters(list(text.encode())) == wanted
    cut = list("\u4e2d".encode())
    assert charts.characters([*cut[1:], 97, *cut[:2], 98]) == list(enumerate("\u00b7\u00b7a\u00b7\u00b7b")), (
        "incomplete characters"
    )
    assert charts.characters(["word", None, "b"]) == [(0, "word"), (2, "b")]


def test_map_axes_label_each_character_once():
    tokens = list("x=\u00e9".encode())
    table = charts.long_map(tokens, np.eye(4))
    figure, (left, plain) = plt.subplots(1, 2)
    charts.draw_map(left, table)
    for ticks in (left.xaxis, left.yaxis):
        assert [text.get_text() for text in ticks.get_ticklabels()] == ["x", "=", "\u00e9"]
        assert ticks.get_ticklocs().tolist() == [0, 1, 2.5]
    charts.draw_map(plain, charts.long_map([3, 1, 2, 0], np.eye(4)))
    assert "\u00b7" not in [text.get_text() for text in plain.xaxis.get_ticklabels()], "token ids are not bytes"
    plt.close(figure)


def test_forest_plot():
    table = pd.DataFrame({"arm": ["a"] * 3 + ["b"], "gain": [1.0, 2.0, 3.0, -1.0]})
    _, axes = plt.subplots()
    charts.forest(axes, table, "gain", "arm", bar=(-0.5, 0.5), names={"a": "first"}, xlabel="gain")
    drawn = [tuple(np.atleast_1d(line.get_xdata())) for line in axes.lines]
    half = stats.t.ppf(0.975, 2) / 3**0.5
    assert drawn[:2] == [(1, 2, 3), (2,)] and drawn[2] == pytest.approx((2 - half, 2 + half))
    assert drawn[3:] == [(-1,), (-1,), (0, 0), (-0.5, -0.5), (0.5, 0.5)], "a single run has no interval"
    assert [text.get_text() for text in axes.get_yticklabels()] == ["first", "b"]
    assert [text.get_text() for text in axes.texts] == [
        "2.0 [−0.5, 4.5]",
        "−1.0",
        "threshold −0.5",
        "threshold 0.5",
    ] and axes.get_xlabel() == "gain"
    low, high = axes.get_ylim()
    assert low > high, "the first arm is at the top"
    plt.close("all")


def test_fit_line_returns_and_draws_the_exponent():
    table = pd.DataFrame(
        [(x, s, 3 * x ** (1.5 + s / 10)) for s in (-1, 0, 1) for x in (4, 8, 16)], columns=["x", "seed", "y"]
    )
    _, axes = plt.subplots()
    fit = charts.fit_line(axes, table, "x", "y", label="mine")
    assert (fit.effect, fit.n) == (pytest.approx(1.5), 3) and fit.high - 1.5 == pytest.approx(0.2484, abs=1e-4)
    dots, fitted = axes.lines
    assert len(dots.get_xdata()) == 9
    (x0, x1), (y0, y1) = fitted.get_xdata(), fitted.get_ydata()
    assert math.log(y1 / y0) / math.log(x1 / x0) == pytest.approx(1.5)
    assert math.sqrt(y0 * y1) == pytest.approx(3 * 8**1.5), "through the centre of the dots"
    assert fitted.get_label() == "mine: slope 1.50 [1.25, 1.75]"
    plt.close("all")


def two_panels(same):
    _, (left, right) = plt.subplots(1, 2, figsize=(12, 9))
    for axes, name in ((left, "a"), (right, "a" if same else "b")):
        axes.plot([1, 2], [1, 2], label=name)
        axes.set(xscale="log", title=name)
        axes.legend()


@pytest.mark.parametrize("same", [True, False])
def test_figure_size_is_limited_and_legends_are_outside_the_axes(same):
    with charts.drawn(two_panels, same) as figure:
        figure.draw_without_rendering()
        assert figure.get_size_inches().tolist() == [charts.MAX_WIDTH, charts.MAX_HEIGHT]
        inside = [axes.get_legend() for axes in figure.axes if axes.get_legend()]
        assert (len(figure.legends), len(inside)) == ((1, 0) if same else (0, 2))
        for legend in [*figure.legends, *inside]:
            box = legend.get_window_extent()
            assert not any(box.overlaps(axes.get_window_extent()) for axes in figure.axes)
    assert plt.get_fignums() == []


def test_short_logarithmic_axis_has_ticks_at_1_2_5():
    with charts.drawn(lambda: plt.subplots()[1].loglog([1, 30], [1, 1e6])) as figure:
        figure.draw_without_rendering()
        (axes,) = figure.axes
        low, high = axes.get_xlim()
        shown = {tick.get_text() for tick in axes.get_xticklabels() if low <= tick.get_position()[0] <= high}
        assert shown == {"1", "2", "5", "10", "20"}
        assert not any(tick.get_text() for tick in axes.get_xticklabels(minor=True))


def close_marks(gap):
    axes = plt.subplots()[1]
    axes.plot([0, 1], [0, 1], "--", label="mine")
    charts.marks(axes, {"bigram": 0.5, "trigram": 0.5 + gap})


def test_labels_escape_matplotlib_syntax():
    table = pd.DataFrame({"x": [1, 2] * 3, "y": 1.0, "arm": ["_mine"] * 2 + ["$$"] * 2 + ["b$c$"] * 2, "seed": 0})
    figure, axes = plt.subplots()
    charts.by_arm(axes, table, "x", "y", "arm")
    texts = [text.get_text().replace("\\$", "$").strip("\u200b") for text in axes.get_legend().get_texts()]
    assert texts == ["_mine", "$$", "b$c$"]
    figure.canvas.draw()  # raises for an invalid formula


def test_labels_of_marks_do_not_overlap_and_layout_faults_are_reported():
    with charts.drawn(close_marks, 0.001) as figure:
        assert charts.faults(figure) == []
        figure.axes[0].axhline(0.2, ls="--")
        for text in figure.axes[0].texts:
            text.set_position((4, 0))
        assert charts.faults(figure) == ["a panel: 1 dashed lines without a label", "'bigram' overlaps 'trigram'"]


def test_by_arm_uses_one_marker_per_arm():
    table = pd.DataFrame({"x": [2, 2], "y": 1.0, "arm": ["a", "b"]})
    axes = plt.subplots()[1]
    charts.by_arm(axes, table, "x", "y", "arm", markers={"a": "s", "b": "o"})
    assert [line.get_marker() for line in axes.lines] == ["s", ".", "o", "."]
    plt.close("all")


def test_missing_colour_raises_key_error():
    table = pd.DataFrame({"x": [1, 2], "y": 1.0, "arm": ["a", "b"]})
    with pytest.raises(KeyError, match="b"):
        charts.by_arm(plt.subplots()[1], table, "x", "y", "arm", colors={"a": "C0"})
    plt.close("all")


@pytest.fixture
def drawn(monkeypatch):
    """The figures that were shown, with their captions."""
    figures = []
    monkeypatch.setattr(charts, "png", lambda *figure_and_caption: figures.append(figure_and_caption))
    return figures


def test_rope_and_alibi_figure_shows_the_score_and_every_weight(drawn):
    before = (torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0]))
    after = (torch.tensor([0.6, 0.8]), torch.tensor([0.0, 1.0]))
    charts.rope_and_alibi(before, after, torch.tensor([0.25, 0.75]), ((2, 0.4), (4, 0.0)))
    left, right = drawn[0][0].axes
    assert left.get_title("left") == "RoPE: score 0.80"
    assert [bar.get_height() for bar in right.patches] == [25, 75]
    texts = [text.get_text() for text in left.texts if text.get_text()]
    assert texts == ["query\n2 \u00d7 0.4", "key\n4 \u00d7 0", "before"]


def test_figure_of_numbers_met_shows_and_counts_every_number(drawn):
    weights = torch.arange(48).view(12, 2, 2)
    charts.numbers_met(weights, torch.full((3, 2), 100), torch.full((3, 2), 200))
    (axes,) = drawn[0][0].axes
    shown = [text.get_text() for text in axes.texts]
    assert "48 multiply-adds with weights, 12 with keys" in " ".join(axes.get_title("left").split())
    assert {str(i) for i in range(48)} | {"keys", "values", "weights"} <= set(shown)
    assert shown.count("100") == shown.count("200") == 6


def test_weighted_means_figure_shows_every_number_and_weight(drawn):
    values = torch.tensor([[1.0, 2.0, 3.0, 4.0], [10.0, 20.0, 30.0, 40.0]])
    weights = torch.tensor([[1.0, 0.0], [0.25, 0.75]])
    charts.weighted_means(values, weights, torch.tensor([1.0, 2.0, 23.25, 31.0]))
    shown = [text.get_text() for text in drawn[0][0].axes[0].texts]
    assert {"1", "40", "23.25", "31", "head 0", "head 1"} <= set(shown)
    assert [text for text in shown if "×" in text] == ["× 1", "× 0", "× 0.25", "× 0.75"]


def test_seen_keys_figure_shows_visible_keys_and_the_reach_of_each_head(drawn):
    causal = torch.ones(4, 4, dtype=torch.bool).tril()
    charts.seen_keys({"all": causal, "two": causal.triu(-1)}, {"1/2": 2, "1/4": 4}, trained=2, share=0.9)
    figure, caption = drawn[0]
    *squares, right = figure.axes
    everything, window = [axes.images[0].get_array().tolist() for axes in squares]
    assert everything == [[2, 0, 0, 0], [2, 2, 0, 0], [1, 2, 2, 0], [1, 1, 2, 2]]
    assert window == [[2, 0, 0, 0], [2, 2, 0, 0], [0, 2, 2, 0], [0, 0, 2, 2]]
    reach = [bar.get_width() for bar in right.patches]
    assert reach == [2, 2, 2, 4], "solid up to the trained length, then pale"
    assert "2 or more positions" in caption and "90%" in caption


def test_residual_stream_parts_sum_to_the_squared_norm_and_title_states_the_embedding_share(drawn):
    charts.stream_parts({"Pre-LN": [torch.tensor([1.0, 0.0]), torch.tensor([1.0, 2.0])]})
    (axes,) = drawn[0][0].axes
    assert axes.get_title("left") == "Pre-LN: 0.2 of it is the token"
    assert [text.get_text() for text in axes.texts] == ["1", "5"]
    assert [bar.get_height() for bar in axes.patches] == [1, 1, 0, 4]
