"""Source as syntax trees: text that is the same on all Pythons, the names that code uses, what it
imports.

A tree is hashed without docstrings, comments, layout, empty fields and module paths: equal on
Python 3.11 to 3.13.
"""

import ast
import hashlib
import symtable

COMPUTED = ("import_module", "__import__", "eval", "exec")  # lead to code that no name shows
DEFINING = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def digest(text):
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def normal(node):
    """A syntax tree as text, the same on every version of Python; docstrings and module paths are
    left out.
    """
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
    """The names that a definition takes from outside itself, defaults and decorators included."""

    def names(table):
        for symbol in table.get_symbols():
            if symbol.is_global() if table.get_type() != "module" else symbol.is_referenced():
                yield symbol.get_name()
        for child in table.get_children():
            yield from names(child)

    return set(names(symtable.symtable(ast.unparse(tree), "<definition>", "exec")))


def chains(tree):
    """The pairs (name, attributes) in a tree: lab.models.Transformer is ("lab", ("models",
    "Transformer")).
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
    """{name: (module, name there or None)} of an import statement in a package."""
    if isinstance(node, ast.Import):
        return {
            a.asname or a.name.split(".")[0]: (a.name if a.asname else a.name.split(".")[0], None)
            for a in node.names
        }
    above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
    base = ".".join([*above, *([node.module] if node.module else [])])
    return {a.asname or a.name: (base, a.name) for a in node.names}


def is_kind(node):
    """Whether a statement is a class that registers itself, such as `class Alibi(Position,
    kind="alibi")`.
    """
    return isinstance(node, ast.ClassDef) and any(
        keyword.arg == "kind" for keyword in node.keywords
    )


class Part:
    """Statements that count together, of a module in a package.

    hash      of their trees
    imports   [(module, name in it or None)] of all import statements in them
    bound     {name: (module, name in it or None)} that these statements bind
    chains    [(name, attributes)] that they use
    computed  calls of import_module, eval and the like with what is no constant
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
            elif isinstance(node, ast.Call) and not isinstance(
                (node.args or [None])[0], ast.Constant
            ):
                called = getattr(node.func, "id", "") or getattr(node.func, "attr", "").replace(
                    "eval", ""
                )
                if called in COMPUTED:  # model.eval() is none
                    self.computed.append(called)
