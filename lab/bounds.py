"""The values that a parameter allows: its type, its default and the bounds in its comment.

    steps: int = 300  # optimiser steps; multiple of 10
    heads: list = [1, 2, 4]  # head counts compared; at most 64; at least 2 entries

By default an int is at least 1 and a float is finite and above 0. A list has at least one entry,
its entries are all different, and each has the type of the default's entries. A parameter without
an annotation has the type of its default. A rule that the default itself breaks does not apply.
None is allowed where the type is Optional[…]. Each part of the comment after a semicolon may state
another bound in one of the `FORMS`; the text after a colon in that part is prose.
"""

import json
import os
import re
from dataclasses import dataclass

WORDS = {
    int: "a whole number",
    float: "a finite number",
    str: "text",
    bool: "true or false",
    None: "a plain value",
}
KINDS = {"int": int, "float": float, "str": str, "bool": bool}
IMPLIED = {int: ("at least 1", "at most 1000000000"), float: ("> 0",)}  # unless stated
N = r"(-?\d+(?:_\d+)*(?:\.\d+)?(?:e[+-]?\d+)?)"
NUMBERS = (int, float)
# The form of a bound -> the types that it applies to, and a function that returns {side: test}.
FORMS = {
    f"at least {N}": (NUMBERS, lambda n: {"least": lambda value: value >= n}),
    f"> ?{N}": (NUMBERS, lambda n: {"least": lambda value: value > n}),
    f"at most {N}": (NUMBERS, lambda n: {"most": lambda value: value <= n}),
    f"< ?{N}": (NUMBERS, lambda n: {"most": lambda value: value < n}),
    f"{N} to {N}": (
        NUMBERS,
        lambda a, b: {"least": lambda value: value >= a, "most": lambda value: value <= b},
    ),
    r"multiple of ([1-9]\d*)": ((int,), lambda n: {"multiple": lambda value: value % n == 0}),
    "one of (.+(?:,| or) .+)": (
        (int, float, str),
        lambda words: dict.fromkeys(("least", "most"), choices(words)),
    ),
    "a file or folder(, may be empty)?": (
        (str,),
        lambda empty: {"path": lambda value: is_there(value, empty)},
    ),
}
FORMS_IN_WORDS = (
    "at least 0, at most 8, > 0, < 1, 1 to 8, multiple of 8, one of a, b, at least 2 entries, "
    "a file or folder, may be empty"
)
LOOKS_LIKE_A_BOUND = re.compile(
    r"([<>≤≥]=?[ \d]|at least|at most|between \d|-?\d\S* (to|-) -?\d|multiple|one of|"
    r"a file|a folder).*"
)


@dataclass(frozen=True)
class Parameter:
    """A line of the parameters cell: the default of a parameter and the values that it allows."""

    default: object
    kind: type | None  # type of the value or of the list's entries; None: any that JSON can hold
    bounds: dict  # {side, such as "least": (the bound in words, test of one value)}
    entries: int | None = None  # the least number of entries in a list; None: not a list
    differ: bool = False  # whether the entries of a list must all differ
    optional: bool = False  # whether the value may be None

    def checked(self, name, value):
        """The value, converted to the parameter's type.

        Raises ValueError where the value is not allowed; the message says which values are.
        """
        if self.optional and value is None:
            return None
        if self.entries is None:
            return self._entry(name, value)
        if isinstance(value, list) and len(value) >= self.entries:
            entries = [self._entry(f"{name}[{place}]", entry) for place, entry in enumerate(value)]
            if not self.differ or all_differ(entries):
                return entries
        fewest = "1 entry" if self.entries == 1 else f"{self.entries} entries"
        different = ", all different" if self.differ else ""
        raise ValueError(f"{name} = {value!r}: expected a list of at least {fewest}{different}")

    def _entry(self, name, value):
        try:
            converted = convert(value, self.kind)
            if all(test(converted) for _, test in self.bounds.values()):
                return converted
        except (ValueError, TypeError, OverflowError, RecursionError):
            pass
        wanted = dict.fromkeys([WORDS[self.kind], *(words for words, _ in self.bounds.values())])
        if self.optional:
            wanted["or None"] = None
        raise ValueError(f"{name} = {value!r}: expected {', '.join(wanted)}")


