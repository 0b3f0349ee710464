"""Parameters of notebooks: their types, their checks, and the values that a run gives them.

    steps: PositiveInt = 300  # optimiser steps
    heads: list[PositiveInt] = [1, 2, 4]
    share: Annotated[float, Field(gt=0, lt=1)] = 0.5
    position: Literal["t5", "rotary"] = "t5"

The cell tagged `parameters` holds a line for each parameter, with a type of pydantic or typing. No
list is empty or has an entry twice, and all floats are finite. The cell tagged `checks` holds
asserts about several parameters, each with a sentence. `lab run` checks values before a kernel
starts, and `lab.study` where a study begins.
"""

import ast
import copy
import difflib
import json
import re
import typing
from dataclasses import dataclass

import pydantic
import yaml

from lab.files import Refused, cells_of, notebooks, project_root

PROFILES = ("quick", "smoke")
PLAIN = {kind.__name__: kind for kind in (bool, int, float, str, list, dict)}


@dataclass(frozen=True)
class Parameter:
    """The default of a parameter, and the pydantic adapter of its type."""

    default: object
    adapter: pydantic.TypeAdapter

    def checked(self, name, value):
        """The value, with text such as "1e-3" as a float where the type asks for one.

        Raises ValueError where the type does not allow it; the message says what it allows.
        """
        refused = None
        for given in (value, with_numbers(value)):
            try:
                return checked(name, given, self.adapter.validate_python(given))
            except pydantic.ValidationError as error:
                refused = refused or error
        raise ValueError(in_words(name, refused))


def checked(name, given, value):
    """The validated value of the given one; raises ValueError where one of the lab's rules fails."""
    if isinstance(given, bool | float) and type(value) is int:  # a Literal takes True and 1.0 for 1
        raise ValueError(f"{name} = {given!r}: expected a whole number")
    if isinstance(value, list):
        if not value:
            raise ValueError(f"{name} = []: expected at least one entry")
        seen = [json.dumps(entry) for entry in value]
        if twice := [value[i] for i, entry in enumerate(seen) if entry in seen[:i]]:
            raise ValueError(f"{name} = {value!r}: {twice[0]!r} stands twice; expected each once")
        return [
            checked(f"{name}[{i}]", *both) for i, both in enumerate(zip(given, value, strict=True))
        ]
    return value


def with_numbers(value):
    """The value with texts that spell a number, alone or in a list, as floats."""
    if isinstance(value, list):
        return [with_numbers(entry) for entry in value]
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return value


def in_words(name, error):
    """A pydantic error as "heads[1] = 0: input should be greater than 0"."""
    told = []
    for each in error.errors():
        place = "".join(f"[{part}]" for part in each["loc"] if isinstance(part, int))
        told.append(f"{name}{place} = {each['input']!r}: {each['msg'][0].lower()}{each['msg'][1:]}")
    return "; ".join(dict.fromkeys(told))


# What a notebook declares


def read_parameters(notebook):
    """{name: Parameter} of the cell tagged `parameters`; empty where there is no such cell.

    Raises Refused where a line is no declaration, or where a type or a default is wrong.
    """
    sources = [source for _, tags, source in cells_of(notebook) if "parameters" in tags]
    if len(sources) > 1:
        raise Refused(f"{notebook.name}: one cell may be tagged `parameters`, found {len(sources)}")
    found = {}
    try:
        for statement in ast.parse("".join(sources)).body:
            if not isinstance(statement, ast.Import | ast.ImportFrom):
                name, kind, default = declaration(statement)
                config = pydantic.ConfigDict(strict=True, allow_inf_nan=False)
                found[name] = Parameter(default, pydantic.TypeAdapter(kind, config=config))
    except (SyntaxError, ValueError, TypeError, pydantic.PydanticUserError) as error:
        raise Refused(f"{notebook.name}: the cell tagged `parameters`: {error}") from None
    return found


