"""Syntax trees of source code: their hash, the names that they use and the modules they import.

A hash leaves out docstrings, comments, layout, empty fields and module paths, and is the same on
Python 3.11 to 3.13.
"""

import ast
import hashlib
import symtable

COMPUTED = ("import_module", "__import__", "eval", "exec")  # run code that their argument selects
DEFINING = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def digest(text):
    """The first 12 hex digits of the sha256 of a text."""
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def normal(node):
    """A syntax tree as text without docstrings and module paths, equal on Python 3.11 to 3.13."""
    if isinstance(node, list):
        return f"[{','.join(map(normal, node))}]"
    if not isinstance(node, ast.AST):
        return repr(node)
    if isinstance(node, ast.Constant):
        return f"Constant({node.value!r})"
    fields = dict(ast.iter_fields(node))
    if isinstance(node, ast.ImportFrom):
        fields = {"names": node.names}
    if isinstance(node, (ast.Module, *DEFINING)) and node.body and _is_text(node.body[0]):
        fields["body"] = node.body[1:]
    shown = (
        f"{name}={normal(value)}"
        for name, value in fields.items()
        if value not in (None, []) and name != "ctx"
    )
    return f"{type(node).__name__}({','.join(shown)})"


def _is_text(node):
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def names_used(tree):
    """The set of names that a definition, its defaults and its decorators use from outside it."""

    def names(table):
        for symbol in table.get_symbols():
            if symbol.is_global() if table.get_type() != "module" else symbol.is_referenced():
                yield symbol.get_name()
        for child in table.get_children():
            yield from names(child)

    return set(names(symtable.symtable(ast.unparse(tree), "<definition>", "exec")))


def chains(tree):
    """Yield (name, attributes) of every name in a tree.

    For example, lab.models.Transformer is ("lab", ("models", "Transformer")).
    """
    inner = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    for node in ast.walk(tree):
        if isinstance(node, (ast.Attribute, ast.Name)) and id(node) not in inner:
            attributes = ()
            while isinstance(node, ast.Attribute):
                node, attributes = node.value, (node.attr, *attributes)
            if isinstance(node, ast.Name):
                yield node.id, attributes


def imported(node, package=""):
    """{bound name: (module, name in the module or None)} of an import statement in `package`."""
    if isinstance(node, ast.Import):
        found = {}
        for alias in node.names:
            top = alias.name.split(".")[0]
            found[alias.asname or top] = (alias.name if alias.asname else top, None)
        return found
    above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
    base = ".".join([*above, *([node.module] if node.module else [])])
    return {a.asname or a.name: (base, a.name) for a in node.names}


def is_kind(node):
    """Whether a statement is a registered class, such as `class Alibi(Position, kind="alibi")`."""
    if not isinstance(node, ast.ClassDef):
        return False
    return any(keyword.arg == "kind" for keyword in node.keywords)


class Part:
    """Statements of a module in `package` that are hashed together.

    hash      the hash of their syntax trees
    imports   [(module, name in it or None)] of all import statements in them
    bound     {name: (module, name in it or None)} that these statements bind
    chains    [(name, attributes)] that they use
    computed  names of the called functions in `COMPUTED` whose argument is no constant
    """

    def __init__(self, statements, package=""):
        body = ast.Module(list(statements), [])
        self.hash = digest(normal(body))
        self.chains = sorted(set(chains(body)))
        self.imports, self.bound, self.computed = [], {}, []
        for node in ast.walk(body):
            if isinstance(node, ast.Import):
                self.imports += [(alias.name, None) for alias in node.names]
                self.bound |= imported(node)
            elif isinstance(node, ast.ImportFrom):
                names = imported(node, package)
                self.imports += names.values()
                self.bound |= names
            elif isinstance(node, ast.Call):
                if node.args and isinstance(node.args[0], ast.Constant):
                    continue
                # A method may be called eval, such as model.eval().
                method = getattr(node.func, "attr", "").replace("eval", "")
                called = getattr(node.func, "id", "") or method
                if called in COMPUTED:
                    self.computed.append(called)
