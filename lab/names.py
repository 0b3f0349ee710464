"""Error messages for unknown names, with a suggestion and the valid names."""

import difflib


def near(name, known, what):
    """Return `name` if it is in `known`. Otherwise raise ValueError, suggesting a similar name."""
    if name in known:
        return name
    raise ValueError(f"{what} {name!r} is unknown{meant(name, known)}")


def known_fields(configuration, values):
    """Return `values` unchanged. Raises ValueError for a key that is no field of the class."""
    for name in values if isinstance(values, dict) else ():
        near(name, configuration.model_fields, f"field of {configuration.__name__}")
    return values


def meant(name, known):
    """The end of the message for an unknown name: "; did you mean 'steps'? Valid names: ..."."""
    likely = difflib.get_close_matches(str(name), list(known), 1)
    suggestion = f"; did you mean {likely[0]!r}?" if likely else "."
    return f"{suggestion} Valid names: {', '.join(sorted(known))}"
