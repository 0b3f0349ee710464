"""How a notebook reads: its title and its question, in the reader's language, and the order of its figures."""

from lab.engine import parameters
from lab.language import in_language, sides


def title(notebook):
    """The heading; as it is written where the language has no other."""
    return _opening(notebook).splitlines()[0].lstrip("# ")


def question(notebook):
    """The first paragraph under the heading."""
    paragraphs = [" ".join(part.split()) for part in _opening(notebook).split("\n\n")[1:]] or [""]
    return paragraphs[0].strip("*")


def figures(notebook, folder):
    """Stems of the figures of a run in `folder`, in the order in which the notebook shows them."""
    code = notebook.read_text("utf-8")
    stems = [path.stem for path in (folder / "figures").glob("*.png")]
    return sorted(stems, key=lambda stem: (code.find(f'\\"{stem}\\"'), stem))


def _opening(notebook):
    """The cell with the heading, in the reader's language."""
    cells = (source for kind, _, source in parameters.cells_of(notebook) if kind == "markdown")
    return in_language(*sides(next((source for source in cells if source.startswith("#")), f"# {notebook.stem}")))
