"""Sphinx configuration of the book."""

project = "Transformer Lab"
author = "Transformer Lab"
extensions = ["myst_nb", "sphinx_design", "sphinx_copybutton", "sphinx-mathjax-offline"]
html_theme = "sphinx_book_theme"
html_title = "Transformer Lab"
html_static_path = ["static"]
html_css_files = ["book.css"]
html_context = {"default_mode": "auto"}
html_theme_options = {
    "show_toc_level": 2,
    "use_download_button": False,
    "use_fullscreen_button": False,
    "home_page_in_toc": True,
}
html_copy_source = False
html_show_copyright = False
nb_execution_mode = "off"
myst_enable_extensions = ["dollarmath", "colon_fence", "attrs_inline"]
myst_disable_syntax = ["html_block", "html_inline"]  # what looks like HTML in a notebook is text
myst_heading_anchors = 3
suppress_warnings = ["myst.header", "mystnb.unknown_mime_type"]
