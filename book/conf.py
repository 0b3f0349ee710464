"""Sphinx configuration of the book: the published lessons as static pages (`make book`)."""

project = "Transformer Lab"
extensions = ["myst_nb", "sphinx-mathjax-offline"]
root_doc = "book/index"
include_patterns = ["book/index.md", "experiments/errata.md", "results/quick/*/notebook.ipynb"]
exclude_patterns = [".venv", "results/book"]
html_theme = "sphinx_book_theme"
html_title = project
html_extra_path = ["index.html"]  # leads from the root of the site to book/index.html
html_show_copyright = False
nb_execution_mode = "off"
nb_remove_code_outputs = False
myst_enable_extensions = ["dollarmath", "amsmath"]
suppress_warnings = ["myst.xref_missing", "myst.header", "mystnb.unknown_mime_type"]
