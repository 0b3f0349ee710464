"""The rows and columns of a table that judging a claim needs."""


class Absent(LookupError):
    """An arm that the claim compares has no row."""


class NoNumbers(ValueError):
    """The table that a claim is judged from lacks the numbers of a gate."""


def by_seed(rows, measure):
    """The measure of an arm, a Series indexed by seed.

    Raises ValueError where a seed has several rows.
    """
    values = rows.set_index("seed")[measure]
    if not values.index.is_unique:
        twice = values.index[values.index.duplicated()][0]
        raise ValueError(f"seed {twice} has several rows of {measure}")
    return values


def selected(table, chosen):
    """The rows with the chosen values, {column: value}. Raises Absent where a value has no row."""
    part = table
    for name, value in chosen.items():
        part = part[part[name] == value]
        if part.empty:
            raise Absent(f"{name} {value}")
    return part


def column(rows, name):
    """A column. Raises NoNumbers where it is missing or has missing values."""
    if name not in rows.columns:
        raise NoNumbers(f"the table has no column {name}; it has {', '.join(rows.columns)}")
    if rows[name].isna().any():
        raise NoNumbers(f"column {name} has missing values")
    return rows[name]


def numbers(rows, name):
    """A column as floats. Raises NoNumbers as `column` does."""
    return column(rows, name).astype(float)
