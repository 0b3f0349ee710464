"""Arms of a comparison: kinds, classes of a seam and whole models as fields of ModelConfig that a
trial can name.
"""

import difflib
import inspect

from torch import nn

from lab.models.gpt import SEAMS, ModelConfig
from lab.names import meant, near
from lab.recipes.comparison import Model

OF_TASK = {"vocabulary", "context", "d_out"}  # of a model, and never chosen


def seam_of(arms, named=""):
    """The seam of arms that are words or classes; None where none is.

    ValueError where it may be several, or none.
    """
    words = [
        arm["kind"] if isinstance(arm, dict) else arm
        for arm in arms.values()
        if isinstance(arm, str) or (isinstance(arm, dict) and "kind" in arm)
    ]
    classes = [
        arm
        for arm in arms.values()
        if isinstance(arm, type) and issubclass(arm, tuple(SEAMS.values()))
    ]
    if named:
        return near(named, SEAMS, "seam")
    if not words and not classes:
        return None
    fit = [
        field
        for field, seam in SEAMS.items()
        if all(word in seam.kinds for word in words)
        and all(issubclass(each, seam) for each in classes)
        and field != "qk_norm"
    ]
    if len(fit) == 1:
        return fit[0]
    if fit:
        raise ValueError(
            f"arms {words} are kinds of {', '.join(fit)}: say which with seam={fit[0]!r}"
        )
    places = (
        [SEAMS[f] for f in SEAMS if all(issubclass(each, SEAMS[f]) for each in classes)]
        if classes
        else SEAMS.values()
    )
    kinds = sorted({kind for seam in places for kind in seam.kinds})
    wrong = next((word for word in words if word not in kinds), words[0])
    raise ValueError(f"arm {wrong!r} is no kind{meant(wrong, kinds)}")


def configured(arm, choice, field):
    """The fields of ModelConfig that make an arm; a class is registered by its kind, or by its own
    name.
    """
    if isinstance(choice, ModelConfig):
        return {
            name: value
            for name, value in choice.model_dump(exclude_unset=True).items()
            if name not in OF_TASK
        }
    if isinstance(choice, dict) and "kind" not in choice:
        for name in choice:
            near(name, set(ModelConfig.model_fields) - OF_TASK, f"arm {arm!r}: field")
        return {n: registered(v) if isinstance(v, type) else v for n, v in choice.items()}
    if isinstance(choice, str | dict):
        SEAMS[field].resolve(choice)
        return {field: choice}
    if isinstance(choice, type) and issubclass(choice, tuple(SEAMS.values())):
        return {
            field or next(f for f, seam in SEAMS.items() if issubclass(choice, seam)): registered(
                choice
            )
        }
    if isinstance(choice, type) and issubclass(choice, nn.Module):
        Model.kinds[choice.__qualname__] = choice
        return {"model": choice.__qualname__}
    raise ValueError(
        f"arm {arm!r}: a kind, a class of a seam, fields of ModelConfig or an nn.Module class is wanted"
    )


def registered(cls):
    """The kind of a class of a seam, which joins under its own name where its class line gives
    none.

    ValueError where it defines what is nearly a method of its seam, which nothing would ever call.
    """
    seam = next(seam for seam in SEAMS.values() if issubclass(cls, seam))
    methods = [
        name for name in dir(seam) if not name.startswith("_") and name not in dir(nn.Module)
    ] + ["forward"]
    for name, value in vars(cls).items():
        if (
            inspect.isfunction(value)
            and name not in methods
            and (likely := difflib.get_close_matches(name, methods, 1, 0.85))
        ):
            raise ValueError(
                f"{cls.__name__}.{name} is no method of {seam.__name__}; did you mean {likely[0]!r}?"
            )
    for kind, there in seam.kinds.items():
        if there is cls:
            return kind
    seam.kinds[cls.__qualname__] = cls
    return cls.__qualname__
