"""Seams: the exchangeable parts of a model, each chosen by name in the model's configuration.

A seam is a direct subclass of Seam: `class Position(Seam)`, or `class AttentionFn(Seam,
name="Score")` if records and error messages use another name. A variant is a subclass of a seam
that registers itself under a name, its kind: `class Rotary(Position, kind="rotary")`. A variant can
be defined in a notebook. The base class can be a variant too: `class Position(Seam, kind="none")`.
A configuration chooses a variant by its kind, "rotary", or by a dict with options,
{"kind": "rotary", "base": 500}.
"""

import inspect

from torch import nn

from lab import names, uses


class Kinds(dict):
    """The registry {kind: variant} of one seam. Lookups inside a trial are reported to lab.uses.

    Raises ValueError if a kind is registered again for another class.
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
                f"{self.seam.lower()} {kind!r} is already registered for {identity(there)}; "
                f"give {identity(variant)} another name"
            )
        super().__setitem__(kind, variant)


def identity(variant):
    """Module and qualified name of a variant.

    These stay the same when a notebook cell runs again or a module is reloaded. `__mp_main__` is
    the name of the main script in worker processes.
    """
    return f"{variant.__module__.replace('__mp_main__', '__main__')}.{variant.__qualname__}"


class Seam:
    """Base class of all seams; see the docstring of this module."""

    def __init_subclass__(cls, kind=None, name=None, **kwargs):
        super().__init_subclass__(**kwargs)
        if Seam in cls.__bases__:
            cls.kinds = Kinds(name or cls.__name__)
            uses.SEAMS[cls.kinds.seam] = cls
        if kind is not None:
            cls.kinds[kind] = cls

    @classmethod
    def resolve(cls, choice):
        """The class and the dict of options that `choice` specifies.

        Raises ValueError for an unknown kind or option; the message lists the valid ones.
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
        """Construct the variant that `choice` names, with the arguments `context` and options."""
        variant, options = cls.resolve(choice)
        return variant(*context, **options)


class Part(nn.Module):
    """Base class of modules in a model.

    The constructor takes the ModelConfig and, in some seams, other modules.
    """

    def __init__(self, config, *others):
        super().__init__()
