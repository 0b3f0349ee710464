"""Display of results: rich output in a notebook, plain text in a terminal; the bar of a sweep."""

import io
import sys
from pathlib import Path

from IPython import display as ipython
from IPython import get_ipython
from IPython.display import Markdown
from tqdm import tqdm

BAR = "{desc}: {n}/{total} trials [{elapsed}<{remaining}]"


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


class Progress:
    """A progress bar of a sweep, which vanishes when the sweep ends.

    For `lab run` the text of the bar is written to `file` instead. There is no bar where all trials
    are known already.
    """

    def __init__(self, name, file=""):
        self.name, self.file, self.bar = name, file, None
        self.ran = 0  # trials that ran in this sweep

    def __call__(self, done, total):
        if self.bar is None and done < total:
            kernel = getattr(get_ipython(), "kernel", None)  # Jupyter shows stderr in red
            out = io.StringIO() if self.file else sys.stdout if kernel else sys.stderr
            options = {"miniters": 1, "mininterval": 0, "smoothing": 0, "leave": False}
            about = {"desc": self.name, "initial": done, "total": total, "bar_format": BAR}
            self.bar = tqdm(file=out, **about, **options)
        if self.bar is None:
            return
        self.ran += done - self.bar.n
        self.bar.update(done - self.bar.n)
        if self.file:
            Path(self.file).write_text(str(self.bar) if done < total else "", "utf-8")
        if done == total:
            self.bar.close()
