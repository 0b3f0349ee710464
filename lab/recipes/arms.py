"""Arms of a comparison: kinds, seam classes and whole models as ModelConfig fields of a trial."""

import difflib
import inspect

from torch import nn

from lab.models.gpt import SEAMS, ModelConfig
from lab.names import meant, near
from lab.recipes.comparison import Model

OF_TASK = {"vocab_size", "block_size", "d_out"}  # fields set by the task, never by an arm


def seam_of(arms, named=""):
    """The ModelConfig field of arms given as words or classes; None if no arm is a word or class.

    `named` is the seam that the caller chose, if any. Raises ValueError if several seams or none
    fit.
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
            f"arms {words} are kinds of several seams, {', '.join(fit)}: say which with "
            f"seam={fit[0]!r}"
        )
    places = (
        [SEAMS[f] for f in SEAMS if all(issubclass(each, SEAMS[f]) for each in classes)]
        if classes
        else SEAMS.values()
    )
    kinds = sorted({kind for seam in places for kind in seam.kinds})
    wrong = next((word for word in words if word not in kinds), words[0])
    raise ValueError(f"arm {wrong!r} is not a known kind{meant(wrong, kinds)}")


def configured(arm, choice, field):
    """The ModelConfig fields of an arm; a class is registered under its kind or its own name.

    Raises ValueError for anything but a kind, a seam class, fields, or an nn.Module class.
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
        return {n: register(v) if isinstance(v, type) else v for n, v in choice.items()}
    if isinstance(choice, str | dict):
        SEAMS[field].resolve(choice)
        return {field: choice}
    if isinstance(choice, type) and issubclass(choice, tuple(SEAMS.values())):
        found = field or next(f for f, seam in SEAMS.items() if issubclass(choice, seam))
        return {found: register(choice)}
    if isinstance(choice, type) and issubclass(choice, nn.Module):
        Model.kinds[choice.__qualname__] = choice
        return {"model": choice.__qualname__}
    raise ValueError(
        f"arm {arm!r} must be a kind, a class of a seam, fields of ModelConfig or an "
        "nn.Module class"
    )


def register(cls):
    """The kind of a seam class; a class without a kind is registered under its own name.

    Raises ValueError if the class has a method whose name resembles one of its seam: likely a typo.
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
                f"{cls.__name__}.{name} is no method of {seam.__name__}; did you mean "
                f"{likely[0]!r}?"
            )
    for kind, there in seam.kinds.items():
        if there is cls:
            return kind
    seam.kinds[cls.__qualname__] = cls
    return cls.__qualname__
