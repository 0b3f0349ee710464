"""Parameters of notebooks: declared in a cell tagged `parameters`, checked before any kernel starts."""

import ast
import difflib
import inspect
import json
from pathlib import Path
from typing import Any

import yaml
from pydantic import TypeAdapter, ValidationError

from lab.engine.limits import PROFILES, TYPES
from lab.engine.rules import RULES
from lab.engine.runs import project_root


class Refused(ValueError):
    """Input that cannot be run; the message names where, the field, the value and what is allowed."""


def notebooks():
    """Paths of all notebooks, in order of exercise."""
    return sorted((project_root() / "notebooks").glob("[0-9][0-9]_*.ipynb"))


def notebook_of(name):
    """The notebook of an exercise named 1.4, 4, 04 or 04_head_count, or at a path. Refused lists the valid ones."""
    if str(name).endswith(".ipynb") and Path(name).is_file():
        return Path(name).resolve()
    for path in notebooks():
        number = int(path.stem[:2])
        if str(name) in (f"1.{number}", str(number), path.stem[:2], path.stem):
            return path
    valid = ", ".join(f"1.{int(p.stem[:2])} ({p.stem})" for p in notebooks())
    raise Refused(f"there is no exercise {name!r}; there are {valid}")


def exercise_of(notebook):
    return f"1.{int(notebook.stem[:2])}" if notebook in notebooks() else notebook.stem


def title_of(notebook):
    """The first heading of a notebook."""
    cells = json.loads(notebook.read_text("utf-8"))["cells"]
    return "".join(cells[0]["source"]).splitlines()[0].lstrip("# ")


def read_declared(notebook):
    """{name: default} of the notebook's cell tagged `parameters`; all of them literals."""
    cells = json.loads(notebook.read_text("utf-8"))["cells"]
    tagged = ["".join(c["source"]) for c in cells if "parameters" in c["metadata"].get("tags", ())]
    if not tagged and notebook not in notebooks():
        return {}
    if len(tagged) != 1:
        raise Refused(f"{notebook.name}: one cell must be tagged `parameters`, found {len(tagged)}")
    declared = {}
    for node in ast.parse(tagged[0]).body:
        target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
        declared[target.id] = ast.literal_eval(node.value)
    return declared


def validate(notebook, values, source):
    """The defaults overridden by `values`, converted. Refused names source, field, value and what is allowed."""
    declared = read_declared(notebook)
    for name in values:
        if name not in declared:
            near = difflib.get_close_matches(str(name), declared, 1)
            hint = f"; did you mean {near[0]!r}?" if near else "."
            raise Refused(f"{source}: {notebook.stem} has no parameter {name!r}{hint} It has {', '.join(declared)}")
    checked = {}
    for name, value in (declared | values).items():
        try:
            checked[name] = TypeAdapter(TYPES.get(name, Any)).validate_python(value)
        except ValidationError as error:
            first = error.errors()[0]
            inner = "".join(f"[{part}]" for part in first["loc"] if isinstance(part, int))
            message = first["msg"].removeprefix("Value error, ")
            raise Refused(f"{source}: {name}{inner} = {first['input']!r}: {message}") from None
    for check in RULES:
        wanted = inspect.signature(check).parameters
        if all(p in checked or d.default is not d.empty for p, d in wanted.items()) and any(
            p in checked for p in wanted
        ):
            try:
                check(**{p: checked[p] for p in wanted if p in checked})
            except ValueError as error:
                raise Refused(f"{source}: {error}") from None
    return checked


class EachOnce(yaml.SafeLoader):
    """Plain YAML in which no key stands twice, and no aliases: a few of them can be gigabytes."""

    def compose_node(self, parent, index):
        if self.check_event(yaml.AliasEvent):
            raise yaml.composer.ComposerError(None, None, "an alias is not allowed", self.peek_event().start_mark)
        return super().compose_node(parent, index)

    def construct_mapping(self, node, deep=False):
        keys = [key.value for key, _ in node.value]
        if twice := [key for i, key in enumerate(keys) if key in keys[:i]]:
            raise yaml.constructor.ConstructorError(None, None, f"{twice[0]!r} stands twice", node.start_mark)
        return super().construct_mapping(node, deep)


def read_yaml(text):
    """What the YAML text says, as plain Python values. ValueError where it cannot be read."""
    try:
        return yaml.load(text, EachOnce)
    except (yaml.YAMLError, LookupError, AttributeError, RecursionError) as error:  # !!bool maybe, 2024-99-99
        raise ValueError(str(error)) from None


def read_file(path):
    """The flat mapping in a YAML parameter file."""
    try:
        values = read_yaml(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise Refused(f"{path}: cannot be read: {error}") from None
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise Refused(f"{path}: a mapping of parameters to values is wanted, found {type(values).__name__}")
    return values


def of_profile(notebook, profile):
    """The parameters of a notebook in a profile's file; Refused where it is unknown or has none."""
    if profile not in PROFILES:
        raise Refused(f"there is no profile {profile!r}; there are {', '.join(PROFILES)}")
    if notebook not in notebooks():
        return read_declared(notebook)
    path = project_root() / "experiments" / profile / f"{notebook.stem}.yaml"
    return validate(notebook, read_file(path), source=path.relative_to(project_root()).as_posix())
