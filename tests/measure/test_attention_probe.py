"""The attention probe recovers the weights that F.scaled_dot_product_attention used.

Tests `lab.measure.attention`.
"""

import math

import pytest
import torch
import torch.nn.functional as F
from helpers import (
    huggingface,
    local_mass,
    max_weight,
    row_sum,
    sink_mass,
    small_model,
    tensors,
    tokens,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.attention.bias import causal_lower_right

from lab.measure import attention as at
from lab.measure.attention import attention_probe

MEASURES = [
    at.entropy,
    at.distance,
    sink_mass,
    max_weight,
    row_sum,
    local_mass(1),
]


def observed_maps(*args, measures=(), block_bytes=2**24, **kwargs):
    with attention_probe(list(measures), keep_maps=True, block_bytes=block_bytes) as probe:
        out = F.scaled_dot_product_attention(*args, **kwargs)
    assert torch.equal(out, F.scaled_dot_product_attention(*args, **kwargs))
    return probe.maps[0], out, probe


@settings(max_examples=120, deadline=None)
@given(
    bgr=st.tuples(st.integers(1, 2), st.integers(1, 3), st.integers(1, 3)),
    qk=st.tuples(st.integers(1, 9), st.integers(1, 9)),
    mask=st.sampled_from(["none", "causal", "bool", "bool per head", "float", "lower right"]),
    scale=st.sampled_from([None, 0.3]),
    block_bytes=st.sampled_from([1, 200, 2**20]),
    seed=st.integers(0, 99),
)
def test_observed_weights_reproduce_the_attention_output(bgr, qk, mask, scale, block_bytes, seed):
    (b, g, r), (q, k) = bgr, qk
    (query, key, value), rng = tensors(b, g * r, g, q, k, 4, seed)
    shape = (b, g * r, q, k) if mask == "bool per head" else (q, k)
    attn_mask = torch.rand(shape, generator=rng)
    visible = attn_mask > 0.3
    visible[..., -1, :] = True  # otherwise a key may be masked for all queries
    attn_mask = {"none": None, "causal": None, "float": attn_mask}.get(mask, visible)
    if mask == "lower right" and q <= k:
        attn_mask = causal_lower_right(q, k)
    options = dict(attn_mask=attn_mask, is_causal=mask == "causal", scale=scale, enable_gqa=r > 1)
    maps, out, probe = observed_maps(query, key, value, block_bytes=block_bytes, measures=MEASURES, **options)
    assert maps.shape == (b, g * r, q, k)
    mixed = maps @ value.repeat_interleave(r, 1)
    torch.testing.assert_close(mixed, out, rtol=1e-4, atol=1e-5)
    unblocked = observed_maps(query, key, value, measures=MEASURES, **options)[2]
    torch.testing.assert_close(maps, unblocked.maps[0], rtol=1e-5, atol=1e-6)
    assert probe.table().value.tolist() == pytest.approx(unblocked.table().value.tolist(), abs=1e-5, nan_ok=True)


def test_probe_accepts_every_sdpa_call_signature():
    (query, key, value), rng = tensors(1, 2, 2, 5, 5, 4)
    mask = torch.rand(5, 5, generator=rng) > 0.3
    positional = observed_maps(query, key, value, mask, 0.0, False)[0]
    by_keyword = observed_maps(value=value, key=key, query=query, attn_mask=mask)[0]
    torch.testing.assert_close(positional, by_keyword, rtol=0, atol=0)
    causal = observed_maps(query, key, value, None, 0.0, True)[0]
    assert not causal.triu(1).any() and causal[..., 0, 0].eq(1).all()
    without_batch = observed_maps(query[0], key[0], value[0], mask)[0]
    torch.testing.assert_close(without_batch, by_keyword)
    with attention_probe([row_sum]) as probe:  # the probe reports weights before dropout
        F.scaled_dot_product_attention(query, key, value, None, 0.5)
    assert probe.table().value.tolist() == pytest.approx([1, 1])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_weights_are_at_least_float32_under_autocast(dtype):
    query, key, value = (x.to(dtype) for x in tensors(1, 2, 1, 5, 5, 4)[0])
    exact = (query.double() @ key.double().mT / 2).softmax(-1)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        with attention_probe([at.entropy], keep_maps=True) as probe:
            F.scaled_dot_product_attention(query, key.expand(-1, 2, -1, -1), value.expand(-1, 2, -1, -1))
    assert probe.maps[0].dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    if dtype == torch.bfloat16:  # rounded inputs, weights in float32
        torch.testing.assert_close(probe.maps[0].double(), exact, rtol=1e-5, atol=1e-6)


def test_measures_equal_their_definitions():
    (query, key, value), rng = tensors(2, 3, 3, 6, 6, 4)
    targets = torch.randint(-1, 6, (2, 6), generator=rng)
    pattern = torch.rand(2, 6, 6, generator=rng) > torch.tensor([[0.7]] * 5 + [[1.0]])  # empty for the last query
    measures = {m.__name__: m for m in MEASURES} | {
        "target": at.mass_on(targets),
        "pattern": at.mass_on(pattern),
    }
    for causal in (False, True):
        with attention_probe(measures, keep_maps=True, block_bytes=400) as probe:
            F.scaled_dot_product_attention(query, key, value, is_causal=causal)
        got = probe.table().pivot(index="head", columns="measure", values="value")
        for head in range(3):
            expected = {name: [] for name in measures}
            for row, picture, target in zip(probe.maps[0][:, head], pattern, targets, strict=True):
                for q in range(6):
                    p = row[q].tolist()
                    expected["entropy"].append(-sum(x * math.log(x) for x in p if x > 0))
                    expected["distance"].append(sum(x * abs(q - k) for k, x in enumerate(p)))
                    expected["local_mass_1"].append(sum(p[max(q - 1, 0) : q + 2]))
                    expected["sink_mass"].append(p[0])
                    expected["max_weight"].append(max(p))
                    expected["row_sum"].append(1)
                    expected["target"] += [p[target[q]]] if target[q] >= 0 else []
                    expected["pattern"] += [sum(x for x, on in zip(p, picture[q], strict=True) if on)] * picture[
                        q
                    ].any()
            for name, values in expected.items():
                assert got.loc[head, name] == pytest.approx(sum(values) / len(values), abs=1e-5), (
                    causal,
                    head,
                    name,
                )


def test_measures_with_a_cache_equal_the_full_call():
    """Measures of token-by-token decoding equal those of one causal call."""
    (query, key, value), rng = tensors(1, 2, 2, 6, 6, 4)
    measures = [
        at.distance,
        at.mass_on(torch.randint(0, 6, (1, 6), generator=rng)),
    ]
    with attention_probe(measures) as full:
        F.scaled_dot_product_attention(query, key, value, is_causal=True)
    with attention_probe(measures) as cached:
        for n in range(6):
            F.scaled_dot_product_attention(query[:, :, n : n + 1], key[:, :, : n + 1], value[:, :, : n + 1])
    means = [probe.table().groupby(["measure", "head"]).value.mean().tolist() for probe in (full, cached)]
    assert means[0] == pytest.approx(means[1], rel=1e-5)


def test_compiled_model_gives_the_same_measures():
    model, ids = small_model(), tokens()
    tables = []
    for each in (model, torch.compile(model, backend="eager")):
        with torch.no_grad(), attention_probe([at.entropy]) as probe:
            each(ids)
        tables.append(probe.table().drop(columns="module"))
    assert tables[0].equals(tables[1])


def test_fully_masked_rows_are_zero_and_excluded_from_means():
    (query, key, value), _ = tensors(1, 1, 1, 4, 4, 4)
    mask = torch.ones(4, 4).tril(-1).bool()  # query 0 is fully masked
    mask[3, 3] = True
    maps, out, probe = observed_maps(query, key, value, mask, measures=[row_sum, at.entropy])
    assert not maps[0, 0, 0].any() and not out[0, 0, 0].any()
    assert probe.table().value[0] == pytest.approx(1)
    assert probe.table().value[1] == pytest.approx(torch.special.entr(maps).sum(-1)[0, 0, 1:].mean().item(), abs=1e-6)


def test_maps_are_detached_and_invalid_measures_raise():
    (query, key, value), _ = tensors(1, 1, 1, 4, 4, 4)
    query.requires_grad_()
    maps, out, _ = observed_maps(query, key, value)
    assert out.requires_grad and not maps.requires_grad
    with (
        pytest.raises(ValueError, match="share a name"),
        attention_probe([at.mass_on(maps), at.mass_on(maps)]),
    ):
        pass
    with (
        pytest.raises(ValueError, match=r"mean returned \(\)"),
        attention_probe({"mean": lambda w, at: w.mean()}),
    ):
        F.scaled_dot_product_attention(query, key, value)


def test_measures_of_kept_maps_equal_streamed_measures():
    """Tested for whole maps and blocks, causal and with a cache."""
    (query, key, value), rng = tensors(2, 3, 3, 4, 9, 4)
    targets = at.mass_on(torch.randint(-1, 4, (2, 9), generator=rng))
    measures = {"entropy": at.entropy, "distance": at.distance}
    measures["targets"] = targets
    for keys, options in ((4, {"is_causal": True}), (9, {})):
        arguments = query, key[:, :, :keys], value[:, :, :keys]
        with attention_probe(measures, block_bytes=400) as probe:
            F.scaled_dot_product_attention(*arguments, **options)
        (attention_map,) = at.attention_maps(F.scaled_dot_product_attention, *arguments, **options)
        for name, measure in measures.items():
            streamed = probe.table().query("measure == @name").value.tolist()
            assert at.query_mean(measure(attention_map)).tolist() == pytest.approx(streamed, rel=1e-5), name


@pytest.mark.parametrize("mask", ["padding", "float padding", "unused cache slots"])
def test_mask_hiding_a_key_from_all_queries_warns(mask):
    (query, key, value), _ = tensors(2, 1, 1, 3, 5, 4)
    visible = torch.tensor([[True] * 5, [True] * 3 + [False] * 2])[:, None, None]
    if mask == "unused cache slots":
        visible = (torch.arange(5) < 4).expand(3, 5)
    if mask == "float padding":
        visible = torch.zeros(2, 1, 3, 5).masked_fill(~visible, -torch.inf)
    with pytest.warns(UserWarning, match="a mask hides a key from all queries"), attention_probe([at.entropy]):
        F.scaled_dot_product_attention(query, key, value, visible)


def test_unobserved_layer_is_reported():
    """With a linear-attention layer in between, map i would not belong to layer i."""
    model, ids = small_model(n_layers=3, mixer=["attention", "linear", "attention"]), tokens()
    with torch.no_grad(), pytest.warns(at.UnreadLayers, match="no attention was observed in blocks.1$"):
        with attention_probe([at.entropy]) as probe:
            model(ids)
    assert set(probe.table().module) == {"blocks.0.mixer.score", "blocks.2.mixer.score"}
    with pytest.raises(at.UnreadLayers, match="blocks.1$"):
        at.attention_maps(model, ids)


def test_unobservable_attention_raises_with_a_remedy():
    attention, x = nn.MultiheadAttention(8, 2, batch_first=True), torch.randn(1, 3, 8)

    def both():
        attention(x, x, x)
        attention(x, x, x, need_weights=False)

    for run in (lambda: 0, lambda: attention(x, x, x), both):
        with pytest.raises(RuntimeError, match='never observed.*attn_implementation="sdpa".*need_weights=False'):
            with attention_probe([at.entropy]):
                run()
    with pytest.raises(KeyError), attention_probe([at.entropy]):  # not masked by the probe's own error
        raise KeyError


@pytest.mark.parametrize("training", [True, False])
def test_probe_observes_torch_transformer_encoder(training):
    """The observed weights equal those that nn.MultiheadAttention returns with need_weights."""
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0)
    encoder, x = (
        nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).train(training),
        torch.randn(2, 5, 8),
    )
    with torch.no_grad(), attention_probe([row_sum], keep_maps=True) as probe:
        out = encoder(x)
    with torch.no_grad():
        torch.testing.assert_close(out, encoder(x))
        _, expected = encoder.layers[0].self_attn(x, x, x, average_attn_weights=False)
    torch.testing.assert_close(probe.maps[0], expected)
    assert probe.table().module.unique().tolist() == ["layers.0.self_attn", "layers.1.self_attn"]


