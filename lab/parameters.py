"""Parameters of notebooks: their declarations, their checks, and the values that a run gives them.

The lines of the cell tagged `parameters` declare the values that each parameter allows (see
`bounds`). The cell tagged `checks` holds asserts, each with a sentence, about several parameters.
Values are checked against both before a kernel starts and where a study begins.
"""

import ast
import contextlib
import copy
import difflib
import json
import os
import re
import warnings
from pathlib import Path

import yaml

from lab.bounds import convert, parameter_of
from lab.runs import project_root

PROFILES = ("smoke", "quick")


class Refused(ValueError):
    """Raised for input that cannot be run.

    The message names the source, the field, its value and the allowed values.
    """

    def _render_traceback_(self):
        """The lines that a notebook shows for this error: the message without a traceback."""
        return [str(self)]


# Notebooks

ALONE = (
    "only the package is installed here; the lessons and their claims are in a checkout of "
    "Transformer Lab"
)


def notebooks():
    """The paths of all notebooks of the project, in the order of exercises."""
    return sorted((project_root() / "notebooks").glob("[0-9][0-9]_*.ipynb"))


def notebook_of(name):
    """The path of the notebook called 1.4, 4, 04, 04_head_count or head_count, or at a path.

    Raises Refused where there is none; the message lists the valid names.
    """
    for path in notebooks():
        if is_called(path, name):
            return path
    if str(name).endswith(".ipynb") and os.path.isfile(name):
        return Path(name).resolve()
    listed = ", ".join(f"{exercise_of(path)} ({path.stem})" for path in notebooks())
    valid = f"there are {listed}" if listed else ALONE
    raise Refused(f"there is no exercise {name!r}, nor a notebook at such a path; {valid}")


def is_called(notebook, name):
    """Whether `name` names this notebook: 1.4, 4, 04, 04_head_count or head_count."""
    number, stem = int(notebook.stem[:2]), notebook.stem
    return str(name) in (f"1.{number}", str(number), stem[:2], stem, stem[3:])


def exercise_of(notebook):
    """The exercise of a notebook of the project, such as 1.4, or the stem of another notebook."""
    return f"1.{int(notebook.stem[:2])}" if notebook in notebooks() else notebook.stem


def parsed(source):
    """The syntax tree of the source of one cell or of several; magics are allowed."""
    try:
        return ast.parse(source)
    except SyntaxError:
        from IPython.core.inputtransformer2 import TransformerManager

        return ast.parse(TransformerManager().transform_cell(source))


def cells_of(notebook):
    """[(cell type, tags, source)] of all cells. Raises Refused where the file is no notebook."""
    try:
        cells = json.loads(notebook.read_text("utf-8"))["cells"]
        return [
            (c["cell_type"], c["metadata"].get("tags", ()), "".join(c["source"])) for c in cells
        ]
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise Refused(f"{notebook}: cannot be read as a notebook: {error!r}") from None


# What a notebook declares

WANTED = (
    "expected NAME = VALUE or NAME: TYPE = VALUE, where JSON can hold the value, "
    "with one = and one # a line; "
    "a type that allows None is Optional[TYPE]"
)


def read_parameters(notebook):
    """{name: Parameter} of the cell tagged `parameters`, as papermill reads it.

    The dict is empty where there is no such cell. Raises Refused where papermill would silently
    skip a line, or where a value, a type or a bound is wrong.
    """
    from papermill.translators import PythonTranslator  # seconds, which `lab list` does not need

    sources = [source for _, tags, source in cells_of(notebook) if "parameters" in tags]
    if len(sources) > 1:
        raise Refused(f"{notebook.name}: one cell may be tagged `parameters`, found {len(sources)}")
    source = "".join(sources)
    try:
        lines = [ast.unparse(statement).splitlines()[0] for statement in ast.parse(source).body]
    except (SyntaxError, ValueError) as error:
        raise Refused(f"{notebook.name}: the parameters cell cannot be read: {error}") from None
    seen = {parameter.name: parameter for parameter in PythonTranslator.inspect({"source": source})}
    found = {}
    for line in lines:
        name = re.match(r"\w*", line)[0]
        try:
            default = convert(ast.literal_eval(seen[name].default), None)
        except (LookupError, SyntaxError, ValueError, TypeError):
            raise Refused(f"{notebook.name}: {line!r} among the parameters: {WANTED}") from None
        try:
            found[name] = parameter_of(default, seen[name].inferred_type_name, seen[name].help)
        except ValueError as error:
            raise Refused(f"{notebook.name}: {name}: {error}") from None
    return found


