"""The execution of one notebook in its own kernel, and the removal of traces of the machine."""

import logging
import os

import nbformat
from jupyter_client.manager import AsyncKernelManager

from lab import runs


class QuietKernelManager(AsyncKernelManager):
    """A kernel manager that sends stderr of the kernel and its workers to the file `aside`.

    They print many messages when they are stopped.
    """

    aside = os.devnull

    async def start_kernel(self, **options):
        with open(self.aside, "wb") as aside:
            await super().start_kernel(**options | {"stderr": aside})


def execute(book, values, folder, aside, watch):
    """The notebook `book`, executed in `folder` with the parameters `values`.

    watch(cell=, cells=) is called before every cell. Stderr of the kernel goes to the file `aside`;
    its end is added to the error where the kernel dies before it answers. Raises papermill's
    exceptions, KeyboardInterrupt, and RuntimeError where sys.exit kept later cells from running.
    """
    import papermill
    from nbclient.exceptions import DeadKernelError
    from papermill.exceptions import PapermillExecutionError

    cells = len(book.cells) + bool(values)  # papermill adds a cell with the values
    # papermill would warn where a notebook from elsewhere does not know `results`
    logging.getLogger("papermill").setLevel(logging.ERROR)
    manager = type("Manager", (QuietKernelManager,), {"aside": aside})
    said = []

    def listen(cell, cell_index, execute_reply):
        said.extend(output.text for output in cell.outputs if output.get("name") == "stderr")

    try:
        executed = papermill.execute_notebook(
            book,
            None,  # with a path, papermill would write the file twice a cell
            values,
            kernel_name="python3",
            language="python",
            progress_bar=False,
            start_timeout=180,
            kernel_manager_class=manager,
            on_cell_start=lambda cell, cell_index: watch(cell=cell_index + 1, cells=cells),
            on_cell_error=listen,
            cwd=folder,
        )
    except DeadKernelError:
        raise
    except PapermillExecutionError as error:
        if not error.traceback:  # a magic failed
            error.evalue = "".join(said).strip()
        raise
    except RuntimeError as error:  # the kernel died before it answered; `aside` may say why
        if aside.exists():
            error.add_note("\n".join(aside.read_text(errors="replace").splitlines()[-20:]))
        raise
    except KeyboardInterrupt:
        # asyncio would report the stopped cell at exit
        logging.getLogger("asyncio").setLevel(logging.CRITICAL)
        raise
    check_to_the_end(executed)
    return executed


def check_to_the_end(executed):
    """Raise RuntimeError where a cell before the last code cell called sys.exit.

    Papermill takes that for success.
    """
    code = [
        (number, cell) for number, cell in enumerate(executed.cells, 1) if cell.cell_type == "code"
    ]
    for number, cell in code[:-1]:
        if any(output.get("ename") == "SystemExit" for output in cell.outputs):
            raise RuntimeError(f"cell {number} called sys.exit: the cells after it did not run")


def tidy(executed, moved):
    """The text of an executed notebook without traces of the machine it ran on.

    `moved` is {path in the text: path to replace it}.
    """
    text = nbformat.writes(executed)
    for before, after in moved.items():
        text = text.replace(before, after)
    text = text.replace(f"{runs.project_root()}/", "")
    notebook = nbformat.reads(text, 4)
    for name in ("papermill", "widgets"):  # without widgets, a static figure is shown
        notebook.metadata.pop(name, None)
    notebook.metadata.kernelspec = {
        "name": "python3",
        "display_name": "Python 3",
        "language": "python",
    }
    for cell in notebook.cells:
        cell.metadata.pop("papermill", None)
        cell.metadata.pop("execution", None)
    return nbformat.writes(notebook)
