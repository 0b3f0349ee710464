"""One look for every figure. Text in figures is English and mathematics; prose around them comes in both languages."""

import io

import matplotlib as mpl
import matplotlib.pyplot as plt
from cycler import cycler
from PIL import Image

# Okabe and Ito's palette: told apart by colour-blind readers and in print.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999")
PREDICTION = {"color": "#555555", "linestyle": "--", "linewidth": 1.2, "zorder": 1}

STYLE = {
    "figure.figsize": (7.2, 3.6),
    "figure.dpi": 100,
    "savefig.dpi": 110,
    "figure.constrained_layout.use": True,
    "axes.prop_cycle": cycler(color=COLORS),
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "grid.alpha": 0.25,
    "grid.linewidth": 0.6,
    "font.size": 9,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "lines.linewidth": 1.6,
    "lines.markersize": 4.5,
    "svg.hashsalt": "lab",  # the same figure gives the same file
}


def draw(plot, table):
    """The figure that plot(table, subplots) makes in the lab's look; `subplots` is matplotlib's."""
    with mpl.rc_context(STYLE):
        figures = set(plt.get_fignums())
        plot(table)
        (new,) = set(plt.get_fignums()) - figures
        return plt.figure(new)


def save(figure, stem):
    """Write stem.png and stem.svg; returns the bytes of the PNG."""
    stem.parent.mkdir(parents=True, exist_ok=True)
    picture = png(figure)
    stem.with_suffix(".png").write_bytes(picture)
    figure.set_layout_engine("none")  # as laid out for the PNG
    with mpl.rc_context(STYLE):
        figure.savefig(stem.with_suffix(".svg"), metadata={"Date": None})
    return picture


def png(figure):
    """The figure as the bytes of a PNG with 256 colours: a third of the size of one with all."""
    drawn, small = io.BytesIO(), io.BytesIO()
    with mpl.rc_context(STYLE):
        figure.savefig(drawn, format="png")
    Image.open(drawn).convert("RGB").quantize(256, dither=Image.Dither.NONE).save(small, format="PNG")
    return small.getvalue()
