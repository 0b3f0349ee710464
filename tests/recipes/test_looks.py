"""Where heads look in texts, checked on maps and windows small enough to see through."""

import pytest
import torch

from lab.models import ModelConfig, Transformer
from lab.recipes import looks
from lab.tasks.code import Code
from lab.tasks.labels import KINDS


def window(text, **gold):
    tokens = torch.tensor([list(text.encode())])
    empty = torch.full_like(tokens, -1)
    kind = torch.tensor([[KINDS.index("name") if chr(b).isalpha() else 0 for b in text.encode()]])
    found = {"tokens": tokens, "targets": tokens.roll(-1, 1), "kind": kind, "opener": empty, "last_use": empty.clone()}
    for name, pairs in gold.items():
        found[name] = found[name].clone()
        for place, value in pairs.items():
            found[name][0, place] = value
    return found


def test_each_byte_of_a_name_knows_its_byte_in_the_earlier_use():
    found = window("abc + abc", last_use={8: 2})
    assert looks.name_sources(found).tolist() == [[-1] * 6 + [0, 1, 2]]
    tokens, targets, keys, lost = looks.names_of(found)
    assert (targets >= 0).nonzero()[:, 1].tolist() == [6, 7, 8]
    assert keys[0, 7].nonzero().flatten().tolist() == [1, 2]
    assert (lost != tokens)[0].nonzero().flatten().tolist() in ([0, 1, 2], [0, 1], [1, 2], [0, 2])


def test_a_name_whose_earlier_use_begins_before_the_window():
    assert looks.name_sources(window("bc + abc", last_use={7: 1})).tolist() == [[-1] * 6 + [0, 1]]


def test_patterns_by_hand():
    wanted = looks.patterns_of(window("f(a) a", opener={3: 1}))
    at = {name: [tuple(pair) for pair in keys[0].nonzero().tolist()] for name, keys in wanted.items()}
    assert at["byte before"] == [(q, q - 1) for q in range(1, 6)] and (3, 3) in at["byte itself"]
    assert at["open bracket"] == [(2, 1)] and at["same byte earlier"] == [(5, 2)]
    assert at["after the same byte"] == [(5, 3)] and at["blanks"] == [(5, 4)]
    assert at["two to four back"][:2] == [(2, 0), (3, 0)] and at["first byte"] == [(5, 0)]


def test_lifts_are_nothing_for_uniform_weights_and_one_for_all_of_them():
    even = torch.ones(4, 4).tril() / torch.arange(1, 5)[:, None]
    before = _before(4)[0].float()
    table = looks.lifts([torch.stack([even, before])[None]], {"byte before": _before(4)})
    assert table.value.tolist() == pytest.approx([0, 1], abs=1e-6) and table.layer.tolist() == [1, 1]


def _before(n):
    place = torch.arange(n)
    return (place[:, None] - place == 1)[None]


def test_exchanged_heads_are_the_same_heads_in_another_order():
    maps = [torch.rand(6, 3, 4, 4, generator=torch.Generator().manual_seed(0))]
    (mixed,) = looks.permuted_heads(maps)
    assert not torch.equal(mixed, maps[0])
    assert torch.equal(mixed.flatten(2).sum(-1).sort(1).values, maps[0].flatten(2).sum(-1).sort(1).values)


def test_texts_and_scores_of_a_model(tmp_path):
    (tmp_path / "a.py").write_text("x = 1\n" * 40)
    (tmp_path / "text").write_text("".join(f"some plain words number {'i' * (i % 7)} and v{i}\n" for i in range(4000)))
    texts = looks.texts_of(Code(32, str(tmp_path / "text")), 4)
    assert texts["letters"].shape == (4, 32) and torch.equal(texts["letters"][:, :16], texts["letters"][:, 16:])
    assert all(chr(byte) in looks.PLAIN.decode() for byte in texts["prose"].flatten().tolist())
    model = Transformer(ModelConfig(vocab_size=256, block_size=32, d_model=16, n_layers=2, n_heads=2)).eval()
    assert looks.distances_of(model, texts["code"]).distance.tolist() == pytest.approx([1] * 4, abs=0.3)
    scores = looks.copying_scores(model, 256)
    assert list(scores) == ["before 1", "induction 1", "before 2", "induction 2"]
    assert scores["induction 2"] == pytest.approx(0.0313, abs=0.02)
