"""Figures: a common style, saving and display, and plot functions for tables.

Attention maps are stored in long form, one row per pair of query and key with a non-negligible
weight: query, key, weight, query_token, key_token, and columns that identify the map.
"""

import base64
import html
import io
import itertools
import textwrap
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from IPython import get_ipython
from IPython.display import display
from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter
from PIL import Image
from PIL.PngImagePlugin import PngInfo

STYLE = Path(__file__).with_name("lab.mplstyle")
LOOK = mpl.rc_params_from_file(STYLE, use_default_template=False)
COLORS = LOOK["axes.prop_cycle"].by_key()["color"]
PREDICTION = {"color": "#555555", "linestyle": "--", "linewidth": 1.2, "zorder": 1}
AT_RIGHT = {"xycoords": ("axes fraction", "data"), "textcoords": "offset points"}
CAPTION = "Description"  # PNG metadata keyword
TEXT_COLOR = "var(--jp-content-font-color1, inherit)"  # follows JupyterLab's theme
DISPLAY_DPI = 110  # the file has a higher resolution, for high-density screens
MARKERS = "osD^vP*X"
MAX_WIDTH, MAX_HEIGHT = 8.5, 7.0  # inches; pages shrink larger figures
MIN_WEIGHT = 0.005  # tables omit smaller attention weights
DOT = "\u00b7"


# Figures


@contextmanager
def drawn(plot, *arguments, **values):
    """Yield the laid-out figure that plot(*arguments, **values) creates, then close it."""
    before = set(plt.get_fignums())
    try:
        with mpl.rc_context(LOOK):
            plot(*arguments, **values)
            (number,) = set(plt.get_fignums()) - before
            layout(plt.figure(number))
            yield plt.figure(number)
    finally:
        for number in set(plt.get_fignums()) - before:
            plt.close(number)


def png(figure, caption=""):
    """The PNG bytes of a figure, in 256 colours to save space, with the caption as metadata."""
    full, small, metadata = io.BytesIO(), io.BytesIO(), PngInfo()
    figure.savefig(full, format="png")
    if caption:
        metadata.add_itxt(CAPTION, caption)
    picture = Image.open(full).convert("RGB").quantize(256, dither=Image.Dither.NONE)
    picture.save(small, format="PNG", pnginfo=metadata)
    return small.getvalue()


def layout(figure):
    """Limit the figure size, move legends out of the axes, and simplify logarithmic ticks."""
    width, height = figure.get_size_inches()
    figure.set_size_inches(min(width, MAX_WIDTH), min(height, MAX_HEIGHT))
    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            if axis.get_scale() == "log":
                clear_ticks(axis)
    legends_outside(figure)
    figure.draw_without_rendering()  # positions of labels depend on limits and layout
    for axes in figure.axes:
        wrap(axes)
        separate([text for text in axes.texts if text.get_gid() == "mark"], axes)


def wrap(axes):
    """Wrap titles and axis labels to the size of the axes."""
    box = axes.get_window_extent()
    texts = {axes.title: box.width, axes._left_title: box.width}
    texts |= {axes.xaxis.label: box.width, axes.yaxis.label: box.height}
    for text, pixels in texts.items():
        letters = pixels / axes.figure.dpi * 72 / (0.52 * text.get_fontsize())
        lines = text.get_text().splitlines()
        text.set_text("\n".join(textwrap.fill(line, max(12, int(letters))) for line in lines))


def separate(labels, axes):
    """Move overlapping labels at the right of the axes upwards."""
    last = -np.inf
    for label in sorted(labels, key=lambda label: label.xy[1]):
        height = axes.transData.transform((0, label.xy[1]))[1] / axes.figure.dpi * 72
        last = max(height, last + 1.2 * label.get_fontsize())
        label.set_position((4, last - height))


def clear_ticks(axis):
    """Label a logarithmic axis at powers of ten only.

    If it spans less than a factor of 100, also label it at 2 and 5 times these powers.
    """
    axis.set_minor_formatter(NullFormatter())
    if not isinstance(axis.get_major_locator(), LogLocator):
        return  # ticks set by the plot function
    low, high = axis.get_view_interval()
    if high < 100 * low:
        axis.set_major_locator(LogLocator(10, subs=(1, 2, 5)))
        axis.set_major_formatter(StrMethodFormatter("{x:g}"))


