"""Rows of a table that a claim asks for."""


class Absent(LookupError):
    """An arm that the claim compares has no row."""


class NoNumbers(ValueError):
    """A gate that a claim needs has no numbers in the table that it is judged from."""


def by_seed(rows, measure):
    """The measure of an arm, indexed by seed.

    ValueError where a seed has two rows: choose among them first.
    """
    values = rows.set_index("seed")[measure]
    if not values.index.is_unique:
        twice = values.index[values.index.duplicated()][0]
        raise ValueError(f"seed {twice} has several rows of {measure}")
    return values


def selected(table, chosen):
    """The rows with the chosen values; Absent names what has none."""
    part = table
    for name, value in chosen.items():
        part = part[part[name] == value]
        if part.empty:
            raise Absent(f"{name} {value}")
    return part


def column(rows, name):
    """A column without holes; NoNumbers where it has any, or is not there."""
    if name not in rows.columns:
        raise NoNumbers(f"the table has no column {name}; it has {', '.join(rows.columns)}")
    if rows[name].isna().any():
        raise NoNumbers(f"column {name} has holes")
    return rows[name]


def numbers(rows, name):
    return column(rows, name).astype(float)
