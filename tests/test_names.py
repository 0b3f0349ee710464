"""Error messages for unknown names."""

import pytest

from lab.names import known_fields, near
from lab.training import TrainConfig


@pytest.mark.parametrize("given, meant", [("learning_rat", "learning_rate"), ("step", "steps")])
def test_unknown_name_error_suggests_the_closest_name(given, meant):
    with pytest.raises(ValueError, match=f"option '{given}' is unknown; did you mean '{meant}'[?] Valid names: "):
        near(given, ["learning_rate", "steps"], "option")


def test_known_names_are_accepted():
    assert near("steps", ["steps"], "option") == "steps"
    assert known_fields(TrainConfig, {"steps": 3}) == {"steps": 3}
