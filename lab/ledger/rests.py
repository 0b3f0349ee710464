"""Which sweeps a claim rests on, followed by name through a notebook's cells: too many rather than too few."""

import ast
import json
import symtable

from lab.engine.fingerprint import outside_names
from lab.engine.parameters import parsed


def sweeps_behind(notebook):
    """{claim, or "table stem": names of the trials whose sweeps it follows from} of a notebook.

    A name follows from all that the statement names which bound it last, a figure or table from what is drawn into it,
    and a verdict from what its call names, the figure and table that it cites included.
    """
    cells = json.loads(notebook.read_text("utf-8"))["cells"]
    rests, functions, found = {}, {}, {}

    def behind(names, seen=frozenset()):
        """The sweeps behind names, those that functions use when they are called included."""
        inner = set().union(*(functions.get(name, set()) for name in names)) - seen
        sweeps = set().union(*(rests.get(name, set()) for name in names))
        return sweeps | (behind(inner, seen | inner) if inner else set())

    for cell in cells:
        for node in parsed("".join(cell["source"])).body if cell["cell_type"] == "code" else ():
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                functions[node.name] = outside_names(node) - {node.name}
                continue
            words = {
                each.value for each in ast.walk(node) if isinstance(each, ast.Constant) and isinstance(each.value, str)
            }
            reached = behind(outside_names(node))
            reached |= {getattr(call.args[0], "id", "?") for call in _calls(node, "sweep") if call.args}
            for name in _bound(node):
                rests[name] = set(reached)
                functions.pop(name, None)
            for name in _changed(node):
                rests[name] = rests.get(name, set()) | reached
            if _calls(node, "figure", "table"):
                for word in words:
                    rests[f"table {word}"] = rests.get(f"table {word}", set()) | reached
            if _calls(node, "judge"):
                cited = reached | behind({f"table {word}" for word in words})
                for word in words:
                    found[word] = found.get(word, set()) | cited
    return found | {name: sweeps for name, sweeps in rests.items() if name.startswith("table ")}


def _bound(node):
    table = symtable.symtable(ast.unparse(node), "<cell>", "exec")
    return {symbol.get_name() for symbol in table.get_symbols() if symbol.is_assigned() or symbol.is_imported()}


def _changed(node):
    """Names of which a part is set: table["column"] = ..., figure.title = ..."""
    for each in ast.walk(node):
        if isinstance(each, (ast.Subscript, ast.Attribute)) and isinstance(each.ctx, ast.Store):
            yield from (part.id for part in ast.walk(each.value) if isinstance(part, ast.Name))


def _calls(node, *methods):
    calls = (each for each in ast.walk(node) if isinstance(each, ast.Call) and isinstance(each.func, ast.Attribute))
    return [call for call in calls if call.func.attr in methods]
