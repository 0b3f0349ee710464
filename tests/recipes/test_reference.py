"""The reference model can be made again, and its story is told by what made it."""

import json

from lab import zoo
from lab.recipes import reference
from lab.tasks.corpus import HASH


def test_it_is_made_where_it_is_looked_for():
    assert reference.PATH == zoo.REFERENCE


def test_it_is_made_again_bit_by_bit_with_its_marks(tmp_path):
    sizes = {"steps": 3, "batch": 2, "context": 16, "d_model": 16, "n_layers": 1}
    for name in ("one", "two"):
        reference.make(tmp_path / name / "model.safetensors", sizes=sizes)
    one, two = (json.loads((tmp_path / name / "model.json").read_text()) for name in ("one", "two"))
    assert one["weights"] == two["weights"] and one["curve"]["step"] == [0, 3]
    assert list(one["marks"]) == ["unigram", "bigram", "trigram", "4-gram"] and one["corpus"] == HASH
