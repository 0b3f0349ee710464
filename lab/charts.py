"""Pictures of attention, drawn from tables alone: maps, arcs over the tokens, a grid of every head's scores.

A map is kept in long form, a row for each pair of query and key that matters: query, key, weight, query_token,
key_token, and whatever names tell it from other maps.
"""

from itertools import zip_longest

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

LEAST = 0.005  # lighter weights are left out of tables
DOT = "\u00b7"


def long_map(tokens, weights, **names):
    """The table of a map (q, k) over its tokens, numbers or words; `names` are constant columns."""
    query, key = np.nonzero(weights > LEAST)
    token = np.array(tokens)
    pairs = {"query": query, "key": key, "weight": weights[query, key]}
    return pd.DataFrame(pairs | {"query_token": token[query], "key_token": token[key]}).assign(**names)


def dense_map(table):
    """The square map (q, k) of a table; what was left out is 0."""
    full = np.zeros((table["query"].max() + 1,) * 2)
    full[table["query"], table.key] = table.weight
    return full


def characters(tokens):
    """(place, text) of what tokens say along an axis: words as they are, bytes (numbers) as characters of UTF-8.

    The bytes of one character are one text, in their middle. What has no picture, and a part of a character, is a dot;
    None says nothing.
    """
    i, found = 0, []
    while i < len(tokens):
        width, text = next(((w, t) for w in (1, 2, 3, 4) if (t := _spelt(tokens[i : i + w]))), (1, DOT))
        if tokens[i] is not None:
            found.append((i + (width - 1) / 2, text))
        i += width
    return found


def _spelt(tokens):
    """The one word or character that tokens spell, None where they do not."""
    if isinstance(tokens[0], str):
        return tokens[0] if len(tokens) == 1 else None
    try:
        text = bytes(tokens).decode()
    except (TypeError, ValueError):  # a word or a gap among them, no byte, a part of a character
        return None
    return None if len(text) != 1 else text if text.isprintable() and not text.isspace() else DOT


def _along(table, side):
    """The tokens of a table from position 0 on, queries or keys; None where none is known."""
    known = dict(zip(table[side], table[f"{side}_token"], strict=True))
    return [known.get(place) for place in range(max(known) + 1)]


def draw_map(axis, table):
    """A map with its tokens along both sides, where there is room for them and they can be written."""
    axis.imshow(dense_map(table), cmap="Blues", vmin=0, vmax=1)
    axis.set(xlabel="key", ylabel="query")
    axis.locator_params(integer=True)
    for side, ticks in (("key", axis.xaxis), ("query", axis.yaxis)):
        texts = characters(_along(table, side))
        if len(texts) <= 32 and any(text != DOT for _, text in texts):
            ticks.set_ticks(*zip(*texts, strict=True), fontsize=7, family="monospace")
    axis.grid(False)


def draw_arcs(axis, table, threshold):
    """Tokens along a line, an arc from each query to every key with more weight than the threshold."""
    keys, queries = (_along(table, side) for side in ("key", "query"))
    last = max(len(keys), len(queries)) - 1
    for row in table[table.weight > threshold].itertuples():
        middle, half = (row.query + row.key) / 2, max((row.query - row.key) / 2, 0.3)
        angle = np.linspace(0, np.pi, 30)
        axis.plot(middle + half * np.cos(angle), np.sqrt(half) * np.sin(angle), color="C0", lw=1, alpha=row.weight)
    for position, word in characters([k if k is not None else q for k, q in zip_longest(keys, queries)]):
        turn = 90 if len(word) > 2 else 0
        axis.text(position, -0.2, word, ha="center", va="top", fontsize=7, family="monospace", rotation=turn)
    axis.set(xlim=(-1, last + 1), ylim=(-1, np.sqrt(last / 2) + 0.3), yticks=[], xticks=[])
    axis.grid(False)
    axis.spines[["left", "bottom"]].set_visible(False)


def plot_maps(table):
    """A panel for each value of the column `panel`, three to a row."""
    panels = table.groupby("panel", sort=False)
    rows = -(-panels.ngroups // 3)
    fig, axes = plt.subplots(rows, min(3, panels.ngroups), figsize=(8, 2.8 * rows), squeeze=False)
    for axis in axes.flat[panels.ngroups :]:
        axis.set_visible(False)
    for axis, (name, part) in zip(axes.flat, panels, strict=False):
        draw_map(axis, part)
        axis.set_title(name)


def plot_arcs(table, threshold=0.2):
    """A line of tokens with its arcs for each value of the column `panel`."""
    panels = table.groupby("panel", sort=False)
    fig, axes = plt.subplots(panels.ngroups, 1, figsize=(8, 1.5 * panels.ngroups), squeeze=False)
    for axis, (name, part) in zip(axes.flat, panels, strict=True):
        draw_arcs(axis, part, threshold)
        axis.set_title(name)


def plot_scores(table):
    """A grid of layers and heads for every measure of a table of head_scores; numbers where there is room for them."""
    names = list(dict.fromkeys(table.measure))
    fig, axes = plt.subplots(2, -(-len(names) // 2), figsize=(9, 2.4 + 0.6 * table.layer.nunique()), squeeze=False)
    for axis in axes.flat[len(names) :]:
        axis.set_visible(False)
    for axis, measure in zip(axes.flat, names, strict=False):
        part = table[table.measure == measure]
        grid = part.pivot(index="layer", columns="head", values="value").to_numpy()
        axis.imshow(grid, vmin=0, vmax=max(1, np.nanmax(grid, initial=0)), cmap="Blues", origin="lower", aspect="auto")
        for (i, j), value in np.ndenumerate(grid if grid.size <= 24 else np.empty((0, 0))):
            axis.text(j, i, f"{value:.2f}", ha="center", va="center", color="w" if value > 0.6 else "k", fontsize=7)
        axis.set(xlabel="head", ylabel="layer", xticks=[], yticks=range(len(grid)))
        axis.set_title(f"{measure}\nuniform: {part.uniform.iloc[0]:.3g}", fontsize=8)
        axis.grid(False)


def doubling(axes, values):
    """A horizontal axis on which each doubling is a step, marked at the values."""
    axes.set_xscale("log", base=2)
    axes.set_xticks(sorted(values), [f"{value:g}" for value in sorted(values)])
    axes.minorticks_off()


def seeds_and_mean(axes, table, x, y, *, color=None, label=None, seed="seed"):
    """Every seed as a dot, their mean as a line, its 95 % t interval as a band."""
    from lab.measure.statistics import mean

    groups = table.groupby(x)[y]
    xs = list(groups.groups)
    intervals = [mean(values) for _, values in groups]
    (line,) = axes.plot(xs, [i.effect for i in intervals], marker="o", color=color, label=label)
    axes.fill_between(
        xs, [i.low for i in intervals], [i.high for i in intervals], color=line.get_color(), alpha=0.18, lw=0
    )
    axes.plot(table[x], table[y], ".", color=line.get_color(), alpha=0.45, ms=3)
    return line
