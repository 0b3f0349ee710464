"""Notebook parameters: declared types, checks, and the values of a run.

    steps: PositiveInt = 300  # optimiser steps
    heads: list[PositiveInt] = [1, 2, 4]
    share: Annotated[float, Field(gt=0, lt=1)] = 0.5
    position: Literal["t5", "rotary"] = "t5"

The cell tagged `parameters` declares one parameter per line, with a default and optionally a type:
bool, int, float, str, list, dict, or a type from pydantic or typing. Lists must be non-empty and
floats finite. The cell tagged `checks` contains asserts that involve several parameters, each with
a message. `lab run` validates the values before it starts a kernel;
`lab.study` validates them again in the notebook.
"""

import ast
import json
import re
import typing
from dataclasses import dataclass

import pydantic
import yaml

from lab import names
from lab.files import Refused, cells_of, notebooks, project_root

PLAIN = {kind.__name__: kind for kind in (bool, int, float, str, list, dict)}


@dataclass(frozen=True)
class Parameter:
    """The default of a parameter and the pydantic adapter of its type."""

    default: object
    adapter: pydantic.TypeAdapter

    def checked(self, name, value):
        """Validate a value; strings such as "1e-3" become floats if the type requires it.

        Raises ValueError if the value is invalid.
        """
        if value == []:
            raise ValueError(f"{name} = []: expected at least one entry")
        try:
            return self.adapter.validate_python(value)
        except pydantic.ValidationError as error:
            wrong = format_error(name, error)
        try:
            return self.adapter.validate_python(with_numbers(value))
        except pydantic.ValidationError:
            raise ValueError(wrong) from None


def with_numbers(value):
    """Convert a numeric string to a float, also inside lists; other values are unchanged."""
    if isinstance(value, list):
        return [with_numbers(entry) for entry in value]
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return value


def format_error(name, error):
    """Format a pydantic error as "heads[1] = 0: input should be greater than 0"."""
    messages = []
    for each in error.errors():
        index = "".join(f"[{part}]" for part in each["loc"] if isinstance(part, int))
        message = f"{each['msg'][0].lower()}{each['msg'][1:]}"
        messages.append(f"{name}{index} = {each['input']!r}: {message}")
    return "; ".join(dict.fromkeys(messages))


# Declarations


def read_parameters(notebook):
    """{name: Parameter} of the cell tagged `parameters`; empty if there is no such cell.

    Raises Refused if a line is not a declaration, a type is invalid, or a default is not a JSON
    value.
    """
    sources = [source for _, tags, source in cells_of(notebook) if "parameters" in tags]
    declared = {}
    try:
        for statement in ast.parse("".join(sources)).body:
            if not isinstance(statement, ast.Import | ast.ImportFrom):
                name, kind, default = declaration(statement)
                config = pydantic.ConfigDict(strict=True, allow_inf_nan=False)
                declared[name] = Parameter(default, pydantic.TypeAdapter(kind, config=config))
    except (SyntaxError, ValueError, TypeError, pydantic.PydanticUserError) as error:
        raise Refused(f"{notebook.name}: the cell tagged `parameters`: {error}") from None
    return declared


def declaration(statement):
    """Parse a statement `name: type = default`, type optional, to (name, type, default).

    Raises ValueError for any other statement, and for a default that is not a JSON value.
    """
    match statement:
        case ast.AnnAssign(ast.Name(name), annotation, ast.expr() as value):
            pass
        case ast.Assign([ast.Name(name)], value):
            annotation = None
        case _:
            line = ast.unparse(statement).splitlines()[0]
            raise ValueError(f"{line!r}: expected NAME: TYPE = VALUE")
    try:
        default = ast.literal_eval(value)
        json.dumps(default)
    except (ValueError, TypeError):
        raise ValueError(f"{name} = {ast.unparse(value)}: expected a JSON value") from None
    if annotation is None:
        return name, typing.Any if default is None else type(default), default
    return name, type_of(name, annotation), default


def type_of(name, annotation):
    """Evaluate an annotation. Raises ValueError for names not in PLAIN, pydantic or typing."""
    known = dict(PLAIN)
    for node in ast.walk(annotation):
        for module in (pydantic, typing):
            if isinstance(node, ast.Name) and node.id in module.__all__:
                known[node.id] = getattr(module, node.id)
    code = compile(ast.Expression(annotation), "<parameters>", "eval")
    try:
        return eval(code, {"__builtins__": {}} | known)
    except NameError as error:
        raise ValueError(
            f"{name}: {error.name} is not a parameter type; use {', '.join(PLAIN)} or a type of "
            "pydantic or typing, such as PositiveInt or Literal['a', 'b']"
        ) from None


