"""Parameters of notebooks: declared in a cell tagged `parameters`, related in one tagged `checks`,
held to both.

The declaring lines say what each value may be (see `bounds`); checks are plain Python, an assert
with a sentence. Both are evaluated before a kernel starts, and wherever a study begins.
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

from lab.trials import entry_points
from lab.trials.bounds import convert, parameter_of
from lab.trials.runs import project_root

PROFILES = ("smoke", "quick", "full")


class Refused(ValueError):
    """Input that cannot be run; the message names where, the field, the value and what is allowed."""

    def _render_traceback_(self):
        """What a notebook shows: the sentence, and nothing of how it came about."""
        return [str(self)]


# Notebooks

ALONE = "the lessons and their claims are in a checkout of Transformer Lab, and this is the package alone"


def notebooks():
    """Paths of all notebooks of the project, in order of exercise."""
    return sorted((project_root() / "notebooks").glob("[0-9][0-9]_*.ipynb"))


def notebook_of(name):
    """The notebook named 1.4, 4, 04, 04_head_count or head_count, or at a path.

    Refused lists the valid ones.
    """
    for path in notebooks():
        if is_called(path, name):
            return path
    if str(name).endswith(".ipynb") and os.path.isfile(name):
        return Path(name).resolve()
    valid = "there are " + ", ".join(f"{exercise_of(path)} ({path.stem})" for path in notebooks())
    raise Refused(
        f"there is no exercise {name!r}, nor a notebook at such a path; {valid if notebooks() else ALONE}"
    )


def is_called(notebook, name):
    """Whether a name is one of those of a notebook of the project: 1.4, 4, 04, 04_head_count or
    head_count.
    """
    number, stem = int(notebook.stem[:2]), notebook.stem
    return str(name) in (f"1.{number}", str(number), stem[:2], stem, stem[3:])


def exercise_of(notebook):
    """The exercise that a notebook of the project is about, such as 1.4; the name of any other
    notebook.
    """
    return f"1.{int(notebook.stem[:2])}" if notebook in notebooks() else notebook.stem


def parsed(source):
    """The syntax tree of a cell's source, or of all cells'; magics are allowed."""
    try:
        return ast.parse(source)
    except SyntaxError:
        from IPython.core.inputtransformer2 import TransformerManager

        return ast.parse(TransformerManager().transform_cell(source))


def cells_of(notebook):
    """(kind, tags, source) of every cell. Refused where the file is no notebook."""
    try:
        cells = json.loads(notebook.read_text("utf-8"))["cells"]
        return [
            (c["cell_type"], c["metadata"].get("tags", ()), "".join(c["source"])) for c in cells
        ]
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise Refused(f"{notebook}: no notebook that can be read: {error!r}") from None


# What a notebook declares

WANTED = (
    "NAME = VALUE or NAME: TYPE = VALUE is wanted, a value that JSON can hold, with one = and one # a line; "
    "a type that allows None is Optional[TYPE]"
)


def read_parameters(notebook):
    """{name: Parameter} of the cell tagged `parameters`, as papermill reads it; empty where there
    is none.

    Refused where papermill would pass over a line in silence, or a value, a type or a bound is
    wrong.
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


# What is given