def test_nested_probes_all_observe_the_call():
    attention, x = nn.MultiheadAttention(8, 2, batch_first=True), torch.randn(1, 3, 8)
    with attention_probe([at.entropy]) as outer, attention_probe([row_sum]) as inner:
        attention(x, x, x, need_weights=False)
    assert outer.table().measure.unique() == ["entropy"] and inner.table().value.tolist() == pytest.approx([1, 1])


@pytest.mark.parametrize("kind", ["gpt2", "bert", "llama"])
def test_probe_matches_huggingface_attentions(kind):
    model, eager = huggingface(kind)
    tokens = torch.randint(0, 50, (2, 11), generator=torch.Generator().manual_seed(0))
    with torch.no_grad(), attention_probe([row_sum], keep_maps=True, block_bytes=500) as probe:
        model(tokens)
        expected = eager(tokens, output_attentions=True).attentions
    assert len(probe.maps) == len(expected) == 2
    for got, reference in zip(probe.maps, expected, strict=True):
        torch.testing.assert_close(got, reference, rtol=0, atol=1e-5)
        assert reference.max() > 0.5  # maps are not near uniform
    assert probe.table().value.tolist() == pytest.approx([1] * 8, abs=1e-5)


NAMES = {
    "gpt2": "h.{}.attn",
    "bert": "encoder.layer.{}.attention.self",
    "llama": "layers.{}.self_attn",
}


