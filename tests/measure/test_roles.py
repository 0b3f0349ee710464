"""Tables and pictures about heads say what was put into them: known maps, known costs, a checkpoint from elsewhere."""

import math

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
import torch.nn.functional as F

from lab import charts, figures
from lab.measure import maps as patterns
from lab.measure import roles
from lab.measure.attention import attention_probe
from lab.models import ModelConfig, Transformer
from lab.tasks.blocks import Blocks


def model_of(score="softmax", **options):
    config = ModelConfig(vocabulary=16, context=12, d_model=16, n_layers=2, n_heads=4, score=score, **options)
    return Transformer(config, seed=0).eval()


def tokens_of(b=3, t=12):
    return torch.randint(16, (b, t), generator=torch.Generator().manual_seed(0))


def seen(model, tokens):
    return roles.weights_of([block.attention.score for block in model.blocks], lambda: model(tokens))


def random_maps(b, h, n, seed=0):
    scores = 2 * torch.randn(b, h, n, n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return scores.masked_fill(torch.ones(n, n, dtype=torch.bool).triu(1), -torch.inf).softmax(-1)


# Weights


@pytest.mark.parametrize("kv_heads", [4, 1])
def test_weights_of_a_softmax_are_what_a_probe_keeps(kv_heads):
    model, tokens = model_of(kv_heads=kv_heads), tokens_of()
    with torch.no_grad(), attention_probe([], keep_maps=True) as probe:
        model(tokens)
    for mine, theirs in zip(seen(model, tokens), probe.maps, strict=True):
        assert torch.allclose(mine, theirs, atol=1e-6)
    assert not any(block.attention.score._forward_hooks for block in model.blocks), "no hook stays behind"


def test_weights_that_no_probe_sees_are_seen_too():
    found = seen(model_of("sparsemax"), tokens_of())
    assert len(found) == 2
    for m in found:
        assert torch.allclose(m.sum(-1), torch.ones(3, 4, 12), atol=1e-5)
        assert (m.triu(1) == 0).all() and (m[..., 5:, :5] == 0).any(), "a sparse row has exact zeros in its past"


# Tasks and tables


def test_blocks_repeat_different_tokens():
    task = Blocks(vocabulary=32)
    tokens, targets = task.batch(torch.Generator().manual_seed(1), 5)
    assert tokens.shape == targets.shape == (5, 100) and task.length == 100
    block = tokens[:, :25]
    assert all(len(set(row.tolist())) == 25 for row in block) and tokens.equal(block.repeat(1, 4))
    assert (
        (targets[:, :25] == -100).all()
        and targets[:, 25:-1].equal(tokens[:, 26:])
        and targets[:, -1].equal(block[:, 0])
    )
    assert len({tuple(row.tolist()) for row in block}) == 5
    for wrong in ({"vocabulary": 24}, {"vocabulary": 32, "repeats": 1}, {"vocabulary": 32, "period": 0}):
        with pytest.raises(ValueError, match="period <= vocabulary"):
            Blocks(**wrong)


def test_copying_targets_answer_the_task():
    tokens, targets = Blocks(vocabulary=10, period=4, repeats=3).batch(torch.Generator().manual_seed(0), 2)
    keys = roles.copying(4, 3)
    for q in range(4, 12):
        after = keys["induction"][0, q].nonzero().flatten()
        assert len(after) and (tokens[:, after] == targets[:, q, None]).all()
        assert (tokens[:, keys["duplicate"][0, q]] == tokens[:, q, None]).all()


def test_distances_of_uniform_weights_are_the_uniform_ones():
    n, bins = 16, [0, 1, 2, 4, 8, 16]
    flat = torch.ones(2, 3, n, n).tril() / torch.arange(1, n + 1)[:, None]
    previous = F.pad(torch.eye(n)[:-1], (0, 0, 1, 0)).expand(2, 3, n, n).clone()
    previous[..., 0, 0] = 1
    queries = (torch.arange(n) > 0).expand(2, n)
    table = roles.distances([flat, previous], queries, bins).set_index(["layer", "at"])
    assert table.value[0].tolist() == pytest.approx(table.uniform[0].tolist())
    assert table.uniform[0].sum() == pytest.approx(1)
    assert table.value[1].tolist() == pytest.approx([0, 1, 0, 0, 0])


def test_silencing_costs_are_those_of_a_head_cut_off():
    model, tokens = model_of(), tokens_of()

    def losses():
        logits = model(tokens)
        return {"first": logits[0].square().mean().item(), "second": logits[1].square().mean().item()}

    with torch.no_grad():
        whole = losses()
        table = roles.silencing_costs(losses, 2, 4).set_index(["layer", "head", "measure"]).value
        assert len(table) == 16
        model.blocks[1].attention.heads.out.weight[:, 8:12] = 0  # what head 2 of the last layer writes
        cut = losses()
    for name in whole:
        assert table[1, 2, name] == pytest.approx(cut[name] - whole[name], abs=1e-6)
    assert table.abs().min() > 0


def test_key_effects_pair_weight_and_loss_of_every_key():
    model, tokens = model_of().double(), tokens_of(b=2)
    table = roles.key_effects(model, tokens, seen(model, tokens))
    assert len(table) == 2 * 2 * 12 and (table.effect >= -1e-12).all()
    sums = table.groupby(["sequence", "layer"]).weight.sum()
    assert sums.tolist() == pytest.approx([1] * 4)
    alone = patterns.key_effects(model, tokens[1], 2)
    assert table[(table.sequence == 1) & (table.layer == 1)].effect.tolist() == pytest.approx(alone[1].tolist())


def test_heads_that_count_positions_are_as_alike_on_another_input():
    fixed = random_maps(1, 3, 8).expand(4, -1, -1, -1)
    table = roles.likeness([fixed, random_maps(4, 3, 8)]).set_index(["layer", "measure"]).value
    assert table[0, "same input"] == pytest.approx(table[0, "another input"]) and table[0, "same input"] > 0.05
    twins = roles.likeness([random_maps(4, 1, 8).expand(-1, 3, -1, -1)]).set_index("measure").value
    assert abs(twins["same input"]) < 1e-9 and twins["another input"] > 0.05


def test_logits_have_the_width_of_a_head_as_rank_and_weights_that_of_the_sequence():
    model, tokens = model_of(position="rotary"), tokens_of()
    with torch.no_grad(), patterns.kept_logits() as logits:
        model(tokens)
    assert roles.ranks(logits, "logits").value[::2].tolist() == [4, 4]
    found = roles.ranks(seen(model.double(), tokens), "weights").set_index(["layer", "measure"]).value
    assert found[0, "rank of weights"] == 12 and 1 <= found[0, "effective rank of weights"] <= 12


# Pictures


def test_a_map_in_long_form_is_the_map_but_for_what_is_light():
    weights = random_maps(1, 1, 9)[0, 0].numpy()
    table = charts.long_map(list("abcdefghi"), weights, panel="x")
    back = charts.dense_map(table)
    assert back.shape == (9, 9) and np.abs(back - weights).max() <= charts.LEAST
    assert (table.query_token == [chr(97 + q) for q in table["query"]]).all() and set(table.panel) == {"x"}
    assert table.weight.min() > charts.LEAST


def test_an_arc_for_every_weight_above_the_threshold():
    table = charts.long_map([100, 101, 10, 102], np.array([[1, 0, 0, 0], [0.6, 0.4, 0, 0], [0, 1, 0, 0], [0.25] * 4]))
    _, axis = plt.subplots()
    charts.draw_arcs(axis, table, 0.3)
    assert len(axis.lines) == 4
    assert [text.get_text() for text in axis.texts] == ["d", "e", "\u00b7", "f"]
    plt.close("all")


def test_a_checkpoint_from_elsewhere_gives_the_same_tables_and_pictures(tmp_path):
    transformers = pytest.importorskip("transformers")
    from lab.pretrained import load

    torch.manual_seed(0)
    sizes = {"vocab_size": 40, "n_positions": 100, "n_embd": 16, "n_layer": 3, "n_head": 2}
    config = transformers.GPT2Config(**sizes, bos_token_id=0, eos_token_id=0)
    transformers.GPT2LMHeadModel(config).save_pretrained(tmp_path)
    model, _ = load(tmp_path)
    tokens, targets = Blocks(vocabulary=model.config.vocab_size).batch(torch.Generator().manual_seed(7), 4)
    with torch.no_grad(), attention_probe([], keep_maps=True) as probe:
        model(tokens)
    table = patterns.head_scores(probe.maps, targets != -100, roles.copying(25, 4))
    assert len(table.groupby(["layer", "head"])) == 6
    score = table[table.measure == "induction"]
    assert score.value.tolist() == pytest.approx([score.uniform.iloc[0]] * 6, rel=0.1), "at random it looks anywhere"
    panel = charts.long_map([str(t) for t in tokens[0].tolist()], probe.maps[0][0, 0].numpy(), panel="layer 0, head 0")
    assert not math.isnan(panel.weight.sum())
    for plot, kept in ((charts.plot_scores, table), (charts.plot_maps, panel), (charts.plot_arcs, panel)):
        figure = figures.draw(plot, kept)
        assert len(figures.png(figure)) > 1000
        plt.close(figure)
