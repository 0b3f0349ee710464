"""The common style of all figures, and functions that draw, save and show them."""

import base64
import contextlib
import html
import inspect
import io
import re
import warnings
from functools import cache

import matplotlib as mpl
import matplotlib.pyplot as plt
from cycler import cycler
from matplotlib import font_manager
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from lab.language import in_language, language, tr
from lab.shown import display

# Okabe and Ito's palette: distinguishable for colour-blind readers and in print.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999")
PREDICTION = {"color": "#555555", "linestyle": "--", "linewidth": 1.2, "zorder": 1}

CAPTIONS = ("Description", "Description-zh")  # keywords of a PNG

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


# Fonts with Chinese characters that systems provide, in order of preference.
CHINESE = (
    "Noto Sans CJK SC",
    "Noto Sans SC",
    "Source Han Sans SC",
    "Source Han Sans CN",
    "WenQuanYi Micro Hei",
    "WenQuanYi Zen Hei",
    "PingFang SC",
    "Hiragino Sans GB",
    "Heiti SC",
    "Microsoft YaHei",
    "SimHei",
    "Noto Sans CJK JP",
    "Arial Unicode MS",
    "Droid Sans Fallback",
)


@cache
def chinese_font():
    """The name of an installed font with Chinese characters, or None."""
    fonts = font_manager.fontManager
    if not (found := _first_chinese()):  # matplotlib's cached list may be outdated
        listed = {entry.fname for entry in fonts.ttflist}
        for path in set(font_manager.findSystemFonts()) - listed:
            with contextlib.suppress(Exception):  # some files are not fonts
                fonts.addfont(path)
        found = _first_chinese()
    return found


def _first_chinese():
    there = {entry.name for entry in font_manager.fontManager.ttflist}
    return next((name for name in CHINESE if name in there), None)


def style():
    """matplotlib settings of a figure, with a fallback font for Chinese characters."""
    if font := chinese_font():
        return STYLE | {"font.family": ["sans-serif", font]}
    if language() == "zh":
        warn_about_missing_font()
    return STYLE


def monospace():
    """Monospace font families for tokens, including Chinese ones."""
    return ["monospace", *filter(None, [chinese_font()])]


@cache
def warn_about_missing_font():
    warnings.warn(
        tr(
            "no font with Chinese characters was found, so figures show boxes: install Noto Sans "
            "CJK (Debian: apt install fonts-noto-cjk; Windows and macOS bring one)"
        ),
        stacklevel=2,
    )
    # matplotlib would warn about each glyph
    warnings.filterwarnings("ignore", r"Glyph \d+ .* missing from")


def draw(plot, table):
    """The figure that plot(table) creates, in the common style."""
    with mpl.rc_context(style()):
        figures = set(plt.get_fignums())
        plot(table)
        (new,) = set(plt.get_fignums()) - figures
        return plt.figure(new)


def captions(plot):
    """The (English, Chinese) captions in the docstring of a drawing function, one paragraph each.

    Returns ("", "") if the docstring has another form.
    """
    paragraphs = [" ".join(part.split()) for part in (inspect.getdoc(plot) or "").split("\n\n")]
    if len(paragraphs) != 2 or not re.search("[\u4e00-\u9fff]", paragraphs[1]):
        return "", ""
    # without the spaces at line ends, which Chinese does not have
    return paragraphs[0], re.sub(r"(?<=[^\x00-\x7f]) (?=[^\x00-\x7f])", "", paragraphs[1])


def save(figure, stem, caption="", caption_zh="", vector=True):
    """Write stem.png with embedded captions, and stem.svg if `vector`; return the PNG bytes."""
    stem.parent.mkdir(parents=True, exist_ok=True)
    picture = png(figure, caption, caption_zh)
    stem.with_suffix(".png").write_bytes(picture)
    if not vector:
        return picture
    figure.set_layout_engine("none")  # keep the layout of the PNG
    with mpl.rc_context(style()):
        figure.savefig(
            stem.with_suffix(".svg"), metadata={"Date": None, "Description": caption or None}
        )
    return picture


def png(figure, caption="", caption_zh=""):
    """The figure as PNG bytes with 256 colours, a third of the size of full colour."""
    drawn = io.BytesIO()
    small = io.BytesIO()
    words = PngInfo()
    with mpl.rc_context(style()):
        figure.savefig(drawn, format="png")
    for keyword, text in zip(CAPTIONS, (caption, caption_zh), strict=True):
        if text:
            words.add_itxt(keyword, text)
    picture = Image.open(drawn).convert("RGB").quantize(256, dither=Image.Dither.NONE)
    picture.save(small, format="PNG", pnginfo=words)
    return small.getvalue()


def captions_in(path):
    """The (English, Chinese) captions that `save` wrote into a PNG; "" for a missing one."""
    with Image.open(path) as picture:
        return tuple(picture.text.get(keyword, "") for keyword in CAPTIONS)


def caption_of(text):
    """HTML of a caption in the text colour of JupyterLab's theme, light or dark."""
    return f'<figcaption style="color: var(--jp-content-font-color1, inherit)">{text}</figcaption>'


def show(picture, caption="", caption_zh="", *, live=None):
    """Display a PNG, given as bytes; frontends with widgets show `live` instead.

    With a caption the output is HTML, since JupyterLab and MyST-NB give a plain image no
    alternative text.
    """
    encoded = base64.b64encode(picture).decode()
    text = in_language(caption, caption_zh) or "a figure"
    shown = {"image/png": encoded, "text/plain": text}
    if caption:
        both = (
            html.escape(caption),
            f'<span lang="zh">{html.escape(caption_zh)}</span>' if caption_zh else "",
        )
        below = "<br>".join(filter(None, both if language() == "en" else reversed(both)))
        image = f'<img src="data:image/png;base64,{encoded}" alt="{html.escape(text)}">'
        shown = {
            "text/html": f'<figure style="margin: 0">{image}{caption_of(below)}</figure>',
            "text/plain": text,
        }
    display(shown | (live or {}), raw=True)