def read_declared(notebook):
    """{name: default} of the notebook's parameters."""
    return {name: parameter.default for name, parameter in read_parameters(notebook).items()}


# Values that a run gives


def validate(notebook, values, source):
    """{name: value} of all parameters: the defaults overridden by `values`, converted.

    Raises Refused where a value is not allowed or a check fails; the message names `source`, the
    field, its value and the allowed values.
    """
    declared = read_parameters(notebook)
    for name in values:
        if name not in declared:
            near = difflib.get_close_matches(str(name), declared, 1)
            hint = f"; did you mean {near[0]!r}?" if near else "."
            has = ", ".join(declared) or "none"
            raise Refused(f"{source}: {notebook.stem} has no parameter {name!r}{hint} It has {has}")
    checked = {}
    for name, parameter in declared.items():
        try:
            checked[name] = parameter.checked(name, values.get(name, parameter.default))
        except ValueError as error:
            raise Refused(f"{source if name in values else notebook.name}: {error}") from None
    for _, tags, cell in cells_of(notebook):
        if "checks" in tags:
            check(cell, checked, source)
    return checked


def check(cell, values, source):
    """Run the source of a cell tagged `checks` with `values` as its variables.

    Raises Refused where a check does not hold or the cell cannot run; the message says which.
    """
    try:
        exec(compile(cell, "<checks>", "exec"), copy.deepcopy(values))
    except (AssertionError, ValueError) as error:
        line = cell.splitlines()[error.__traceback__.tb_next.tb_lineno - 1].strip()
        used = {name: value for name, value in values.items() if re.search(rf"\b{name}\b", line)}
        shown = {name: f"{name} = {value!r}" for name, value in used.items()}
        sentence = str(error) or f"{line} does not hold with {', '.join(shown.values())}"
        # Parameters of which the sentence holds the value but not the name.
        unnamed = [
            shown[name]
            for name, value in used.items()
            if name not in sentence and repr(value) in sentence
        ]
        aside = f" ({', '.join(unnamed)})" if unnamed else ""
        raise Refused(f"{source}: {sentence}{aside}") from None
    except Exception as error:
        raise Refused(
            f"{source}: the cell tagged `checks` fails: {type(error).__name__}: {error}"
        ) from None


class EachOnce(yaml.SafeLoader):
    """A YAML loader without the surprises of YAML 1.1.

    It raises a yaml.YAMLError for a repeated key and for an alias, since a few aliases can expand
    to gigabytes. It knows the words true, false, null and None and decimal numbers. All else is
    text, also what YAML 1.1 takes for a number or a boolean: 010 (8), 0x10, 1:30 (90), yes, off.
    """

    yaml_implicit_resolvers = {}

    def compose_node(self, parent, index):
        if self.check_event(yaml.AliasEvent):
            raise yaml.composer.ComposerError(
                None, None, "an alias is not allowed", self.peek_event().start_mark
            )
        return super().compose_node(parent, index)

    def construct_mapping(self, node, deep=False):
        keys = [key.value for key, _ in node.value]
        if twice := [key for i, key in enumerate(keys) if key in keys[:i]]:
            raise yaml.constructor.ConstructorError(
                None, None, f"the key {twice[0]!r} is repeated", node.start_mark
            )
        return super().construct_mapping(node, deep)


PLAIN = {
    "null": "~|null|Null|NULL|None|",
    "bool": "true|True|TRUE|false|False|FALSE",
    "int": "[-+]?(0|[1-9][0-9_]*)",
    "float": (
        r"[-+]?([0-9][0-9_]*\.[0-9_]*|\.[0-9][0-9_]*)([eE][-+]?[0-9]+)?"
        r"|[-+]?[0-9]+[eE][-+]?[0-9]+"
    ),
}
for _kind, _form in PLAIN.items():
    EachOnce.add_implicit_resolver(f"tag:yaml.org,2002:{_kind}", re.compile(f"^(?:{_form})$"), None)


