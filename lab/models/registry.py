"""Seams: the exchangeable parts of a model, each chosen by one word of its configuration.

A seam is a class made by `class Position(Seam)`, or `class AttentionFn(Seam, name="Score")` if
configurations and records use another name. A variant is a subclass that names itself in its class
line, `class Rotary(Position, kind="rotary")`; from then on it can be chosen, even if the class is
defined in a notebook. A choice is a word or a mapping with the options of the variant: "rotary" or
{"kind": "rotary", "base": 500}. The base class of a seam may be a kind itself.
"""

import inspect

from torch import nn

from lab import names, uses


class Kinds(dict):
    """The registry {name: variant} of one seam. A lookup within a trial is reported to lab.uses.

    Raises ValueError if a name is registered again for another class.
    """

    def __init__(self, seam):
        super().__init__()
        self.seam = seam

    def __getitem__(self, kind):
        variant = super().__getitem__(kind)
        uses.looked_up(self.seam, kind)
        return variant

    def __setitem__(self, kind, variant):
        there = self.get(kind)
        if there is not None and identity(there) != identity(variant):
            raise ValueError(
                f"{self.seam.lower()} {kind!r} is already {identity(there)}, "
                f"so {identity(variant)} needs another name"
            )
        super().__setitem__(kind, variant)


def identity(variant):
    """Where a variant is defined: module and qualified name.

    A cell that runs again, or a reloaded module, defines the same variant again. `__mp_main__` is
    the main script in its worker processes.
    """
    return f"{variant.__module__.replace('__mp_main__', '__main__')}.{variant.__qualname__}"


class Seam:
    """Base class of all seams; see the module's docstring."""

    def __init_subclass__(cls, kind=None, name=None, **kwargs):
        super().__init_subclass__(**kwargs)
        if Seam in cls.__bases__:
            cls.kinds = Kinds(name or cls.__name__)
            uses.SEAMS[cls.kinds.seam] = cls
        if kind is not None:
            cls.kinds[kind] = cls

    @classmethod
    def resolve(cls, choice):
        """(variant class, options) of a choice.

        Raises ValueError for an unknown kind or option; the message lists the known ones.
        """
        options = dict(choice) if isinstance(choice, dict) else {"kind": choice}
        kind = options.pop("kind", None)
        variant = cls.kinds[names.near(kind, cls.kinds, cls.kinds.seam.lower())]
        parameters = inspect.signature(variant.__init__).parameters.values()
        allowed = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY]
        for name in options:
            if name not in allowed:
                raise ValueError(
                    f"{cls.kinds.seam.lower()} {kind!r} has no option {name!r}; it has "
                    f"{', '.join(allowed) or 'none'}"
                )
        return variant, options

    @classmethod
    def build(cls, choice, *context):
        """Construct the variant that `choice` names from `context` (sizes) and its options."""
        variant, options = cls.resolve(choice)
        return variant(*context, **options)


class Part(nn.Module):
    """A part of a model, built from its configuration and, in some seams, from further parts."""

    def __init__(self, config, *others):
        super().__init__()
