"""Sphinx configuration of the book."""

import re

from docutils import nodes
from sphinx.search import SearchLanguage

project = "Transformer Lab"
author = "Transformer Lab"
extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx_design",
    "sphinx_copybutton",
    "sphinx-mathjax-offline",
]
html_theme = "sphinx_book_theme"
html_static_path = ["static"]
templates_path = ["parts"]
html_css_files = ["book.css"]
html_js_files = ["turn.js", "book.js"]
html_context = {"default_mode": "auto"}
html_theme_options = {
    "show_toc_level": 2,
    "use_download_button": False,
    "use_fullscreen_button": False,
    "home_page_in_toc": True,
    "navbar_persistent": [],
    "article_header_end": ["language.html", "article-header-buttons.html"],
}
html_copy_source = False
html_show_copyright = False
html_show_search_summary = False  # browsers do not fetch summaries for pages opened from a folder
nb_execution_mode = "off"
nb_render_markdown_format = "gfm"  # cards are tables
myst_enable_extensions = ["dollarmath", "colon_fence", "attrs_inline", "strikethrough"]
myst_disable_syntax = ["html_block", "html_inline"]  # HTML in a notebook is shown as text
myst_heading_anchors = 3
autodoc_member_order = "bysource"
suppress_warnings = ["myst.header", "myst.strikethrough", "mystnb.unknown_mime_type"]


def setup(app):
    app.connect("doctree-read", describe)
    app.connect("autodoc-process-docstring", as_written)
    app.add_search_language(Chinese)


def describe(app, document):
    """Give every picture in a cell's outputs the plain text of its output as alternative text."""
    for output in document.findall(nodes.container):
        forms = {
            form.get("mime_type"): form
            for form in output.children
            if isinstance(form, nodes.container)
        }
        if "image/png" in forms and "text/plain" in forms:
            for image in forms["image/png"].findall(nodes.image):
                image["alt"] = forms["text/plain"].astext()


def as_written(app, what, name, thing, options, lines):
    """Escape a docstring for Sphinx, in place: only `code` and indentation keep a meaning."""
    signs, found, before = re.compile(r"`+([^`]+)`+|([*|_\\`])"), [], 0
    for line in lines:
        depth = len(line) - len(line.lstrip())
        found += [""] if line and depth != before else []
        found.append(signs.sub(lambda sign: f"``{sign[1]}``" if sign[1] else f"\\{sign[2]}", line))
        before = depth
    lines[:] = found


PARTS = re.compile("[\u4e00-\u9fff]+|[a-zA-Z0-9_]+")


class Chinese(SearchLanguage):
    """Chinese text is indexed by pairs of characters: 掩码的 becomes 掩码 and 码的.

    The script of the search page splits queries by the same rule.
    """

    lang = "zh"
    language_name = "Chinese"
    js_splitter_code = """
splitQuery = (query) =>
  (query.match(/[\\u4e00-\\u9fff]+|[a-zA-Z0-9_]+/g) || []).flatMap((part) =>
    /[\\u4e00-\\u9fff]/.test(part) && part.length > 1
      ? [...part].slice(1).map((character, i) => part[i] + character)
      : [part]);
"""

    def split(self, text):
        return [piece for part in PARTS.findall(text) for piece in pairs(part)]

    def stem(self, word):
        return word.lower()

    def word_filter(self, word):
        return True


def pairs(part):
    """[pair of characters] of a Chinese part; [part] of any other part or a single character."""
    if len(part) < 2 or not "\u4e00" <= part[0] <= "\u9fff":
        return [part]
    return [first + second for first, second in zip(part, part[1:], strict=False)]
