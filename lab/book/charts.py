"""The page of chart verbs: every public one of `lab.charts`, drawn once from a tiny table, with its call beside it."""

import inspect
import textwrap

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch

from lab import charts, figures


def long_map():
    table = charts.long_map(["the", "cat", "sat"], np.array([[1, 0, 0], [0.3, 0.7, 0], [0, 0.9, 0.1]]), panel="head 0")
    figure = plt.figure(figsize=(5, 1.6))
    figure.text(0.5, 0.5, table.to_string(index=False), family="monospace", ha="center", va="center")


def dense_map():
    table = pd.DataFrame({"query": [0, 1, 1, 2], "key": [0, 0, 1, 1], "weight": [1, 0.3, 0.7, 0.9]})
    _, axes = plt.subplots(figsize=(2.4, 2.4))
    axes.imshow(charts.dense_map(table), cmap="Blues")


def characters():
    _, axes = plt.subplots(figsize=(5, 1))
    for place, text in charts.characters(list("a = 'é中'".encode())):  # eleven bytes
        axes.text(place, 0, text, ha="center", family=figures.monospace())
    axes.set(xlim=(-1, 11), ylim=(-0.5, 1), xticks=range(11), yticks=[])


def draw_map():
    weights = np.eye(9, k=-1) * 0.8 + np.eye(9) * 0.2
    _, axes = plt.subplots(figsize=(3, 3))
    charts.draw_map(axes, charts.long_map(list(b"x = f(x)\n"), weights))


def draw_arcs():
    weights = np.array([[1, 0, 0, 0], [0.6, 0.4, 0, 0], [0.1, 0.9, 0, 0], [0, 0.8, 0, 0.2]])
    _, axes = plt.subplots(figsize=(5, 1.6))
    charts.draw_arcs(axes, charts.long_map(["the", "cat", "sat", "down"], weights), threshold=0.3)


def plot_maps():
    before, alike = np.eye(6, k=-1), np.tri(6) / np.arange(1, 7)[:, None]
    before[0, 0] = 1
    kinds = {"this token": np.eye(6), "token before": before, "all alike": alike}
    charts.plot_maps(pd.concat(charts.long_map(list("abcabc"), kinds[name], panel=name) for name in kinds))


def plot_heads():
    before, even = torch.eye(6).roll(1, 0).tril(), torch.ones(6, 6).tril() / torch.arange(1, 7)[:, None]
    charts.plot_heads(list(b"abcabc"), [torch.stack([even, before])[None], torch.stack([before, torch.eye(6)])[None]])


def plot_arcs():
    before, copy = np.eye(6, k=-1), np.eye(6, k=-3)
    before[0, 0] = copy[0, 0] = copy[1, 0] = copy[2, 0] = 1
    kinds = {"token before": before, "copy before": copy}
    charts.plot_arcs(pd.concat(charts.long_map(list("abcabc"), kinds[name], panel=name) for name in kinds))


def plot_scores():
    table = pd.DataFrame({"layer": [0, 0, 1, 1] * 2, "head": [0, 1] * 4})
    table["measure"] = ["previous token"] * 4 + ["induction"] * 4
    charts.plot_scores(table.assign(value=[0.9, 0.1, 0.1, 0.2, 0, 0, 0.8, 0.1], uniform=0.04))


def doubling():
    _, axes = plt.subplots(figsize=(5, 2.4))
    axes.plot([1, 2, 4, 8], [0.2, 0.6, 0.9, 0.9], marker="o")
    charts.doubling(axes, [1, 2, 4, 8])


def seeds_and_mean():
    table = pd.DataFrame({"heads": [1, 1, 1, 2, 2, 2, 4, 4, 4], "loss": [1.8, 1.9, 1.8, 1.7, 1.7, 1.6, 1.6, 1.7, 1.6]})
    _, axes = plt.subplots(figsize=(5, 2.4))
    charts.seeds_and_mean(axes, table, "heads", "loss", label="width 64")
    axes.legend()


def by_arm():
    table = pd.DataFrame({"rule": ["layer kept"] * 6 + ["head kept"] * 6, "heads": [1, 1, 2, 2, 4, 4] * 2})
    table["loss"] = [1.8, 1.81, 1.72, 1.71, 1.69, 1.7, 1.8, 1.82, 1.66, 1.65, 1.58, 1.59]
    _, axes = plt.subplots(figsize=(5, 2.4))
    charts.by_arm(axes, table, "heads", "loss", "rule", title="How many heads?", xlabel="heads", ylabel="loss, nats")


def forest():
    table = pd.DataFrame({"arm": ["rotary"] * 4 + ["ALiBi"] * 4 + ["none"] * 4, "seed": [1, 2, 3, 4] * 3})
    table["gain"] = [0.09, 0.07, 0.08, 0.1, 0.06, 0.01, 0.04, 0.03, 0.01, -0.02, 0.0, -0.03]
    _, axes = plt.subplots(figsize=(5, 2))
    charts.forest(axes, table, "gain", "arm", bar=0.02, xlabel="loss of learned positions - loss, nats")


def fit_line():
    table = pd.DataFrame({"n": [64, 128, 256, 512] * 3, "seed": [1] * 4 + [2] * 4 + [3] * 4})
    table["seconds"] = 1e-7 * table.n**1.9 * [1, 1.05, 1, 1.1, 1.1, 1, 1.2, 1.1, 0.9, 1, 1.1, 1]
    _, axes = plt.subplots(figsize=(5, 2.6))
    charts.fit_line(axes, table, "n", "seconds", slope=2, label="attention")
    charts.doubling(axes, table.n.unique())
    axes.set(xlabel="tokens", ylabel="seconds a call")
    axes.legend()


def marks():
    _, axes = plt.subplots(figsize=(5, 2.4))
    axes.plot([0, 100, 200, 300], [5.5, 2.6, 2.0, 1.8])
    charts.marks(axes, {"bigram table": 2.4, "trigram table": 1.9})


def squares():
    pairs = pd.MultiIndex.from_product([["trained", "at random"], ["looks", "says"], range(3), range(3)])
    table = pairs.to_frame(index=False, name=["arm", "measure", "y", "x"])
    table["alike"] = np.where(table.x == table.y, 1, np.where(table.arm == "trained", 0.2, 0.7))
    charts.squares(table, value="alike", across="measure", down="arm")


EXAMPLES = (
    by_arm, seeds_and_mean, marks, forest, fit_line, doubling, squares, plot_maps, plot_heads, draw_map, plot_arcs,
    draw_arcs, plot_scores, long_map, dense_map, characters,
)  # fmt: skip


def drawn(folder):
    """Draw every example into folder/NAME.png; returns [(name, arguments, docstring, code)]."""
    folder.mkdir(parents=True, exist_ok=True)
    found = []
    for example in EXAMPLES:
        verb, name = getattr(charts, example.__name__), example.__name__
        figure = figures.draw(lambda _, example=example: example(), None)
        (folder / f"{name}.png").write_bytes(figures.png(figure))
        plt.close(figure)
        code = textwrap.dedent(inspect.getsource(example).partition("\n")[2])
        found.append((name, str(inspect.signature(verb)), inspect.getdoc(verb), code))
    return found
