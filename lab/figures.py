"""The common style of all figures, and functions that draw, save and show them."""

import base64
import html
import inspect
import io

import matplotlib as mpl
import matplotlib.pyplot as plt
from cycler import cycler
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from lab.shown import display

# Okabe and Ito's palette: distinguishable for colour-blind readers and in print.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999")
PREDICTION = {"color": "#555555", "linestyle": "--", "linewidth": 1.2, "zorder": 1}

CAPTION = "Description"  # the keyword of a PNG that holds its caption
TEXT_COLOR = "var(--jp-content-font-color1, inherit)"  # of JupyterLab's theme, light or dark

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
}


def draw(plot, table):
    """The figure that plot(table) creates, in the common style."""
    with mpl.rc_context(STYLE):
        figures = set(plt.get_fignums())
        plot(table)
        (new,) = set(plt.get_fignums()) - figures
        return plt.figure(new)


def picture(plot, *arguments, **values):
    """The PNG bytes of the figure that plot(*arguments, **values) makes; the figure is closed."""
    before = set(plt.get_fignums())
    try:
        return png(draw(lambda _: plot(*arguments, **values), None))
    finally:
        for number in set(plt.get_fignums()) - before:
            plt.close(number)


def caption_of(plot):
    """The caption in the docstring of a drawing function, on one line; "" where it has none."""
    return " ".join((inspect.getdoc(plot) or "").split())


def save(figure, stem, caption=""):
    """Write stem.png with its caption embedded; return the PNG bytes."""
    stem.parent.mkdir(parents=True, exist_ok=True)
    picture = png(figure, caption)
    stem.with_suffix(".png").write_bytes(picture)
    return picture


def png(figure, caption=""):
    """The figure as PNG bytes with 256 colours, a third of the size of full colour."""
    drawn = io.BytesIO()
    small = io.BytesIO()
    words = PngInfo()
    with mpl.rc_context(STYLE):
        figure.savefig(drawn, format="png")
    if caption:
        words.add_itxt(CAPTION, caption)
    picture = Image.open(drawn).convert("RGB").quantize(256, dither=Image.Dither.NONE)
    picture.save(small, format="PNG", pnginfo=words)
    return small.getvalue()


def caption_in(path):
    """The caption that `save` wrote into a PNG; "" where there is none."""
    with Image.open(path) as picture:
        return picture.text.get(CAPTION, "")


def show(picture, caption=""):
    """Display a PNG, given as bytes, with its caption below.

    With a caption the output is HTML, since JupyterLab and MyST-NB give a plain image no
    alternative text.
    """
    encoded = base64.b64encode(picture).decode()
    shown = {"image/png": encoded, "text/plain": caption or "a figure"}
    if caption:
        text = html.escape(caption)
        image = f'<img src="data:image/png;base64,{encoded}" alt="{text}">'
        below = f'<figcaption style="color: {TEXT_COLOR}">{text}</figcaption>'
        shown = {
            "text/html": f'<figure style="margin: 0">{image}{below}</figure>',
            "text/plain": caption,
        }
    display(shown, raw=True)
