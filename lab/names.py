"""A name that is not known, answered with the one that was meant."""

import difflib


def near(name, known, what):
    """The name, where it is among the known; ValueError with the nearest of them and all of them
    where it is not.
    """
    if name in known:
        return name
    raise ValueError(f"{what} {name!r} is unknown{meant(name, known)}")


def known_fields(configuration, values):
    """`values`, {field: value} for a pydantic model; ValueError for a field it does not have."""
    for name in values if isinstance(values, dict) else ():
        near(name, configuration.model_fields, f"field of {configuration.__name__}")
    return values


def meant(name, known):
    """ "; did you mean 'steps'? There are ..." of a name that is none of the known."""
    initials = {
        "".join(word[:1] for word in each.split("_")): each for each in known
    }  # lr: learning_rate
    likely = [
        initials.get(each, each)
        for each in difflib.get_close_matches(str(name), [*known, *initials], 1)
    ]
    return (
        f"; did you mean {likely[0]!r}?" if likely else "."
    ) + f" There are {', '.join(sorted(known))}"
