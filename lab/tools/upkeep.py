"""The commands doctor and clean."""

import os
import re
import sys
from pathlib import Path
from typing import Annotated

import typer

from lab.language import tr


def doctor():
    """Check that notebooks find what they need; print remedies and exit 1 where they do not."""
    import platform
    from importlib import metadata

    import psutil
    from jupyter_client.kernelspec import KernelSpecManager, NoSuchKernel

    from lab.trials import parameters
    from lab.trials.runs import project_root

    problems = []
    typer.echo(f"python     {platform.python_version()}  {sys.executable}")
    for name in ("torch", "jupyterlab", "papermill", "pandas", "matplotlib", "dask"):
        typer.echo(f"{name:10} {metadata.version(name)}")
    try:
        kernel = KernelSpecManager().get_kernel_spec("python3").argv[0]
        kernel = sys.executable if kernel in ("python", "python3") else kernel
        typer.echo(f"kernel     {kernel}")
        if Path(kernel).parent.resolve() != Path(sys.executable).parent.resolve():
            problems.append(
                f"the python3 kernel runs {kernel}, not {sys.executable}: use .venv/bin/jupyter lab"
            )
    except NoSuchKernel:
        problems.append("there is no python3 kernel: pip install ipykernel")
    typer.echo(f"cores      {os.cpu_count()}")
    typer.echo(f"memory     {psutil.virtual_memory().available / 2**30:.1f} GiB available")
    root = project_root()
    typer.echo(f"project    {root}, {len(parameters.notebooks())} notebooks")
    if not os.access(root / "results", os.W_OK):
        problems.append(f"{root / 'results'} cannot be written to")
    problems += broken()
    for line in unlike():
        typer.echo(f"note       {line}")
    for problem in problems:
        typer.echo(f"problem    {problem}", err=True)
    raise typer.Exit(1 if problems else 0)


def broken():
    """Yield the problems that would stop a run, each with its remedy."""
    import shutil
    import subprocess

    from lab.trials.runs import project_root

    loads = subprocess.run([sys.executable, "-c", "import torch"], capture_output=True, text=True)
    if loads.returncode < 0:
        yield tr(
            "torch cannot run on this processor (signal {n}; without AVX?): "
            "pip install another build of it",
            n=-loads.returncode,
        )
    elif loads.returncode:
        said = loads.stderr.strip().rpartition("\n")[2]
        yield tr(
            "torch cannot be imported ({said}): "
            "pip install --force-reinstall -c constraints.txt torch",
            said=said,
        )
    place = project_root() if project_root().exists() else Path.cwd()
    if (free := shutil.disk_usage(place).free) < 2**30:
        yield tr(
            "{free:.0f} MB are free in {place}: lab clean --trials",
            free=free / 1e6,
            place=place,
        )


def unlike():
    """Yield notes that do not stop a run: missing extras, and versions that were not tested."""
    from importlib import metadata
    from importlib.util import find_spec

    from lab import figures
    from lab.trials.runs import CHECKOUT

    if figures.chinese_font() is None:
        yield tr(
            "no font has Chinese characters, which figures show as boxes: "
            "apt install fonts-noto-cjk"
        )
    extras = {"transformers": "pretrained", "sphinx": "book"}
    for module, extra in extras.items():
        if find_spec(module) is None:
            yield tr(
                "{module} is not here; where it is wanted: pip install -e '.[{extra}]'",
                module=module,
                extra=extra,
            )
    pins = CHECKOUT / "constraints.txt"
    lines = pins.read_text("utf-8").splitlines() if pins.exists() else []
    for name, wanted in (
        line.split("==") for line in lines if re.fullmatch(r"[\w.-]+==[\w.]+", line)
    ):
        if name in ("torch", "numpy", "networkx", "sympy"):
            here = metadata.version(name).partition("+")[0]
            if here != wanted:
                yield tr(
                    "{name} {here} is not the tested {wanted}: recorded digits may differ; "
                    "pip install -c constraints.txt -e .",
                    name=name,
                    here=here,
                    wanted=wanted,
                )


LEFT = {  # folder of results: (what it holds, the option that removes it, "" for always)
    ".running": ("what unfinished runs left", ""),
    ".shown": ("pages of `lab show`", ""),
    "runs": ("finished runs", "runs"),
    ".trials": ("finished trials: the next run starts anew", "trials"),
    "interactive": ("runs made by hand", "interactive"),
}


def clean(
    runs: Annotated[
        bool, typer.Option("--runs", help="Remove finished runs too; published ones stay.")
    ] = False,
    trials: Annotated[
        bool, typer.Option("--trials", help="Forget finished trials: the next run starts anew.")
    ] = False,
    interactive: Annotated[
        bool, typer.Option("--interactive", help="Remove what was run by hand.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would go.")] = False,
    place: Annotated[
        Path | None,
        typer.Option("--results", help="Folder of results; the project's own by default."),
    ] = None,
):
    """Remove what unfinished runs left; list the rest, which only the options remove."""
    import shutil

    from lab.tools.batch import only_one
    from lab.trials.runs import project_root, shown

    results = place.expanduser() if place else project_root() / "results"
    asked = {"": True, "runs": runs, "trials": trials, "interactive": interactive}
    with only_one(results):
        for name, (what, option) in LEFT.items():
            if not (folder := results / name).exists():
                continue
            goes = asked[option]
            word = ("would go" if dry_run else "removed") if goes else "stays"
            said = "" if goes else f"; --{option} removes it"
            typer.echo(
                f"{word:8}  {shown(folder)}  {size_on_disk(folder) / 1e6:.1f} MB  {what}{said}"
            )
            if goes and not dry_run:
                shutil.rmtree(folder)


def size_on_disk(folder):
    """The bytes of all files below a folder."""
    return sum(path.lstat().st_size for path in folder.rglob("*") if not path.is_dir())