def faults(figure):
    """Layout faults: axes with one tick, dashed lines without a label, overlapping text."""
    figure.draw_without_rendering()
    faults = []
    for axes in figure.axes:
        if not axes.get_visible() or not axes.has_data():
            continue
        name = axes.get_title(loc="left") or axes.get_title() or "a panel"
        for side, axis in (("x", axes.xaxis), ("y", axes.yaxis)):
            low, high = sorted(axis.get_view_interval())
            ticks = [tick for tick in axis.get_majorticklocs() if low <= tick <= high]
            if 0 < len(ticks) < 2:
                faults.append(f"{name}: one tick on {side}")
        dashed = [line for line in axes.lines if line.get_linestyle() == "--"]
        labels = len([text for text in axes.texts if text.get_text()])
        if unlabelled := [line for line in dashed if line.get_label().startswith("_")][labels:]:
            faults.append(f"{name}: {len(unlabelled)} dashed lines without a label")
    return faults + overlaps(figure)


def overlaps(figure):
    """A list with one sentence per pair of overlapping texts in a drawn figure."""
    sentences = []
    axes = [each for each in figure.axes if each.get_visible()]
    texts = [text for each in axes for text in (*each.texts, each.title, each._left_title)]
    texts += [text for each in axes for text in (each.xaxis.label, each.yaxis.label)]
    boxes = [(text.get_text(), text.get_window_extent()) for text in texts if text.get_text()]
    for (one, here), (other, there) in itertools.combinations(boxes, 2):
        wide = min(here.x1, there.x1) - max(here.x0, there.x0)
        high = min(here.y1, there.y1) - max(here.y0, there.y0)
        if min(wide, high) > 3:
            sentences.append(f"{one!r} overlaps {other!r}")
    return sentences


def legends_outside(figure):
    """Replace equal legends with one at the right; if they differ, move each below its axes."""
    legends = [axes.get_legend() for axes in figure.axes if axes.get_legend()]
    labels = {tuple(text.get_text() for text in legend.get_texts()) for legend in legends}
    if len(labels) == 1:
        handles = legends[0].legend_handles
        title = legends[0].get_title().get_text()
        for legend in legends:
            legend.remove()
        figure.legend(handles, labels.pop(), title=title, loc="outside right upper")
    elif legends:
        for legend in legends:
            legend.set_loc("upper left")
            legend.set_bbox_to_anchor((0, -0.2), legend.axes.transAxes)
        rows = max(len(legend.get_texts()) for legend in legends)
        figure.set_figheight(min(figure.get_figheight() + 0.17 * rows, MAX_HEIGHT))


def caption_in(path):
    """The caption in a PNG; "" if there is none."""
    with Image.open(path) as picture:
        return picture.text.get(CAPTION, "")


def show(picture, caption=""):
    """Display PNG bytes in a notebook, with a caption below. Does nothing outside a notebook.

    With a caption the output is HTML, because JupyterLab and MyST-NB show plain images without
    alternative text.
    """
    if get_ipython() is None:
        return
    encoded = base64.b64encode(picture).decode()
    width = round(Image.open(io.BytesIO(picture)).width * DISPLAY_DPI / LOOK["savefig.dpi"])
    shown = {"image/png": encoded, "text/plain": caption or "a figure"}
    if caption:
        text = html.escape(caption)
        image = f'<img src="data:image/png;base64,{encoded}" width="{width}" alt="{text}">'
        below = f'<figcaption style="color: {TEXT_COLOR}">{text}</figcaption>'
        figure = f'<figure style="margin: 0">{image}{below}</figure>'
        shown = {"text/html": figure, "text/plain": caption}
    display(shown, metadata={"image/png": {"width": width}}, raw=True)


# Attention maps


def long_map(tokens, weights, **names):
    """Convert an attention map (q, k) to a table; tokens are byte values or words.

    `names` are constant columns. If there are more keys than queries, the queries are the last
    tokens.
    """
    kept = weights > MIN_WEIGHT
    kept[-1, -1] = True  # the last entry encodes the size of the map
    query, key = np.nonzero(kept)
    token = np.array(tokens)
    pairs = {"query": query, "key": key, "weight": weights[query, key]}
    first = max(0, weights.shape[1] - len(weights))
    pairs |= {"query_token": token[first + query], "key_token": token[key]}
    return pd.DataFrame(pairs).assign(**names)