def read_yaml(text):
    """The plain Python values of a YAML text. Raises ValueError where it cannot be read."""
    try:
        return yaml.load(text, EachOnce)
    # "!!bool maybe" raises a LookupError.
    except (yaml.YAMLError, LookupError, AttributeError, RecursionError) as error:
        raise ValueError(str(error)) from None


def read_value(text):
    """The value of the text after NAME= on a command line.

    A list, a mapping, a quoted text, a number and a word such as true are read as YAML. All else,
    such as `a # b` and `a: b`, is text.
    """
    number_or_word = any(re.fullmatch(form, text.strip()) for form in PLAIN.values())
    if text and (number_or_word or text[0] in "[{'\""):
        with contextlib.suppress(ValueError):
            return read_yaml(text)
    return text


def read_file(path):
    """{name: value} of a YAML parameter file. Raises Refused where it cannot be read."""
    try:
        values = read_yaml(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise Refused(f"{path}: cannot be read: {error}") from None
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise Refused(
            f"{path}: expected a mapping of parameters to values, found {type(values).__name__}"
        )
    return values


def of_profile(notebook, profile):
    """{name: value} of a notebook's parameters in a profile, from the file of that profile.

    Where there is no such file, the notebook's defaults are taken, with its parameter `profile` set
    if it has one. Raises Refused where there is no such profile.
    """
    if profile not in PROFILES:
        raise Refused(f"there is no profile {profile!r}; there are {', '.join(PROFILES)}")
    path = project_root() / "experiments" / profile / f"{notebook.stem}.yaml"
    if notebook in notebooks() and path.exists():
        return validate(
            notebook, read_file(path), source=path.relative_to(project_root()).as_posix()
        )
    named = {"profile": profile} if read_declared(notebook).get("profile") in PROFILES else {}
    return validate(notebook, named, source=notebook.name)


# In a notebook


def injected(namespace):
    """The names that papermill set in a notebook's globals(), misspelt ones too.

    Papermill sets them in a cell that begins with "# Parameters".
    """
    cells = [source for source in namespace.get("In", ()) if source.startswith("# Parameters\n")]
    return [
        name
        for name in re.findall(r"^(\w+) = ", "\n".join(cells), re.MULTILINE)
        if name in namespace
    ]


def misspelt(namespace, notebook, declared):
    """Yield (name, similar parameter) for variables that look like misspelt parameters.

    These are numbers, words and lists whose names do not occur in the saved notebook.
    """
    sources = "\n".join(source for kind, _, source in cells_of(notebook) if kind == "code")
    for name in typed(namespace).keys() - {"results", *declared}:
        if not re.search(rf"\b{name}\b", sources):
            yield from ((name, like) for like in difflib.get_close_matches(name, declared, 1, 0.8))


def typed(namespace):
    """The numbers, words and lists in a notebook's globals()."""
    return {
        name: value
        for name, value in namespace.items()
        if isinstance(value, (int, float, str, list)) and name != "In" and not name.startswith("_")
    }


def in_namespace(namespace, notebook):
    """({name: value} of a notebook's parameters in its globals(), the same of its profile).

    Where the notebook's file does not exist, both are the numbers, words and lists in its
    globals(). Raises Refused where a value is not allowed.
    """
    if not notebook.exists():
        found = typed(namespace)
        return found, found
    declared = set(read_declared(notebook)) | set(injected(namespace))
    declared -= {"results"}  # the folder of results changes no number
    for name, like in misspelt(namespace, notebook, declared):
        warnings.warn(
            f"{name} is no parameter, and nothing reads it; did you mean {like}?", stacklevel=3
        )
    values = {name: namespace[name] for name in declared if name in namespace}
    values = validate(notebook, values, source="notebook")
    values.pop("results", None)
    return values, of_profile(notebook, values.get("profile", "quick"))