def parameter_of(default, annotation, comment):
    """The `Parameter` that a line with this default, annotation and comment declares.

    Raises ValueError where the default does not have the annotated type, or where the comment
    holds a bound that cannot be read.
    """
    optional = annotation.startswith("Optional[")
    annotation = annotation.removeprefix("Optional[").removesuffix("]" if optional else "")
    is_list = isinstance(default, list) or annotation.startswith("list")
    values = default if isinstance(default, list) else [default]
    values = [] if optional and default is None else values
    kind = KINDS.get(annotation.removeprefix("list[").removesuffix("]"), kind_of(values))
    try:
        values = [convert(value, kind) for value in values]
    except (ValueError, TypeError):
        raise ValueError(f"the default {default!r} is not {WORDS[kind]}") from None
    bounds = {}
    for clause in IMPLIED.get(kind, ()):
        for side, (words, test) in bounds_of(clause, kind).items():
            if all(map(test, values)):
                bounds[side] = (words, test)
    entries = min(len(values), 1)
    for part in comment.split(";"):
        clause = part.partition(":")[0].strip()
        found = re.fullmatch(r"at least (\d+) entr(?:y|ies)", clause)
        if found and is_list:
            entries = int(found[1])
        else:
            bounds |= bounds_of(clause, kind)
    if is_list:
        return Parameter(default, kind, bounds, entries, all_differ(values), optional)
    return Parameter(default, kind, bounds, optional=optional)


def kind_of(values):
    """The shared type of all values, or float for ints and floats together; None without one."""
    types = {type(value) for value in values}
    if types == {int, float}:
        return float
    return types.pop() if len(types) == 1 and types < WORDS.keys() else None


def convert(value, kind):
    """The value as an instance of the type `kind`.

    Text such as 1e-3 becomes a float, because YAML 1.1 reads it as text. Raises ValueError where
    the value does not have this type or JSON cannot hold it.
    """
    if kind is float and isinstance(value, int | float | str) and not isinstance(value, bool):
        value = float(value)
    plain = json.loads(json.dumps(value, allow_nan=False)) == value
    if not plain or kind not in (None, type(value)):
        raise ValueError(f"not {WORDS[kind]}")
    return value


def bounds_of(clause, kind):
    """{side: (words, test)} of the bound that a part of a comment states; empty for prose.

    Raises ValueError where the part looks like a bound but cannot be read as one.
    """
    for form, (kinds, tests) in FORMS.items():
        if kind in kinds and (found := re.fullmatch(form, clause)):
            said = [
                number(text) if re.fullmatch(N, text or "") else text for text in found.groups()
            ]
            return {side: (clause, test) for side, test in tests(*said).items()}
    if LOOKS_LIKE_A_BOUND.fullmatch(clause):
        raise ValueError(
            f"{clause!r} looks like a bound but is not a valid one for {WORDS[kind]}; "
            f"valid forms are {FORMS_IN_WORDS}"
        )
    return {}


def all_differ(values):
    """Whether no two of the values are the same."""
    return len({json.dumps(value) for value in values}) == len(values)


def choices(words):
    """A test for whether a value is one of those that `words` lists, such as "a, b or c"."""
    said = re.split(", (?:or )?| or ", words)
    allowed = {*said, *(number(word) for word in said if re.fullmatch(N, word))}
    return lambda value: value in allowed


def is_there(path, may_be_empty):
    """Whether a file or folder exists at `path`; an empty `path` gives `may_be_empty`."""
    return os.path.exists(os.path.expanduser(path)) if path else bool(may_be_empty)


def number(text):
    """The int or float that a text spells."""
    return int(text) if re.fullmatch(r"-?[\d_]+", text) else float(text)
