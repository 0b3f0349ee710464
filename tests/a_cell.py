"""Define a function as a notebook cell would."""

import linecache


def defined_in_a_cell(source):
    """The function that a notebook cell defines: its module is __main__, and only linecache has its source."""
    linecache.cache["<cell 1>"] = (len(source), None, source.splitlines(True), "<cell 1>")
    scope = {"__name__": "__main__"}
    exec(compile(source, "<cell 1>", "exec"), scope)
    return next(value for name, value in scope.items() if not name.startswith("__"))
