"""What a value may be, as the line that declares it says: its type, its default and the bounds in its comment.

    steps: int = 300  # optimiser steps; multiple of 10
    heads: list = [1, 2, 4]  # head counts compared; at most 64; at least 2 entries

None is allowed where the type says so: `int | None`. An int is 1 or more, a float above 0 and finite, a list has one
entry or more, all different, each as its default's entries; without a type the default's counts, and what a default
breaks is not implied. A part of the comment after a semicolon may say otherwise, in one of the `FORMS`; what follows a
colon in it is prose. Notebooks of the project say `at least 2` where `>= 2` means the same: papermill takes no line
with a second equals sign for a parameter.
"""

import json
import os
import re
from dataclasses import dataclass

WORDS = {int: "a whole number", float: "a finite number", str: "text", bool: "true or false", None: "a plain value"}
IMPLIED = {int: ("at least 1", "at most 1000000000"), float: ("> 0",)}  # no size here can be above a thousand million
N = r"(-?\d+(?:_\d+)*(?:\.\d+)?(?:e[+-]?\d+)?)"
FORMS = {  # how a bound is written: the kinds that it is for, and {what it bounds: a test of one value}
    f"(?:>= ?|at least ){N}": ((int, float), lambda n: {"least": lambda value: value >= n}),
    f"> ?{N}": ((int, float), lambda n: {"least": lambda value: value > n}),
    f"(?:<= ?|at most ){N}": ((int, float), lambda n: {"most": lambda value: value <= n}),
    f"< ?{N}": ((int, float), lambda n: {"most": lambda value: value < n}),
    f"{N} to {N}": ((int, float), lambda a, b: {"least": lambda value: value >= a, "most": lambda value: value <= b}),
    r"multiple of ([1-9]\d*)": ((int,), lambda n: {"multiple": lambda value: value % n == 0}),
    "one of (.+(?:,| or) .+)": ((int, float, str), lambda words: dict.fromkeys(("least", "most"), choices(words))),
    "a file or folder(, may be empty)?": ((str,), lambda empty: {"path": lambda value: is_there(value, empty)}),
}
FORMS_IN_WORDS = (
    "at least 0 or >= 0, at most 8 or <= 8, > 0, < 1, 1 to 8, multiple of 8, one of a, b, at least 2 entries, "
    "a file or folder, may be empty"
)
LOOKS_LIKE_A_BOUND = re.compile(
    r"(?:[<>=≤≥]+[ \d]|-?\d\S* ?(?:to|-|–|\.\.) ?-?\d|between \d|(?:a )?multiples? of|one of|at (?:least|most)\b"
    r"|a (?:file|folder)\b|may be empty).*|.*[<>≤≥]=? ?-?\.?\d.*"
)


@dataclass(frozen=True)
class Parameter:
    """A line of the parameters cell: its default, and what a value may be."""

    default: object
    kind: type | None  # of the value, or of a list's entries; None: whatever JSON can hold
    bounds: dict  # {what it bounds: (its words, a test of one value)}
    entries: int | None = None  # the fewest of a list; None: no list
    differ: bool = False  # whether a list's entries must
    optional: bool = False  # whether it may be None

    def checked(self, name, value):
        """The value, converted. ValueError names what of it is not allowed, and what is."""
        if self.optional and value is None:
            return None
        if self.entries is None:
            return self._entry(name, value)
        if isinstance(value, list) and len(value) >= self.entries:
            entries = [self._entry(f"{name}[{place}]", entry) for place, entry in enumerate(value)]
            if not self.differ or all_differ(entries):
                return entries
        fewest = f"{self.entries} entr{'y' if self.entries == 1 else 'ies'}"
        raise ValueError(f"{name} = {value!r}: a list of at least {fewest}{', all different,' * self.differ} is wanted")

    def _entry(self, name, value):
        try:
            converted = convert(value, self.kind)
            if all(test(converted) for _, test in self.bounds.values()):
                return converted
        except (ValueError, TypeError, OverflowError, RecursionError):
            pass
        wanted = dict.fromkeys([WORDS[self.kind], *(words for words, _ in self.bounds.values())])
        wanted |= {"or None": None} if self.optional else {}
        raise ValueError(f"{name} = {value!r}: {', '.join(wanted)} is wanted")