def dense_map(table):
    """Convert a table to an attention map (q, k); omitted pairs are 0."""
    queries = table["query"].max() + 1
    full = np.zeros((queries, max(queries, table.key.max() + 1)))
    full[table["query"], table.key] = table.weight
    return full


def characters(tokens):
    """Tick labels [(position, text)]: words are unchanged, bytes (numbers) are decoded as UTF-8.

    A multi-byte character has one label, centred on its bytes. Unprintable and incomplete
    characters become a dot, and so do numbers outside 0..255.
    """
    if any(isinstance(token, str) for token in tokens):
        return [(i, token) for i, token in enumerate(tokens) if token is not None]
    labels, i = [], 0
    known = bytes(token if token in range(256) else 0 for token in tokens)
    for text in known.decode(errors="surrogateescape"):
        width = len(text.encode(errors="surrogateescape"))
        visible = text.isprintable() and not text.isspace()
        labels.append((i + (width - 1) / 2, text if visible else DOT))
        i += width
    return labels


def _axis_tokens(table, side):
    """The tokens on the "query" or "key" axis of a table; None if unknown."""
    opposite = "query" if side == "key" else "key"
    known = dict(zip(table[side], table[f"{side}_token"], strict=True))
    other = dict(zip(table[opposite], table[f"{opposite}_token"], strict=True))
    if all(other.get(place, token) == token for place, token in known.items()):
        known = other | known  # both sides have the same tokens
    return [known.get(place) for place in range(max(known) + 1)]


def draw_map(axis, table):
    """Draw a map, with token labels on both axes if they fit and are printable."""
    axis.imshow(dense_map(table), cmap="Blues", vmin=0, vmax=1)
    axis.set(xlabel="key", ylabel="query")
    axis.locator_params(integer=True)
    for side, ticks in (("key", axis.xaxis), ("query", axis.yaxis)):
        texts = characters(_axis_tokens(table, side))
        if len(texts) <= 32 and any(text != DOT for _, text in texts):
            ticks.set_ticks(*zip(*texts, strict=True), fontsize=7, family="monospace")
    axis.grid(False)


def weighted_means(values, weights, output):
    """Show the weighted mean that each head computes in its columns.

    values (tokens, d), weights (heads, tokens), output (d). With h heads, head i has the columns
    from i d / h up to, but not including, (i + 1) d / h.
    """
    caption = (
        "Each head has columns of its own. There it multiplies the numbers of each token by its "
        "weight for this token (next to \u00d7), and adds up each column over the tokens. Grey "
        "numbers have weight 0. Last row: the output."
    )
    with drawn(_draw_means, values.tolist(), weights.tolist(), output.tolist()) as figure:
        show(png(figure, caption), caption)


