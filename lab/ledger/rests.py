"""Which sweeps a claim rests on, followed by name through a notebook's cells: too many rather than too few."""

import ast
import json
import symtable

from lab.engine.fingerprint import DEFINING, outside_names
from lab.engine.parameters import parsed

FILLING = ("append", "extend", "insert", "add", "update", "setdefault")  # methods that put something into their object


def sweeps_behind(notebook):
    """{claim, or "table stem": names of the trials whose sweeps it follows from} of a notebook.

    A name follows from all that the statement names which bound it last, and from what functions use that it calls; a
    figure or table from what is drawn into it; a verdict from what its call names, the figure and table that it cites
    included. Where a claim, a figure or a trial is no literal or function but another name, it is whatever it could be.
    """
    cells = json.loads(notebook.read_text("utf-8"))["cells"]
    functions, imported = {}, set()
    rests, spoken, drawn, found = {}, {}, {}, {}  # name: sweeps; name: words; figure or table: sweeps; claim: sweeps

    def together(kept, names):
        return set().union(*(kept.get(name, ()) for name in names))

    def reached(names):
        """The names, and those that functions among them use when they are called."""
        inner = set().union(*(outside_names(functions[name]) for name in names if name in functions)) - names
        return reached(names | inner) if inner else names

    def trials(call, node):
        name = getattr(call, "attr", getattr(call, "id", ""))
        return {name} if name in {*functions, *imported} or isinstance(call, ast.Attribute) else outside_names(node)

    def said(argument, otherwise):
        if isinstance(argument, ast.Constant):
            return {argument.value}
        names = outside_names(argument)
        return _words(argument) | (together(spoken, names) if names <= spoken.keys() else otherwise)

    for cell in cells:
        for node in parsed("".join(cell["source"])).body if cell["cell_type"] == "code" else ():
            if isinstance(node, DEFINING):
                functions[node.name] = node
                rests.pop(node.name, None)
                continue
            names = reached(outside_names(node) | _kept(node))
            run = [node, *(functions[name] for name in names if name in functions)]
            words = _words(node) | together(spoken, names)
            sweeps = together(rests, names)
            sweeps |= set().union(*(trials(first, node) for first, _ in _calls(run, "sweep")))
            for name in _bound(node):
                rests[name], spoken[name] = set(sweeps), set(words)
                functions.pop(name, None)
            imported |= _bound(node) if isinstance(node, (ast.Import, ast.ImportFrom)) else set()
            for name in _changed(node):
                rests[name], spoken[name] = rests.get(name, set()) | sweeps, spoken.get(name, set()) | words
            for first, _ in [*_calls(run, "figure"), *_calls(run, "table")]:
                for word in said(first, words):
                    drawn[word] = drawn.get(word, set()) | sweeps
            for first, cited in _calls(run, "judge"):
                behind = sweeps.union(*(together(drawn, said(each, words)) for each in cited))
                for word in said(first, words):
                    found[word] = found.get(word, set()) | behind
    return found | {f"table {stem}": sweeps for stem, sweeps in drawn.items()}


def _calls(nodes, method):
    """(first argument, named arguments that may tell of a figure or table) of every call of a method in the nodes."""
    for call in (each for node in nodes for each in ast.walk(node) if isinstance(each, ast.Call)):
        if isinstance(call.func, ast.Attribute) and call.func.attr == method and (call.args or call.keywords):
            first = call.args[0] if call.args else call.keywords[0].value
            yield first, [each.value for each in call.keywords if each.arg in ("figure", "table", None)]


def _words(node):
    return {each.value for each in ast.walk(node) if isinstance(each, ast.Constant) and isinstance(each.value, str)}


def _bound(node):
    table = symtable.symtable(ast.unparse(node), "<cell>", "exec")
    return {symbol.get_name() for symbol in table.get_symbols() if symbol.is_assigned() or symbol.is_imported()}


def _kept(node):
    """Names bound in a statement that may keep what they were: x += ..., and what is bound under a condition."""
    added = {each.target.id for each in ast.walk(node) if isinstance(each, ast.AugAssign) and _is_name(each.target)}
    if not isinstance(node, (ast.If, ast.For, ast.While, ast.Try)):
        return added
    turns = [name for each in ast.walk(node) if isinstance(each, ast.For) for name in ast.walk(each.target)]
    return added | _bound(node) - {name.id for name in turns if _is_name(name)}


def _changed(node):
    """Names of which a part is set: table["column"] = ..., figure.title = ..., rows.append(...)."""
    for each in ast.walk(node):
        filled = isinstance(each, ast.Call) and isinstance(each.func, ast.Attribute) and each.func.attr in FILLING
        if filled or (isinstance(each, (ast.Subscript, ast.Attribute)) and isinstance(each.ctx, ast.Store)):
            whole = each.func.value if filled else each.value
            yield from (part.id for part in ast.walk(whole) if _is_name(part))


def _is_name(node):
    return isinstance(node, ast.Name)
