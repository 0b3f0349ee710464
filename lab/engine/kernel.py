"""One notebook in a kernel of its own, without a word of it or its machine in what is kept."""

import logging
import os
import tempfile

import nbformat
from jupyter_client.manager import AsyncKernelManager

from lab.engine import runs


class LocalKernelManager(AsyncKernelManager):
    """A kernel behind sockets in a private folder: no port that another kernel may take, nothing on the network.

    What it and its workers say beside the notebook goes to the file `aside`: when they are stopped they say a lot.
    """

    aside = os.devnull

    def __init__(self, **options):
        super().__init__(**options)
        if os.name == "posix":
            self._folder = tempfile.TemporaryDirectory(prefix="lab-")  # short: a socket's path is limited
            self.transport, self.connection_file = "ipc", f"{self._folder.name}/kernel.json"
            self.ip = f"{self._folder.name}/socket"

    async def start_kernel(self, **options):
        with open(self.aside, "wb") as aside:
            return await super().start_kernel(**options | {"stderr": aside})


def execute(book, values, folder, aside, watch):
    """The notebook `book`, executed in `folder` with the parameters `values`; watch(cell=, cells=) at every cell.

    What the kernel says beside it goes to the file `aside`, and to the error where it dies before it answers. Raises
    what papermill raises.
    """
    import papermill
    from nbclient.exceptions import DeadKernelError

    cells = len(book.cells) + bool(values)  # papermill puts one with the values among them
    logging.getLogger("papermill").setLevel(logging.ERROR)  # `results` may be unknown to a notebook from elsewhere
    try:
        return papermill.execute_notebook(
            book,
            None,  # papermill would write the file anew twice a cell
            values,
            kernel_name="python3",
            language="python",
            progress_bar=False,
            start_timeout=180,
            kernel_manager_class=type("Manager", (LocalKernelManager,), {"aside": aside}),
            on_cell_start=lambda cell, cell_index: watch(cell=cell_index + 1, cells=cells),
            cwd=folder,
        )
    except DeadKernelError:
        raise
    except RuntimeError as error:  # it died before it answered, and may have said why
        if aside.exists():
            error.add_note("\n".join(aside.read_text(errors="replace").splitlines()[-20:]))
        raise
    except KeyboardInterrupt:
        logging.getLogger("asyncio").setLevel(logging.CRITICAL)  # of the cell that was stopped, at the end
        raise


def tidy(executed, moved):
    """The text of an executed notebook, so that it names its final place and nothing of the machine it ran on."""
    text = nbformat.writes(executed)
    for before, after in moved.items():
        text = text.replace(before, after)
    text = text.replace(f"{runs.project_root()}/", "")
    notebook = nbformat.reads(text, 4)
    for name in ("papermill", "widgets"):  # sliders have their static twin
        notebook.metadata.pop(name, None)
    notebook.metadata.kernelspec = {"name": "python3", "display_name": "Python 3", "language": "python"}
    for cell in notebook.cells:
        cell.metadata.pop("papermill", None)
        cell.metadata.pop("execution", None)
    return nbformat.writes(notebook)