def validate(notebook, values, source):
    """The defaults overridden by `values`, converted.

    Refused names source, field, value and what is allowed.
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
    """Run a cell tagged `checks` with the values as names.

    Refused: what does not hold, or why it cannot be run.
    """
    entry_points.load()  # a kind of an installed package is one
    try:
        exec(compile(cell, "<checks>", "exec"), copy.deepcopy(values))
    except (AssertionError, ValueError) as error:
        line = cell.splitlines()[error.__traceback__.tb_next.tb_lineno - 1].strip()
        named = {
            name: f"{name} = {value!r}"
            for name, value in values.items()
            if re.search(rf"\b{name}\b", line)
        }
        told = str(error) or f"{line} does not hold with {', '.join(named.values())}"
        meant = [
            said for name, said in named.items() if name not in told and repr(values[name]) in told
        ]
        aside = (
            f" ({', '.join(meant)})" if meant else ""
        )  # who is meant where only the value is told
        raise Refused(f"{source}: {told}{aside}") from None
    except Exception as error:
        raise Refused(
            f"{source}: the cell tagged `checks` fails: {type(error).__name__}: {error}"
        ) from None


class EachOnce(yaml.SafeLoader):
    """YAML as people read it.

    No key stands twice, and there are no aliases: a few of them can be gigabytes.

    Words are true, false, null and None; numbers are decimal. All else is text, also what YAML 1.1
    takes for a number or a truth: 010 (8), 0x10, 1:30 (90), yes, off.
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
                None, None, f"{twice[0]!r} stands twice", node.start_mark
            )
        return super().construct_mapping(node, deep)


PLAIN = {
    "null": "~|null|Null|NULL|None|",
    "bool": "true|True|TRUE|false|False|FALSE",
    "int": "[-+]?(0|[1-9][0-9_]*)",
    "float": r"[-+]?([0-9][0-9_]*\.[0-9_]*|\.[0-9][0-9_]*)([eE][-+]?[0-9]+)?|[-+]?[0-9]+[eE][-+]?[0-9]+",
}
for _kind, _form in PLAIN.items():
    EachOnce.add_implicit_resolver(f"tag:yaml.org,2002:{_kind}", re.compile(f"^(?:{_form})$"), None)


def read_yaml(text):
    """What the YAML text says, as plain Python values. ValueError where it cannot be read."""
    try:
        return yaml.load(text, EachOnce)
    except (yaml.YAMLError, LookupError, AttributeError, RecursionError) as error:  # !!bool maybe
        raise ValueError(str(error)) from None


def read_value(text):
    """What is typed after NAME=: a list, a quoted text or a mapping as in YAML, a number or a word;
    else the text.

    So `a # b` and `a: b` are texts.
    """
    number_or_word = any(re.fullmatch(form, text.strip()) for form in PLAIN.values())
    if text and (number_or_word or text[0] in "[{'\""):
        with contextlib.suppress(ValueError):
            return read_yaml(text)
    return text


def read_file(path):
    """The flat mapping in a YAML parameter file."""
    try:
        values = read_yaml(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise Refused(f"{path}: cannot be read: {error}") from None
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise Refused(
            f"{path}: a mapping of parameters to values is wanted, found {type(values).__name__}"
        )
    return values


def of_profile(notebook, profile):
    """The parameters of a notebook in a profile: by its file, or else the notebook's own.

    Refused: no such profile.
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
    """Names that papermill set in a notebook's globals(), misspelt ones too: its own cell begins
    with # Parameters.
    """
    cells = [source for source in namespace.get("In", ()) if source.startswith("# Parameters\n")]
    return [
        name
        for name in re.findall(r"^(\w+) = ", "\n".join(cells), re.MULTILINE)
        if name in namespace
    ]


def misspelt(namespace, notebook, declared):
    """(name, the parameter that it resembles) of numbers, words and lists that the saved notebook
    says nothing of.
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
    """The parameters in a notebook's globals(), converted, and those of its profile.

    Refused where one is not allowed.

    Where the notebook cannot be read, they are its numbers, words and lists.
    """
    if not notebook.exists():
        found = typed(namespace)
        return found, found
    declared = set(read_declared(notebook)) | set(injected(namespace))
    declared -= {"results"}  # where to is no part of what
    for name, like in misspelt(namespace, notebook, declared):
        warnings.warn(
            f"{name} is no parameter, and nothing reads it; did you mean {like}?", stacklevel=3
        )
    values = {name: namespace[name] for name in declared if name in namespace}
    values = validate(notebook, values, source="notebook")
    values.pop("results", None)
    return values, of_profile(notebook, values.get("profile", "quick"))