def declaration(statement):
    """(name, type, default) of the statement `name: type = default`; the type may be left out.

    Raises ValueError where it is none.
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
        raise ValueError(f"{name} = {ast.unparse(value)}: expected a value for JSON") from None
    if annotation is None:
        return name, typing.Any if default is None else type(default), default
    return name, type_of(name, annotation), default


def type_of(name, annotation):
    """The type that an annotation spells with names of pydantic and typing.

    Raises ValueError where it holds another name.
    """
    known = {}
    for node in ast.walk(annotation):
        if isinstance(node, ast.Name):
            home = next((m for m in (pydantic, typing) if node.id in m.__all__), None)
            if home is None and node.id not in PLAIN:
                raise ValueError(
                    f"{name}: {node.id} is no type of a parameter; types are {', '.join(PLAIN)} "
                    "and those of pydantic and typing, such as PositiveInt and Literal['a', 'b']"
                )
            known[node.id] = PLAIN[node.id] if home is None else getattr(home, node.id)
    code = compile(ast.Expression(annotation), "<parameters>", "eval")
    return eval(code, {"__builtins__": {}} | known)


# Values that a run gives


def validate(notebook, *given):
    """{name: value} of all parameters: the defaults, overridden by each (source, {name: value}).

    Raises Refused where a value is not allowed or a check fails; the message names the source, the
    field, its value and what is allowed.
    """
    declared = read_parameters(notebook)
    values = {name: (notebook.name, parameter.default) for name, parameter in declared.items()}
    for source, overrides in given:
        for name, value in overrides.items():
            if name not in declared:
                near = difflib.get_close_matches(str(name), declared, 1)
                hint = f"; did you mean {near[0]!r}?" if near else "."
                has = ", ".join(declared) or "none"
                raise Refused(
                    f"{source}: {notebook.stem} has no parameter {name!r}{hint} It has {has}"
                )
            values[name] = (source, value)
    found = {}
    for name, (source, value) in values.items():
        try:
            found[name] = declared[name].checked(name, value)
        except ValueError as error:
            raise Refused(f"{source}: {error}") from None
    defaults = {name: parameter.default for name, parameter in declared.items()}
    changed = [name for name, value in found.items() if value != defaults[name]]
    sources = {name: values[name][0] for name in changed}
    for _, tags, cell in cells_of(notebook):
        if "checks" in tags:
            check(cell, found, sources)
    return found


def check(cell, values, sources):
    """Run the source of a cell tagged `checks` with `values` as its variables.

    Raises Refused where a check does not hold or the cell cannot run. `sources` are {name: source}
    of the values that are not defaults; the message names those that the failed line reads.
    """
    try:  # optimize=0 keeps asserts under python -O
        exec(compile(cell, "<checks>", "exec", optimize=0), copy.deepcopy(values))
    except Exception as error:
        step = error.__traceback__.tb_next
        line = cell.splitlines()[(error.lineno if step is None else step.tb_lineno) - 1].strip()
        told = str(error) or f"{line} does not hold"
        if not isinstance(error, AssertionError | ValueError):
            told = f"the cell tagged `checks` fails: {type(error).__name__}: {error}"
        named = [name for name in sources if re.search(rf"\b{name}\b", f"{line} {told}")]
        given = "" if named else ", ".join(f"{name} = {values[name]!r}" for name in sources)
        told += f" ({given})" if given else ""
        told_by = dict.fromkeys(sources[name] for name in named or sources)
        raise Refused(f"{', '.join(told_by) or 'the defaults'}: {told}") from None


def of_profile(notebook, profile):
    """(source, {name: value}) of a profile: quick are the defaults, smoke has a file.

    Raises Refused where there is no such profile.
    """
    if profile not in PROFILES:
        raise Refused(f"there is no profile {profile!r}; there are {', '.join(PROFILES)}")
    path = project_root() / "experiments" / "smoke" / f"{notebook.stem}.yaml"
    if profile == "smoke" and notebook in notebooks() and path.exists():
        return path.relative_to(project_root()).as_posix(), {"profile": profile} | read_file(path)
    known = "profile" in read_parameters(notebook)
    return f"--profile {profile}", {"profile": profile} if known else {}


def read_value(text):
    """The value of the text after NAME= on a command line.

    A number, true, false, null, a list, a mapping in braces and a quoted text are read as YAML. All
    else, such as `a # b` and `a: b`, is text.
    """
    try:
        value = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError):
        return text
    if text.strip() and (isinstance(value, int | float | list | None) or text[0] in "{'\""):
        return value
    return text


def read_file(path):
    """{name: value} of a YAML file of parameters. Raises Refused where it cannot be read."""
    try:
        values = yaml.safe_load(path.read_text("utf-8")) or {}
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        raise Refused(f"{path}: cannot be read: {error}") from None
    if not isinstance(values, dict):
        raise Refused(
            f"{path}: expected a mapping of parameters to values, found {type(values).__name__}"
        )
    return values


# In a notebook


def in_namespace(namespace, notebook):
    """(values, own) of a notebook's parameters, from its globals().

    A parameter that still has its default takes the value of the notebook's profile, unless
    papermill set it. `own` holds the values that differ from the profile's. Raises Refused where a
    value is not allowed.
    """
    if not notebook.exists():
        return {}, {}
    declared = read_parameters(notebook)
    injected = {name: namespace[name] for name in names_injected(namespace) if name in namespace}
    found = {name: namespace[name] for name in declared if name in namespace} | injected
    profile = found.get("profile", "quick")
    source, usual = of_profile(notebook, profile if profile in PROFILES else "quick")
    for name, value in usual.items():
        if name not in injected and found.get(name) == declared[name].default:
            found[name] = value
    values = validate(notebook, (notebook.name, found))
    usual = validate(notebook, (source, usual))
    values.pop("results", None)  # the folder of results changes no number
    return values, {name: value for name, value in values.items() if value != usual[name]}


def names_injected(namespace):
    """The names that papermill set, misspelt ones too, in a cell that begins with "# Parameters"."""
    cells = [source for source in namespace.get("In", ()) if source.startswith("# Parameters\n")]
    return re.findall(r"^(\w+) = ", "\n".join(cells), re.MULTILINE)