def _draw_means(values, weights, output):
    tokens, heads, columns = len(values), len(weights), len(output)
    _, axes = plt.subplots(figsize=(7.4, 0.62 * tokens + 1.5))
    for i in range(columns):
        head = i * heads // columns
        left = i + 0.3 * head
        for token in range(tokens):
            weight = weights[head][token]
            _draw_cell(axes, left, token, values[token][i], COLORS[head], weight)
            if i == -(-head * columns // heads):
                axes.text(left + 0.06, token + 0.24, f"\u00d7 {weight:.2g}", fontsize=7)
        _draw_cell(axes, left, tokens + 0.5, output[i], COLORS[head], 1.0)
    for head in range(heads):
        middle = (head + 0.5) * columns / heads + 0.3 * head
        axes.text(middle, -0.15, f"head {head}", ha="center", color=COLORS[head])
    axes.set(xlim=(-0.1, columns + 0.3 * heads), ylim=(tokens + 1.6, -0.6), xticks=[])
    names = [f"token {token}" for token in range(tokens)]
    axes.set_yticks([*(token + 0.5 for token in range(tokens)), tokens + 1], [*names, "output"])
    axes.tick_params(length=0)
    axes.grid(False)
    axes.spines[:].set_visible(False)
    axes.set_title("What does each head take, and from which token?")


def _draw_cell(axes, left, top, number, color, weight):
    """Draw a box with a number; the colour is stronger for a larger weight."""
    face = mpl.colors.to_rgba(color, 0.06 + 0.55 * weight)
    axes.add_patch(plt.Rectangle((left, top), 1, 1, fc=face, ec="white", lw=1.5))
    ink = "#000000" if weight else "#888888"
    axes.text(left + 0.5, top + 0.64, f"{number:.4g}", ha="center", va="center", color=ink)


def rope_and_alibi(before, after, weights, turns):
    """Show a query and a key before and after RoPE's rotation, and ALiBi's weights for equal keys.

    before, after: (query, key), two numbers each. weights: (keys,), ordered by position. turns:
    (position, frequency) of the query and of the key.
    """
    score = float(after[0] @ after[1])
    pairs = [[arrow.tolist() for arrow in arrows] for arrows in (before, after)]
    caption = (
        "Left: the pale arrow is both before the rotation, thin arcs are its angles, position \u00d7 "
        f"speed, the thick one the angle between the two; the score after it is {score:.2f}. "
        "Right: all keys are equal, so their weights differ only because of their distances."
    )
    with drawn(_draw_two_ways, *pairs, score, weights.tolist(), turns) as figure:
        show(png(figure, caption), caption)


def _draw_two_ways(before, after, score, weights, turns):
    _, (left, right) = plt.subplots(1, 2, figsize=(8.5, 3.4), width_ratios=[1, 1.3])
    left.add_patch(plt.Circle((0, 0), 1, fill=False, ec="0.85"))
    colors = ("#333333", "#7a4fa3")  # other than those of RoPE and ALiBi
    pairs = zip(("query", "key"), colors, before, after, turns, (0.3, 0.45), strict=True)
    for name, color, old, new, (position, speed), radius in pairs:
        for tip, alpha in ((old, 0.3), (new, 1.0)):
            style = {"arrowstyle": "->", "color": color, "alpha": alpha, "lw": 1.8}
            style |= {"shrinkA": 0, "shrinkB": 0}
            left.annotate("", tip, (0, 0), arrowprops=style)
        angle = np.arctan2(*old[::-1]) + np.linspace(0, position * speed)
        left.plot(radius * np.cos(angle), radius * np.sin(angle), color=color, lw=1)
        words = {"color": color, "fontsize": 8, "ha": "center", "va": "center"}
        left.text(1.3 * new[0], 1.3 * new[1], f"{name}\n{position} \u00d7 {speed:g}", **words)
    (m, speed), (n, key_speed) = turns
    if before[0] == before[1] and speed == key_speed:  # only the offset parts them
        angle = np.arctan2(*before[1][::-1]) + np.linspace(n * speed, m * speed)
        left.plot(0.7 * np.cos(angle), 0.7 * np.sin(angle), color=COLORS[1], lw=2.2)
        offset = f"offset {m - n} \u00d7 {speed:g} = {(m - n) * speed:g} rad"
        left.text(0, -1.75, offset, fontsize=8, color=COLORS[1], ha="center", va="center")
    left.text(0.6 * before[0][0], 0.6 * before[0][1] - 0.17, "before", fontsize=8, ha="center")
    left.set(xlim=(-1.7, 1.7), ylim=(-1.9, 1.5), aspect="equal")
    left.set(xlabel="first number", ylabel="second number", title=f"RoPE: score {score:.2f}")
    percent = [100 * weight for weight in weights]
    bars = right.bar(range(len(weights)), percent, color=COLORS[0])
    right.bar_label(bars, fmt="%.1f", fontsize=8, padding=2)
    marks(right, {"1%": 1})
    right.set(xlabel="position of the key", ylabel="weight, percent", xticks=range(len(weights)))
    right.set(ylim=(0, 1.2 * max(percent)), title=f"ALiBi: seen from position {len(weights) - 1}")


def seen_keys(masks, reach, *, trained, share):
    """Show which keys each query sees under two masks, and how far the heads of ALiBi reach.

    masks: {name: (t, t) booleans}, True where the query (row) sees the key (column). reach: {slope:
    number of nearest keys that have `share` of the weight}. Keys at a distance of `trained` or more
    are pale.
    """
    caption = (
        f"Left and middle: the keys that each query sees; pale: those {trained} or more positions "
        "before it, which training never had; hatched: hidden. Right: how many of the nearest keys "
        f"hold {share:.0%} of the weight in each head of ALiBi, if all keys are alike, in the same "
        f"text; pale beyond {trained}."
    )
    offsets = {}
    for name, mask in masks.items():
        seen = np.array(mask.tolist())
        distance = np.arange(len(seen))[:, None] - np.arange(len(seen))
        offsets[name] = np.where(seen, np.where(distance < trained, 2, 1), 0)
    with drawn(_draw_seen, offsets, reach, trained, share) as figure:
        show(png(figure, caption), caption)


def _draw_seen(offsets, reach, trained, share):
    ratios = [1] * len(offsets) + [1.4]
    _, grid = plt.subplots(1, len(ratios), figsize=(8.5, 2.9), width_ratios=ratios)
    size = len(next(iter(offsets.values())))
    ticks = np.linspace(0, size, 5, dtype=int)
    looks = zip(grid[:-1], (COLORS[1], COLORS[4]), offsets.items(), strict=True)
    for axes, color, (name, square) in looks:
        paint = mpl.colors.ListedColormap(["white", mpl.colors.to_rgba(color, 0.3), color])
        axes.imshow(square, paint, vmin=0, vmax=2, interpolation="nearest")
        hidden = np.tril(square == 0)
        if hidden.any():
            with mpl.rc_context({"hatch.linewidth": 0.4, "hatch.color": "0.6"}):
                axes.contourf(hidden, levels=[0.5, 1.5], colors="none", hatches=["////"])
            words = {"bbox": {"fc": "white", "ec": "none", "pad": 1}, "fontsize": 8}
            axes.text(0.05, 0.12, "hidden by\nthe mask", transform=axes.transAxes, **words)
        axes.grid(False)
        axes.set(title=name, xlabel="key", ylabel="query", xticks=ticks[::2], yticks=ticks[::2])
        if (square == 1).any():
            axes.text(0.05, 0.12, "never seen\nin training", transform=axes.transAxes, fontsize=8)
    near = [min(keys, trained) for keys in reach.values()]
    grid[-1].barh(list(reach), near, color=COLORS[0])
    grid[-1].barh(list(reach), list(reach.values()), color=COLORS[0], alpha=0.3)
    beside = {"textcoords": "offset points", "va": "center", "fontsize": 8}
    for slope, keys in reach.items():  # numbers stand right of the dashed line
        grid[-1].annotate(str(keys), (max(keys, trained), slope), (4, 0), **beside)
    grid[-1].axvline(trained, **PREDICTION)
    words = {"xycoords": ("data", "axes fraction"), "textcoords": "offset points", "fontsize": 8}
    grid[-1].annotate("trained length", (trained, 1), (4, -2), va="top", **words)
    grid[-1].set(xlim=(0, 1.1 * size), xticks=[trained, *ticks[2:].tolist()])
    grid[-1].set_ylim(len(reach) - 0.4, -1.4)  # from the top, below the words
    grid[-1].set(xlabel=f"nearest keys with {share:.0%} of the weight", ylabel="slope of the head")
    grid[-1].set_title("ALiBi")


def numbers_met(weights, keys, values):
    """Show all operands of one token's multiplications in a block: weights, keys and values.

    weights (12, d, d): four matrices of attention, then eight of the feed-forward layer. keys,
    values (n, d). There are two bands of 2 d rows: the weights, and the keys with the values. So
    the length of a band is proportional to its work.
    """
    met, pairs = weights.numel(), keys.numel() + values.numel()
    caption = (
        "Each number shown is multiplied once for one token: on top those of the weights, below "
        "those of the keys and values of all tokens."
    )
    words = f"{met} multiply-adds with weights, {pairs} with keys and values"
    parts = (weights.tolist(), keys.T.tolist(), values.T.tolist())
    with drawn(_draw_met, *parts, words) as figure:
        show(png(figure, caption), caption)


def _draw_met(weights, keys, values, words):
    d, n = len(keys), len(keys[0])
    columns = max(6 * d, n)
    _, axes = plt.subplots(figsize=(7.4, min(5.0, 0.6 + 38.0 * d / columns)))
    for i, square in enumerate(weights):
        left, top = i % 6 * d, i // 6 * 1.35 * d
        _draw_numbers(axes, square, left, top, COLORS[0 if i < 4 else 2], columns)
        name = f"$W_{'QKVO'[i]}$" if i < 4 else f"$W_{1 if i < 8 else 2}$, part {i % 4 + 1}"
        size = min(8, 60 * d / columns)
        axes.text(left + d / 2, top - 0.04 * d, name, ha="center", fontsize=size, color="#444444")
    for table, name, color in ((keys, "keys", COLORS[1]), (values, "values", COLORS[4])):
        top = (3.0 if name == "keys" else 4.1) * d
        _draw_numbers(axes, table, 0, top, color, columns)
        axes.text(-0.1 * d, top + d / 2, name, ha="right", va="center", color=color)
    axes.text(-0.1 * d, 1.2 * d, "weights", ha="right", va="center", color=COLORS[0])
    axes.text(0, 2.96 * d, f"tokens 1 to {n}", fontsize=8, color="#444444")
    axes.set(xlim=(-0.05 * columns, columns + 0.1), ylim=(5.2 * d, -0.35 * d), xticks=[], yticks=[])
    axes.set_aspect("equal")
    axes.grid(False)
    axes.spines[:].set_visible(False)
    axes.set_title(words, pad=8)


def _draw_numbers(axes, table, left, top, color, columns):
    """Draw pale boxes with numbers; numbers that would be too small to read are left out."""
    for (i, j), number in np.ndenumerate(table):
        corner = (left + j, top + i)
        face = mpl.colors.to_rgba(color, 0.25)
        axes.add_patch(plt.Rectangle(corner, 1, 1, fc=face, ec="white", lw=0.6))
        if columns <= 50:
            size = min(9, 300 / columns)
            middle = (corner[0] + 0.5, corner[1] + 0.5)
            axes.text(*middle, f"{number:g}", ha="center", va="center", fontsize=size)
    width, height = len(table[0]), len(table)
    frame = plt.Rectangle((left, top), width, height, fill=False, ec="#555555", lw=0.9)
    axes.add_patch(frame)


def stream_parts(streams):
    """Show how the residual stream of one token grows, branch by branch, in each kind of stack.

    streams: {name: [vector after 0, 1, ... branches]}. Coordinate 0 is the embedding,
    coordinate i what branch i added: these parts are orthogonal, so squared norms add up. In the
    title, v is the squared length that the first branch returns over that of what it reads.
    """
    caption = (
        "Height: squared length of the stream after each branch. Black: what is left of the "
        "token that came in. Purple: what branches added, one shade each."
    )
    parts = {name: [x.square().tolist() for x in stream] for name, stream in streams.items()}
    with drawn(_draw_parts, parts) as figure:
        show(png(figure, caption), caption)


def _draw_parts(streams):
    fig, panels = plt.subplots(1, len(streams), figsize=(8.5, 3.2), squeeze=False)
    for axes, (name, stream) in zip(panels[0], streams.items(), strict=True):
        parts = np.array(stream)  # (branches passed, parts)
        v = Fraction(parts[1, 1] / parts[1, 0]).limit_denominator(1000)  # returned over read
        below = np.zeros(len(parts))
        for i, sizes in enumerate(parts.T):
            shade = plt.get_cmap("Purples")(0.25 + 0.5 * i / len(parts))
            color = "#333333" if i == 0 else shade
            axes.bar(range(len(parts)), sizes, bottom=below, color=color, ec="w", lw=0.5)
            below += sizes
        for i in {0, len(parts) - 1}:
            axes.text(i, below[i], f"{below[i]:.3g}", ha="center", va="bottom", fontsize=8)
        left = parts[-1, 0] / below[-1]
        axes.set(title=f"{name}: {left:.2g} of it is the token", xlabel="branches passed")
        axes.set(xticks=range(0, len(parts), 1 + len(parts) // 9), ylim=(0, 1.15 * below.max()))
        axes.grid(False)
    fig.suptitle(f"How does the stream grow, with v = {v}?")
    panels[0, 0].set_ylabel("squared length of the stream")


# Results


def log2_xaxis(axes, values):
    """Use a base-2 logarithmic x axis with ticks at `values`."""
    axes.set_xscale("log", base=2)
    axes.set_xticks(sorted(values), [f"{value:g}" for value in sorted(values)])
    axes.minorticks_off()


def seeds_and_mean(axes, table, x, y, *, color=None, label=None, marker="o"):
    """Draw runs as dots, and the mean as a line. Returns the line."""
    means = table.groupby(x)[y].mean()
    (line,) = axes.plot(means.index, means, marker=marker, color=color, label=label)
    axes.plot(table[x], table[y], ".", color=line.get_color(), alpha=0.45, ms=3)
    return line


def by_arm(axes, table, x, y, arm, names=None, colors=None, markers=None, **words):
    """Draw one seeds_and_mean line per value of the column `arm`, with a legend.

    `names` is a function or dict from values to labels. `colors` and `markers` are dicts from all
    values to colours and markers. `words`, such as the title and axis labels, are passed to
    axes.set.
    """
    for i, (value, part) in enumerate(table.groupby(arm, sort=False)):
        color = colors[value] if colors else None
        marker = markers[value] if markers else MARKERS[i % len(MARKERS)]
        label = _label(value, names)
        seeds_and_mean(axes, part, x, y, color=color, label=label, marker=marker)
    axes.set(**words)
    axes.legend()


def _label(value, names):
    """The label of a value from `names` (function, dict or None), else the value itself.

    Escapes the characters that matplotlib interprets in a value: a leading "_" would hide the
    legend entry, and "$" would delimit a formula.
    """
    label = (names if callable(names) else (names or {}).get)(value)
    if label or not isinstance(value, str):
        return label or value
    return ("\u200b" if value.startswith("_") else "") + value.replace("$", r"\$")


def forest(axes, table, value, arm, *, bar=(), names=None, colors=None, **words):
    """Forest plot: one row per value of `arm`, with runs as dots and the mean with its 95 % CI.

    A solid line marks zero. Dashed lines mark `bar`: the smallest difference that matters, or both
    ends of a range. `names`, `colors` and `words` are as in by_arm.
    """
    from lab.measure.statistics import mean

    groups = table.groupby(arm, sort=False)[value]
    intervals = [mean(values) for _, values in groups]
    digits = _decimals([interval.high - interval.low for interval in intervals])
    for row, (name, values) in enumerate(groups):
        color = colors[name] if colors else f"C{row % len(COLORS)}"
        interval = intervals[row]
        axes.plot(values, [row + 0.25] * len(values), ".", color=color, alpha=0.45)
        axes.plot(interval.effect, row, "o", color=color, ms=6)
        text = f"{interval.effect:z.{digits}f}"
        if np.isfinite(interval.high):
            axes.plot((interval.low, interval.high), (row, row), color=color)
            text += f" [{interval.low:z.{digits}f}, {interval.high:z.{digits}f}]"
        text = text.replace("-", "−")
        axes.annotate(text, (1, row), (4, 0), **AT_RIGHT, va="center", fontsize=7)
    axes.axvline(0, color="#555555", lw=0.8, zorder=1)
    for at in np.atleast_1d(bar):
        axes.axvline(at, **PREDICTION)
        axes.annotate(
            f"threshold {at:g}".replace("-", "−"),
            (at, -0.6),
            (3, 0),
            textcoords="offset points",
            size=7,
        )
    axes.set(ylim=(groups.ngroups - 0.5, -0.8), yticks=range(groups.ngroups), **words)
    axes.set_yticklabels([_label(name, names) for name in groups.groups])
    axes.grid(False, axis="y")


def _decimals(widths):
    """Number of decimals that gives the widest interval two significant digits."""
    known = [width for width in widths if np.isfinite(width) and width > 0]
    return max(0, 1 - int(np.floor(np.log10(max(known, default=1.0)))))


def fit_line(axes, table, x, y, *, color=None, label=None):
    """Draw runs as dots on log-log axes, with a fitted power law as a line.

    Returns the exponent: an Interval over seeds (statistics.exponent). The caller draws the legend.
    """
    from lab.measure.statistics import exponent

    axes.set(xscale="log", yscale="log")
    fit = exponent(table[x], table[y], table["seed"])
    (dots,) = axes.plot(table[x], table[y], ".", alpha=0.45, color=color)
    ends = np.array([table[x].min(), table[x].max()])
    offsets = np.log(ends) - np.log(table[x]).mean()
    line = np.exp(np.log(table[y]).mean() + fit.effect * offsets)
    text = f"slope {fit.effect:.2f} [{fit.low:.2f}, {fit.high:.2f}]"
    text = f"{label}: {text}" if label else text
    axes.plot(ends, line, color=dots.get_color(), label=text)
    return fit


def marks(axes, levels):
    """Draw a dashed horizontal line for each of `levels`, {name: height}, labelled at the right."""
    for name, height in levels.items():
        axes.axhline(height, **PREDICTION)
        axes.annotate(name, (1, height), (4, 0), **AT_RIGHT, va="center", fontsize=7, gid="mark")