@pytest.mark.parametrize("kind", NAMES)
def test_calls_are_attributed_to_their_module(kind):
    model, _ = huggingface(kind)
    names = [NAMES[kind].format(i) for i in range(2)]
    wrapper = nn.ModuleDict({"model": model})
    for root, prefix in ((None, ""), (model, ""), (wrapper, "model.")):
        with torch.no_grad(), attention_probe([at.entropy], model=root) as probe:
            model(torch.zeros(1, 4, dtype=torch.long))
        assert probe.table().groupby("call").module.unique().map(list).tolist() == [[prefix + name] for name in names]
    with torch.no_grad(), attention_probe([at.entropy], model=nn.Linear(1, 1)) as probe:
        model(torch.zeros(1, 4, dtype=torch.long))
    assert probe.table().module.unique() == [""], "a call was attributed to a module that did not run"
    assert not nn.modules.module._global_forward_hooks and not nn.modules.module._global_forward_pre_hooks


def test_failed_call_leaves_no_stale_module_name():
    broken, fine = nn.Linear(3, 3), nn.MultiheadAttention(4, 1)
    x = torch.randn(2, 4)
    with attention_probe([at.entropy]) as probe:
        with pytest.raises(RuntimeError):
            nn.Sequential(broken)(x)
        nn.Sequential(broken.__class__(4, 4))(x)
        F.scaled_dot_product_attention(x, x, x)
        fine(x, x, x, need_weights=False)
    assert probe.table().module.tolist() == ["", ""]