# Values


def validate(notebook, *sources):
    """Validate {name: value} of all parameters: the defaults, overridden by `sources` in order.

    A source is (name of the source, {name: value}). Raises Refused if a value is invalid or a check
    fails; the message names the source and the value.
    """
    declared = read_parameters(notebook)
    values = {name: (notebook.name, parameter.default) for name, parameter in declared.items()}
    for source, overrides in sources:
        for name, value in overrides.items():
            if name not in declared:
                hint = names.meant(name, declared)
                raise Refused(f"{source}: {notebook.stem} has no parameter {name!r}{hint}")
            values[name] = (source, value)
    valid = {}
    for name, (source, value) in values.items():
        try:
            valid[name] = declared[name].checked(name, value)
        except ValueError as error:
            raise Refused(f"{source}: {error}") from None
    changed = [name for name, value in valid.items() if value != declared[name].default]
    changed = dict.fromkeys(values[name][0] for name in changed)
    for _, tags, cell in cells_of(notebook):
        if "checks" in tags:
            check(cell, valid, ", ".join(changed) or "the defaults")
    return valid


def check(cell, values, sources):
    """Execute a cell tagged `checks`, with `values` as its variables.

    `sources` names the origins of the non-default values, for the error message. Raises Refused if
    a check fails or the cell raises an error.
    """
    try:  # optimize=0 keeps asserts under python -O
        exec(compile(cell, "<checks>", "exec", optimize=0), dict(values))
    except (AssertionError, ValueError) as error:
        raise Refused(f"{sources}: {error}") from None
    except Exception as error:
        raise Refused(f"{sources}: the cell tagged `checks` raises {error!r}") from None


def of_profile(notebook, profile):
    """(source, {name: value}) of a profile: quick has the defaults, smoke is read from a file."""
    path = project_root() / "experiments" / "smoke" / f"{notebook.stem}.yaml"
    if profile == "smoke" and notebook in notebooks() and path.exists():
        return path.relative_to(project_root()).as_posix(), {"profile": profile} | read_file(path)
    known = "profile" in read_parameters(notebook)
    return f"--profile {profile}", {"profile": profile} if known else {}


def read_value(text):
    """Parse the TEXT of NAME=TEXT on the command line.

    Numbers, true, false, null, lists, mappings in braces and quoted strings are parsed as YAML.
    Anything else, such as `a # b` or `a: b`, is a string.
    """
    try:
        value = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError):
        return text
    if text.strip() and (isinstance(value, int | float | list | None) or text[0] in "{'\""):
        return value
    return text


def read_file(path):
    """{name: value} of a YAML file. Raises Refused if it cannot be read or is not a mapping."""
    try:
        values = yaml.safe_load(path.read_text("utf-8")) or {}
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        raise Refused(f"{path}: cannot be read: {error}") from None
    if not isinstance(values, dict):
        raise Refused(
            f"{path}: expected a mapping of parameters to values, found {type(values).__name__}"
        )
    return values


# In a kernel


def in_namespace(namespace, notebook):
    """(values, own) of a notebook's parameters, from its globals().

    A parameter that is still at its default gets the profile's value, unless papermill set it.
    `own` has the values that differ from the profile. Raises Refused if a value is invalid.
    """
    if not notebook.exists():
        return {}, {}
    declared = read_parameters(notebook)
    injected = {name: namespace[name] for name in names_injected(namespace) if name in namespace}
    current = {name: namespace[name] for name in declared if name in namespace} | injected
    source, usual = of_profile(notebook, current.get("profile", "quick"))
    for name, value in usual.items():
        if name not in injected and current.get(name) == declared[name].default:
            current[name] = value
    values = validate(notebook, (notebook.name, current))
    usual = validate(notebook, (source, usual))
    values.pop("results", None)  # the output folder does not affect results
    return values, {name: value for name, value in values.items() if value != usual[name]}


def names_injected(namespace):
    """Names that papermill set in its cell "# Parameters", including undeclared ones (typos)."""
    cells = [source for source in namespace.get("In", ()) if source.startswith("# Parameters\n")]
    return re.findall(r"^(\w+) = ", "\n".join(cells), re.MULTILINE)
