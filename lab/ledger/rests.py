"""Which trials a claim rests on: sweeps are followed by name through a notebook's cells, trials by the rows that were
compared; too many rather than too few.
"""

import ast
import json
import symtable
from functools import lru_cache

from lab.engine.parameters import parsed
from lab.engine.source import DEFINING, outside_names

FILLING = ("append", "extend", "insert", "add", "update", "setdefault")  # methods that put something into their object


def sweeps_behind(notebook, cited=True):
    """{claim, or "table stem": names of the trials whose sweeps it follows from} of a notebook.

    A name follows from all that the statement names which bound it last, and from what functions use that it calls; a
    figure or table from what is drawn into it; a verdict from what its call names and, where `cited`, from the figure
    and table that it cites. Where a claim, a figure or a trial is no literal or function but another name, it is
    whatever it could be.
    """
    return _sweeps_behind(notebook, cited, notebook.stat().st_mtime_ns)


@lru_cache(maxsize=4)
def _sweeps_behind(notebook, cited, changed):
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
            sweeps |= set().union(*(trials(first, node) for first, _ in calls(run, "sweep")))
            for name in bound(node):
                rests[name], spoken[name] = set(sweeps), set(words)
                functions.pop(name, None)
            imported |= bound(node) if isinstance(node, (ast.Import, ast.ImportFrom)) else set()
            for name in changed_in(node):
                rests[name], spoken[name] = rests.get(name, set()) | sweeps, spoken.get(name, set()) | words
            for first, _ in [*calls(run, "figure"), *calls(run, "table")]:
                for word in said(first, words):
                    drawn[word] = drawn.get(word, set()) | sweeps
            for first, named in calls(run, "judge"):
                behind = sweeps.union(*(together(drawn, said(each, words)) for each in named if cited))
                for word in said(first, words):
                    found[word] = found.get(word, set()) | behind
    return found | {f"table {stem}": sweeps for stem, sweeps in drawn.items()}


def trials_in(rows, used):
    """Those of the used trials that one of the rows, dicts, may come from.

    It does not where a column of a parameter holds what another trial had there. What none of them had is the
    notebook's own word, and says nothing.
    """
    taken = {}
    for each in used:
        for name, value in each.body["parameters"].items():
            values = taken.setdefault((each.trial.__name__, name), [])
            values += [] if value in values else [value]

    def may_come(row, each):
        told = ((name, value) for name, value in each.body["parameters"].items() if name in row)
        return all(row[name] == value or row[name] not in taken[each.trial.__name__, name] for name, value in told)

    return [each for each in used if any(may_come(row, each) for row in rows)]


def calls(nodes, method):
    """(first argument, named arguments that may tell of a figure or table) of every call of a method in the nodes."""
    for call in (each for node in nodes for each in ast.walk(node) if isinstance(each, ast.Call)):
        if isinstance(call.func, ast.Attribute) and call.func.attr == method and (call.args or call.keywords):
            first = call.args[0] if call.args else call.keywords[0].value
            yield first, [each.value for each in call.keywords if each.arg in ("figure", "table", None)]


def _words(node):
    return {each.value for each in ast.walk(node) if isinstance(each, ast.Constant) and isinstance(each.value, str)}


def bound(node):
    table = symtable.symtable(ast.unparse(node), "<cell>", "exec")
    return {symbol.get_name() for symbol in table.get_symbols() if symbol.is_assigned() or symbol.is_imported()}


def _kept(node):
    """Names bound in a statement that may keep what they were: x += ..., and what is bound under a condition."""
    added = {each.target.id for each in ast.walk(node) if isinstance(each, ast.AugAssign) and _is_name(each.target)}
    if not isinstance(node, (ast.If, ast.For, ast.While, ast.Try)):
        return added
    turns = [name for each in ast.walk(node) if isinstance(each, ast.For) for name in ast.walk(each.target)]
    return added | bound(node) - {name.id for name in turns if _is_name(name)}


def changed_in(node):
    """Names of which a part is set: table["column"] = ..., figure.title = ..., rows.append(...)."""
    for each in ast.walk(node):
        filled = isinstance(each, ast.Call) and isinstance(each.func, ast.Attribute) and each.func.attr in FILLING
        if filled or (isinstance(each, (ast.Subscript, ast.Attribute)) and isinstance(each.ctx, ast.Store)):
            whole = each.func.value if filled else each.value
            yield from (part.id for part in ast.walk(whole) if _is_name(part))


def _is_name(node):
    return isinstance(node, ast.Name)
