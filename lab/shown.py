"""What is displayed: rich output in a notebook, plain text where a script runs in a terminal."""

import sys

from IPython import display as ipython
from IPython import get_ipython
from IPython.display import Markdown


def display(shown, *, raw=False, metadata=None):
    """IPython's display; outside IPython the text of what is shown, on the terminal."""
    if get_ipython() is not None:
        ipython.display(shown, raw=raw, metadata=metadata)
    elif isinstance(shown, Markdown):
        printed(shown.data)
    else:
        print(shown.get("text/plain", "") if raw else getattr(shown, "data", shown))


def printed(markdown):
    """Markdown as a terminal shows it, tables with their lines."""
    from rich.console import Console
    from rich.markdown import Markdown as Text

    Console(file=sys.stdout, highlight=False).print(Text(markdown.replace("<br>", "; ")))
