"""Source code as syntax trees: of notebook cells, functions and classes."""

import ast
import functools
import inspect
import linecache
import symtable
import textwrap
from types import FunctionType


class ImpureTrial(ValueError):
    """A trial depends on something that is neither a parameter nor code whose source can be read."""


def attribute_chain(node):
    """The names of `a.b.c` as a list, or None if it does not start with a name."""
    names = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    return [node.id, *reversed(names)] if isinstance(node, ast.Name) else None


@functools.lru_cache(maxsize=1024)
def used(tree, here="", names=()):
    """The dotted names that the imports of `tree` in the package `here` lead to, and what it uses as attributes of an
    imported module; `names` are pairs (name, module) of modules that it knows without an import."""
    bound, uses = dict(names), []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                uses.append(alias.name)
                top = alias.name.partition(".")[0]
                bound[alias.asname or top] = alias.name if alias.asname else top
        elif isinstance(node, ast.ImportFrom):
            above = here.split(".")[: len(here.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            for alias in node.names:
                uses.append(f"{base}.{alias.name}")
                bound[alias.asname or alias.name] = uses[-1]
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and (chain := attribute_chain(node)) and chain[0] in bound:
            uses.append(".".join([bound[chain[0]], *chain[1:]]))
    return tuple(dict.fromkeys(uses))


@functools.cache
def parsed(text):
    """The syntax tree of a file's text, without docstrings, and the same as text."""
    tree = ast.parse(text)
    return tree, normal(tree)


def normal(tree):
    """The syntax tree as text, its docstrings removed in place."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            match node.body:
                case [ast.Expr(ast.Constant(str())), *rest]:
                    node.body = rest or [ast.Pass()]
    return ast.dump(tree)


def parse_cells(source):
    try:
        return ast.parse(source)
    except SyntaxError:  # a notebook's magics and shell lines
        from IPython.core.inputtransformer2 import TransformerManager

        return ast.parse(TransformerManager().transform_cell(source))


def tree_of(item):
    """The syntax tree of one function or class. Raises ImpureTrial where its source cannot be read."""
    try:
        if isinstance(item, FunctionType):
            return ast.parse(textwrap.dedent(inspect.getsource(item.__code__)))
        return ast.parse(textwrap.dedent(_class_source(item)))
    except (OSError, SyntaxError):
        raise ImpureTrial(
            f"the source of {item.__qualname__} cannot be read, so a change of it would go unseen: "
            "write it as a def or class in a notebook cell or file"
        ) from None


def _class_source(cls):
    """The source of a class. In a notebook before Python 3.13 it is looked up among the cells."""
    try:
        return inspect.getsource(cls)
    except (OSError, TypeError):
        cells = [member.__code__.co_filename for member in vars(cls).values() if isinstance(member, FunctionType)]
        for cell in [*cells, *reversed(linecache.cache)]:
            text = "".join(linecache.getlines(cell))
            if f"class {cls.__name__}" in text:
                for node in ast.parse(text).body:
                    if isinstance(node, ast.ClassDef) and node.name == cls.__name__:
                        return ast.unparse(node)
        raise OSError from None


def outside_names(tree):
    """The names that a definition takes from outside itself, defaults and decorators included."""

    def names(table):
        for symbol in table.get_symbols():
            if symbol.is_global() if table.get_type() != "module" else symbol.is_referenced():
                yield symbol.get_name()
        for child in table.get_children():
            yield from names(child)

    return set(names(symtable.symtable(ast.unparse(tree), "<trial>", "exec")))
