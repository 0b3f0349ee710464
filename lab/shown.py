"""Display of results: rich output in a notebook, plain text in a terminal."""

import sys

from IPython import display as ipython
from IPython import get_ipython
from IPython.display import Markdown


def display(shown, *, raw=False, metadata=None):
    """Display with IPython; outside IPython, print as text."""
    if get_ipython() is not None:
        ipython.display(shown, raw=raw, metadata=metadata)
    elif isinstance(shown, Markdown):
        printed(shown.data)
    else:
        print(shown.get("text/plain", "") if raw else getattr(shown, "data", shown))


def printed(markdown):
    """Print Markdown, with tables drawn for a terminal."""
    from rich.console import Console
    from rich.markdown import Markdown as Text

    Console(file=sys.stdout, highlight=False).print(Text(markdown.replace("<br>", "; ")))
