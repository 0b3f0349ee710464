"""One notebook in a kernel of its own, without a word of it or its machine in what is kept."""

import logging
import os

import nbformat
from jupyter_client.manager import AsyncKernelManager

from lab.trials import runs


class QuietKernelManager(AsyncKernelManager):
    """A kernel whose own words, and its workers', go to the file `aside`: stopped, they say a lot."""

    aside = os.devnull

    async def start_kernel(self, **options):
        with open(self.aside, "wb") as aside:
            await super().start_kernel(**options | {"stderr": aside})


def execute(book, values, folder, aside, watch):
    """The notebook `book`, executed in `folder` with the parameters `values`; watch(cell=, cells=)
    at every cell.

    What the kernel says beside it goes to the file `aside`, and to the error where it dies before
    it answers. Raises what papermill raises, RuntimeError where sys.exit left cells that did not
    run, and KeyboardInterrupt.
    """
    import papermill
    from nbclient.exceptions import DeadKernelError
    from papermill.exceptions import PapermillExecutionError

    cells = len(book.cells) + bool(values)  # papermill puts one with the values among them
    logging.getLogger("papermill").setLevel(
        logging.ERROR
    )  # `results` may be unknown to a notebook from elsewhere
    manager = type("Manager", (QuietKernelManager,), {"aside": aside})
    said = []

    def listen(cell, cell_index, execute_reply):
        said.extend(output.text for output in cell.outputs if output.get("name") == "stderr")

    try:
        executed = papermill.execute_notebook(
            book,
            None,  # papermill would write the file anew twice a cell
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
        if not error.traceback:  # of a magic that failed
            error.evalue = "".join(said).strip()
        raise
    except RuntimeError as error:  # it died before it answered, and may have said why
        if aside.exists():
            error.add_note("\n".join(aside.read_text(errors="replace").splitlines()[-20:]))
        raise
    except KeyboardInterrupt:
        logging.getLogger("asyncio").setLevel(
            logging.CRITICAL
        )  # of the cell that was stopped, at the end
        raise
    check_to_the_end(executed)
    return executed


def check_to_the_end(executed):
    """RuntimeError where a cell called sys.exit, which papermill takes for success, and code cells
    come after it.
    """
    code = [
        (number, cell) for number, cell in enumerate(executed.cells, 1) if cell.cell_type == "code"
    ]
    for number, cell in code[:-1]:
        if any(output.get("ename") == "SystemExit" for output in cell.outputs):
            raise RuntimeError(f"cell {number} called sys.exit: the cells after it did not run")


def tidy(executed, moved):
    """The text of an executed notebook, so that it names its final place and nothing of the machine
    it ran on.
    """
    text = nbformat.writes(executed)
    for before, after in moved.items():
        text = text.replace(before, after)
    text = text.replace(f"{runs.project_root()}/", "")
    notebook = nbformat.reads(text, 4)
    for name in ("papermill", "widgets"):  # sliders have their static twin
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
