"""Seams: the places in a model that one word of its configuration fills.

A seam is a class made by `class Position(Seam)`; a variant is a subclass that names itself in its class line,
`class Rotary(Position, kind="rotary")`, and is choosable from then on, also when the class line stands in a notebook.
A choice is a word or a mapping with the variant's own options: "rotary" or {"kind": "rotary", "base": 500}.
"""

import inspect


class Seam:
    def __init_subclass__(cls, kind=None, **kwargs):
        super().__init_subclass__(**kwargs)
        if kind is not None:
            cls.kinds[kind] = cls
        elif Seam in cls.__bases__:
            cls.kinds = {}

    @classmethod
    def resolve(cls, choice):
        """(variant class, options) of a choice. ValueError lists what is allowed for a wrong kind or option."""
        options = dict(choice) if isinstance(choice, dict) else {"kind": choice}
        kind = options.pop("kind", None)
        if kind not in cls.kinds:
            raise ValueError(
                f"{cls.__name__.lower()} {kind!r} is unknown; choose one of {', '.join(sorted(cls.kinds))}"
            )
        parameters = inspect.signature(cls.kinds[kind].__init__).parameters.values()
        allowed = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY]
        for name in options:
            if name not in allowed:
                raise ValueError(
                    f"{cls.__name__.lower()} {kind!r} has no option {name!r}; it has {', '.join(allowed) or 'none'}"
                )
        return cls.kinds[kind], options

    @classmethod
    def build(cls, choice, *context):
        """The variant that `choice` names, constructed with the sizes in `context` and its own options."""
        variant, options = cls.resolve(choice)
        return variant(*context, **options)
