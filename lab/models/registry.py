"""Seams: the places in a model that one word of its configuration fills.

A seam is a class made by `class Position(Seam)`, or `class AttentionFn(Seam, name="Score")` where
configurations and records call it otherwise. A variant is a subclass that names itself in its class
line, `class Rotary(Position, kind="rotary")`, and is choosable from then on, also when the class
line stands in a notebook. A choice is a word or a mapping with the variant's own options: "rotary"
or {"kind": "rotary", "base": 500}.
"""

import functools
import inspect

from lab import trace

# What matters to a kind of where tokens stand, the least first: who comes before whom, how far
# apart two are, how far each is from the first. Padding in front of a text changes places, padding
# within it distances too; padding behind it changes nothing.
GOES_BY = ("order", "distance", "place")


class Kinds(dict):
    """{name: variant} of one seam, for life; who looks one up in a trial depends on it."""

    def __init__(self, seam):
        super().__init__()
        self.seam = seam

    def __getitem__(self, kind):
        variant = super().__getitem__(kind)
        if self.seam in trace.SEAMS:
            check_methods(trace.SEAMS[self.seam], kind, variant)
        trace.looked_up(self.seam, kind)
        return variant

    def __setitem__(self, kind, variant):
        there = self.get(kind)
        if there is not None and identity(there) != identity(variant):
            raise ValueError(
                f"{self.seam.lower()} {kind!r} is {identity(there)} already, "
                f"so {identity(variant)} needs another name"
            )
        super().__setitem__(kind, variant)


def identity(variant):
    """Where a variant is defined; a cell that runs again, or a module that is reloaded, defines the
    same one anew.

    A script that starts workers is `__mp_main__` in them.
    """
    return f"{variant.__module__.replace('__mp_main__', '__main__')}.{variant.__qualname__}"


@functools.cache
def check_methods(seam, kind, variant):
    """TypeError names a method of a variant that cannot be called as its seam's is, and the
    arguments it gets.

    Of those of a `forward` that have a default a variant may do without.
    """
    for name, method in vars(seam).items():
        if (
            name.startswith("_")
            or not inspect.isfunction(method)
            or not inspect.isfunction(getattr(variant, name))
        ):
            continue
        given, takes = inspect.signature(method), inspect.signature(getattr(variant, name))
        needed = [p for p in given.parameters.values() if name != "forward" or p.default is p.empty]
        placed = [p for p in needed if p.kind is p.POSITIONAL_OR_KEYWORD]
        named = {p.name: None for p in needed if p.kind is p.KEYWORD_ONLY}
        try:
            takes.bind(*placed, **named)
        except TypeError:
            where = (
                f"{seam.kinds.seam.lower()} {kind!r}, {variant.__module__}.{variant.__qualname__}"
            )
            raise TypeError(
                f"{where}: {name}{takes} is given {name}{given}: let it take these arguments"
            ) from None


class Seam:
    def __init_subclass__(cls, kind=None, name=None, **kwargs):
        super().__init_subclass__(**kwargs)
        if kind is not None:
            cls.kinds[kind] = cls
        elif Seam in cls.__bases__:
            cls.kinds = Kinds(name or cls.__name__)
            trace.SEAMS[cls.kinds.seam] = cls

    @classmethod
    def resolve(cls, choice):
        """(variant class, options) of a choice.

        ValueError lists what is allowed for a wrong kind or option.
        """
        options = dict(choice) if isinstance(choice, dict) else {"kind": choice}
        kind = options.pop("kind", None)
        if kind not in cls.kinds:
            raise ValueError(
                f"{cls.kinds.seam.lower()} {kind!r} is unknown; choose one of {', '.join(sorted(cls.kinds))}"
            )
        variant = cls.kinds[kind]
        parameters = inspect.signature(variant.__init__).parameters.values()
        allowed = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY]
        for name in options:
            if name not in allowed:
                raise ValueError(
                    f"{cls.kinds.seam.lower()} {kind!r} has no option {name!r}; it has {', '.join(allowed) or 'none'}"
                )
        return variant, options

    @classmethod
    def build(cls, choice, *context):
        """The variant that `choice` names, constructed with the sizes in `context` and its own
        options.
        """
        variant, options = cls.resolve(choice)
        return variant(*context, **options)