def convert(value, kind):
    """The value as one of a kind; text such as 1e-3, as YAML 1.1 reads it, as a float. ValueError: it is none."""
    if kind is float and isinstance(value, int | float | str) and not isinstance(value, bool):
        value = float(value)
    if json.loads(json.dumps(value, allow_nan=False)) != value or kind not in (None, type(value)):
        raise ValueError(f"not {WORDS[kind]}")
    return value


def all_differ(values):
    return len({json.dumps(value) for value in values}) == len(values)


def choices(words):
    said = re.split(", (?:or )?| or ", words)
    allowed = {*said, *(number(word) for word in said if re.fullmatch(N, word))}
    return lambda value: value in allowed


def is_there(path, may_be_empty):
    return os.path.exists(os.path.expanduser(path)) if path else bool(may_be_empty)


def number(text):
    return int(text) if re.fullmatch(r"-?[\d_]+", text) else float(text)


def bounds_of(clause, kind):
    """{what is bounded: (words, test)} by a part of a comment; empty: prose. ValueError: it looks like a bound."""
    for form, (kinds, tests) in FORMS.items():
        if kind in kinds and (found := re.fullmatch(form, clause)):
            said = [number(text) if re.fullmatch(N, text or "") else text for text in found.groups()]
            return {side: (clause, test) for side, test in tests(*said).items()}
    if LOOKS_LIKE_A_BOUND.fullmatch(clause):
        raise ValueError(f"{clause!r} looks like a bound of {WORDS[kind]} and is none; bounds are {FORMS_IN_WORDS}")
    return {}


def parameter_of(default, annotation, comment):
    """What a line declares. ValueError: its default is not of its type, or its comment a bound that cannot be read."""
    annotation, optional = without_none(annotation)
    values = default if isinstance(default, list) else [default] if default is not None or not optional else []
    types = {*map(type, values)}
    form = r"(?:list\[)?(int|float|str|bool)\]?" if values else "(int|float|str|bool)"
    named = re.fullmatch(form, annotation)
    kind = next((k for k in WORDS if k and named and k.__name__ == named[1]), None)
    kind = kind or (float if types == {int, float} else types.pop() if len(types) == 1 else None)
    kind = kind if kind in WORDS else None
    try:
        values = [convert(value, kind) for value in values]
    except (ValueError, TypeError):
        raise ValueError(f"the default {default!r} is not {WORDS[kind]}") from None
    bounds, said, entries = {}, {}, min(len(values), 1)
    for clause in IMPLIED.get(kind, ()):
        bounds |= {side: b for side, b in bounds_of(clause, kind).items() if all(map(b[1], values))}
    for clause in (part.partition(":")[0].strip() for part in comment.split(";")):
        if isinstance(default, list) and (found := re.fullmatch(r"at least (\d+) entr(?:y|ies)", clause)):
            entries = int(found[1])
            continue
        bound = bounds_of(clause, kind)
        if said.keys() & bound.keys():
            raise ValueError(f"{clause!r} says again what another bound says")
        said |= bound
    listed = (entries, all_differ(values)) if isinstance(default, list) else ()
    return Parameter(default, kind, bounds | said, *listed, optional=optional)


def without_none(annotation):
    """(the type, whether None is allowed besides) of a type such as int | None or Optional[int]."""
    if found := re.fullmatch(r"(?:typing\.)?Optional\[(.+)\]", annotation):
        return found[1], True
    types = annotation.split(" | ")
    return " | ".join(name for name in types if name != "None"), "None" in types
