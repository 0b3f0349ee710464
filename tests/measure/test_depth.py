"""Norms, residuals, initial weights, sharing and early exit: the property that defines each."""

import math

import pytest
import torch
from torch import nn

from lab.measure.depth import (
    gradient_norms,
    likeness,
    moments,
    moved,
    outputs_of,
    perturbation,
    relu_overlap,
    rises_without,
)
from lab.measure.probe import tap
from lab.models import ModelConfig, Transformer
from lab.models.early_exit import early_exit
from lab.models.encoder_decoder import EncoderDecoder
from lab.models.initialization import branch_weights, branches
from lab.models.norms import Norm
from lab.models.residuals import Residual
from lab.recipes.timed_calls import saved_bytes
from lab.training import TrainConfig, train

VOCABULARY = 13


def config(**fields):
    sizes = {"vocabulary": VOCABULARY, "context": 24, "d_model": 32, "n_layers": 2, "n_heads": 4}
    return ModelConfig(**(sizes | fields))


def build(seed=0, **fields):
    return Transformer(config(**fields), seed=seed).eval()


def tokens(length=12, batch=2, seed=0, classes=VOCABULARY):
    return torch.randint(classes, (batch, length), generator=torch.Generator().manual_seed(seed))


def randn(*shape, seed=0, **options):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), **options)


def close(a, b, tolerance=1e-5):
    torch.testing.assert_close(a, b, atol=tolerance, rtol=tolerance)


def differs(a, b, by=1e-3):
    assert (a - b).abs().max() > by


# Norms


@pytest.mark.parametrize("kind, zeros", [("layernorm", 2), ("rmsnorm", 1)])
def test_the_jacobian_of_a_norm_is_a_projection_over_the_spread(kind, zeros):
    norm = Norm.build({"kind": kind, "affine": False, "eps": 0.0}, config())
    x = 3 * randn(32, dtype=torch.float64) + 1
    size = (x - x.mean() if kind == "layernorm" else x).square().mean().sqrt()
    values = torch.linalg.svdvals(torch.autograd.functional.jacobian(norm, x))
    close(values[: 32 - zeros], (1 / size).expand(32 - zeros), 1e-10)
    assert values[32 - zeros :].max() < 1e-12


def test_rms_norm_is_layer_norm_of_centred_input():
    rms, layer = (Norm.build({"kind": kind, "affine": False}, config()) for kind in ("rmsnorm", "layernorm"))
    x = 3 * randn(2, 12, 32) + 1
    close(rms(x - x.mean(-1, keepdim=True)), layer(x), 1e-6)
    differs(rms(x), layer(x), 0.1)


def test_batch_norm_knows_running_statistics_and_leaves_padding_out():
    x, real = 3 * randn(4, 12, 32) + 1, torch.arange(12) < torch.tensor([[12], [7], [3], [1]])
    aware, blind = (Norm.build({"kind": "batchnorm", "padding_aware": flag}, config()) for flag in (True, False))
    aware.real = real
    changed = torch.where(real[..., None], x, 100.0)
    close(aware(x), aware(changed), 0)
    differs(blind(x)[real], blind(changed)[real], 0.1)
    close(aware(x)[real].mean(0), torch.zeros(32))
    close(aware(x)[real].var(0, unbiased=False), torch.ones(32), 1e-4)
    for _ in range(200):
        aware(x)
    differs(aware(x)[:1], aware(x[:1].expand(4, 12, 32))[:1], 0.1)  # in training others matter
    for _ in range(200):
        aware(x)
    aware.eval()
    mean, variance = x[real].mean(0), x[real].var(0)
    close(aware(x)[real], (x[real] - mean) / (variance + 1e-5).sqrt(), 1e-3)
    aware.real = real[:1]
    close(aware(x[:1]), aware(x[:1].clone()), 0)


def test_a_model_hands_its_padding_to_batch_norm():
    real = torch.arange(12) < torch.tensor([[12], [5]])
    before = tokens()
    after = torch.where(real, before, (before + 1) % VOCABULARY)
    for aware in (True, False):
        model = build(mask="none", norm={"kind": "batchnorm", "padding_aware": aware}).train()
        change = (model(before, real=real)[real] - model(after, real=real)[real]).abs().max()
        assert (change < 1e-5) == aware
        assert model(before).shape == (2, 12, VOCABULARY), "without padding again"


def test_normed_queries_and_keys_do_not_care_for_the_size_of_their_weights():
    for qk_norm, indifferent in (("none", False), ("layernorm", True), ("rmsnorm", True)):
        small, large = (build(qk_norm=qk_norm, d_model=64) for _ in range(2))
        with torch.no_grad():
            for block in large.blocks:
                block.attention.heads.qkv.weight[:128] *= 20
        change = (small(tokens()) - large(tokens())).abs().max()
        assert (change < 1e-3) == indifferent, qk_norm
        with tap(large, {"*.query_norm": lambda x: x.norm(dim=-1).max()}) as table:
            large(tokens())
        assert (table().value <= 4 + 1e-4).all() == indifferent, "√16, the width of a head"


# Residuals


def test_residuals_stand_where_their_drawing_says():
    x, fields, branch = randn(2, 12, 32), config(n_layers=6), nn.Linear(32, 32)
    norm = nn.LayerNorm(32)
    expected = {
        "sandwich": x + norm(branch(norm(x))),
        "deepnorm": norm(12**0.25 * x + branch(x)),
        "none": branch(norm(x)),
        "weighted": 0.5 * x + 0.5 * branch(norm(x)),
        "scaled": x + branch(norm(x)),
        "stochastic-depth": x + 0.8 * branch(norm(x)),
    }
    for kind, value in expected.items():
        close(Residual.build(kind, fields).eval()(x, branch), value)
    learned = Residual.build({"kind": "weighted", "a": 0.9, "learned": True}, fields)
    close(learned(x, branch), 0.9 * x + 0.1 * branch(norm(x)))
    learned(x, branch).square().sum().backward()
    assert learned.logit.grad.abs() > 0 and not list(Residual.build("weighted", fields).norm.buffers())
    for wrong in ({"kind": "weighted", "a": 1.0}, {"kind": "stochastic-depth", "keep": 0.0}):
        with pytest.raises(ValueError, match="must lie"):
            Residual.build(wrong, fields)
    assert [build(residual=kind).norm.__class__.__name__ for kind in ("sandwich", "deepnorm")] == ["LayerNorm", "Norm"]


def test_dropout_outside_the_norm_zeroes_the_stream_and_inside_only_the_branch():
    x, branch = randn(2, 12, 32), nn.Linear(32, 32)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        inside, outside = (
            Residual.build({"kind": "post", "dropout": 0.5, "outside": flag}, config()) for flag in (False, True)
        )
        assert (outside.train()(x, branch) == 0).double().mean().item() == pytest.approx(0.5, abs=0.1)
        assert not (inside.train()(x, branch) == 0).any()
    for residual in (inside, outside):
        close(residual.eval()(x, branch), nn.LayerNorm(32)(x + branch(x)))


def test_a_fixed_weight_below_one_shrinks_the_direct_path_by_its_power():
    for kind, expected in (("pre", 1.0), ({"kind": "weighted", "a": 0.8}, 0.8**12)):
        model = build(residual=kind, n_layers=6, norm="none")
        with torch.no_grad():
            for weight in model.writes_to_stream():
                weight.zero_()
        x = model.embedding(tokens())
        close(model.hidden(tokens()), expected * x)


def test_dense_connections_with_weights_one_are_the_plain_ones():
    pre, dense = build(residual="pre", n_layers=3), build(residual="dense", n_layers=3)
    close(dense(tokens()), pre(tokens()))
    dense(tokens()).square().sum().backward()
    for i, block in enumerate(dense.blocks):
        for j, residual in enumerate((block.attention_residual, block.ffn_residual)):
            seen = residual.weights.grad != 0
            assert seen[: 2 * i + j + 1].all() and not seen[2 * i + j + 1 :].any(), "all earlier results, no later"
    with torch.no_grad():
        dense.blocks[2].ffn_residual.weights[0] = 3.0
    differs(dense(tokens()), pre(tokens()))


def test_stochastic_depth_skips_as_often_as_it_says_and_its_mean_is_the_evaluation():
    residual, x = Residual.build({"kind": "stochastic-depth", "keep": 0.7}, config()), randn(1, 3, 32)
    branch = nn.Linear(32, 32)
    with torch.no_grad():
        outputs = torch.stack([residual.train()(x, branch) for _ in range(2000)])
        ran = (outputs != x).flatten(1).any(1)
        assert ran.double().mean().item() == pytest.approx(0.7, abs=5 * math.sqrt(0.21 / 2000))
        whole = x + branch(residual.norm(x))
        close(outputs[ran], whole.expand_as(outputs[ran]))
        close(residual.eval()(x, branch), 0.7 * whole + 0.3 * x)
    first, again, other = (build(seed, residual="stochastic-depth", n_layers=8).train() for seed in (0, 0, 1))
    runs = [torch.stack([model(tokens()) for _ in range(5)]) for model in (first, again, other)]
    assert torch.equal(runs[0], runs[1]) and not torch.equal(runs[0][0], runs[0][1])
    assert not torch.equal(runs[0], runs[2])


# Reversible layers


def loss_of(model, inputs=None):
    return model(tokens() if inputs is None else inputs).square().mean()


def plain_through(stream, layers):
    return Residual.through(stream, layers)


@pytest.mark.parametrize("fields", [{}, {"position": "t5"}, {"position": "learned", "bias": True, "unique_layers": 1}],
                         ids=str)  # fmt: skip
def test_reversible_gradients_are_those_of_plain_autograd(fields):
    kept, undone = (build(residual="reversible", n_layers=4, **fields) for _ in range(2))
    kept.residual = type("Kept", (kept.residual,), {"through": staticmethod(plain_through)}, kind=None)
    for model in (kept, undone):
        loss_of(model).backward()
    close(kept(tokens()), undone(tokens()))
    for (name, a), b in zip(kept.named_parameters(), undone.parameters(), strict=True):
        assert a.grad.abs().max() > 0, name
        close(a.grad, b.grad, 1e-5)


def test_reversible_layers_send_gradients_to_what_they_read_from_outside():
    model = EncoderDecoder(config(residual="reversible"))
    loss_of(model, (tokens(9), tokens(7, seed=1))).backward()
    norms = gradient_norms(model.encoder.blocks)
    assert (norms.norm > 0).all() and norms.norm.notna().all()


def test_reversible_layers_are_undone_to_rounding():
    model = build(residual="reversible", n_layers=12, d_model=64)
    x, layers = model.prepared(tokens(), None, None, None, {})
    before = stream = model.residual.enter(x)
    with torch.no_grad():
        for block, inputs in layers:
            stream = block(stream, **inputs)
        differs(stream, before, 1.0)
        for block, inputs in reversed(layers):
            stream = block.inverse(stream, **inputs)
    assert (stream - before).abs().max() < 1e-5


def test_reversible_layers_keep_nothing_more_in_deeper_models():
    def kept(residual, n_layers):
        model = build(residual=residual, n_layers=n_layers)
        owned = {p.untyped_storage().data_ptr(): p.untyped_storage().nbytes() for p in model.parameters()}
        return saved_bytes(lambda: loss_of(model)) - sum(owned.values()) * (residual != "reversible")

    assert kept("reversible", 16) == kept("reversible", 2)
    assert kept("pre", 16) > 6 * kept("pre", 2)


# Initial weights


def stream_moments(model, inputs):
    """Mean square of the stream behind each layer, the embedding first."""
    with (
        torch.no_grad(),
        tap(model, {f"blocks.{i}": lambda x: x.square().mean() for i in range(len(model.blocks))}) as table,
    ):
        model(inputs)
    return [model.embedding(inputs).square().mean().item(), *table().value]


XIONG = {
    "n_heads": 1, "position": "none", "mask": "none", "ffn": {"kind": "relu", "ratio": 1},
    "initialization": "mean-field", "vocabulary": 512, "context": 32,
}  # fmt: skip


@pytest.mark.parametrize("n", [1, 32])
@pytest.mark.parametrize("residual", ["pre", "plain"])
def test_the_stream_grows_as_the_recursion_says(residual, n):
    expected = moments("pre" if residual == "pre" else "none", n, 6).S
    measured = []
    for seed in range(6):
        model = build(seed, residual=residual, n_layers=6, d_model=256, **XIONG)
        order = torch.randperm(512, generator=torch.Generator().manual_seed(seed))
        measured.append(stream_moments(model, order[:32].view(-1, n)))
    ratio = torch.tensor(measured).mean(0) / torch.tensor(expected)
    assert (ratio - 1).abs().max() < (0.05 if residual == "pre" else 0.15), ratio


def test_the_recursion_has_its_published_values():
    assert moments("pre", 1, 12).S.tolist() == pytest.approx([1 + 1.5 * layer for layer in range(13)])
    published = [1.53, 2.19, 2.97, 3.86, 4.84, 5.89, 6.99, 8.13, 9.31, 10.51, 11.74, 12.98]
    assert moments("pre", 32, 12).S[1:].tolist() == pytest.approx(published, abs=0.006)
    assert moments("post", 1, 12)["sum"][1:].tolist() == pytest.approx([1.5] * 12)
    assert moments("pre", 1, 48, branch=1 / 96).S.iloc[-1] == pytest.approx(1.75)
    assert relu_overlap(1.0) == pytest.approx(1) and relu_overlap(0.0) == pytest.approx(1 / math.pi)
    assert relu_overlap(-1.0) == pytest.approx(0)
    with pytest.raises(ValueError, match="placement"):
        moments("sandwich", 1, 2)


def test_mean_field_attention_is_uniform():
    model = build(**(XIONG | {"d_model": 32}))
    heads, x = model.blocks[0].attention.heads, randn(1, 8, 32)
    q, k, v = heads.split(x)
    assert not q.any() and not k.any()
    close(model.blocks[0].attention(x), heads.join(v.mean(2, keepdim=True).expand_as(v)))


def test_fixup_starts_as_the_identity_bit_by_bit():
    fields = {"residual": "scaled", "norm": "none", "bias": True, "n_layers": 6}
    model = build(initialization="fixup", **fields)
    assert torch.equal(model.hidden(tokens()), model.embedding(tokens())) and not model(tokens()).any()
    for left_out, silent in (("zero_branches", False), ("zero_readout", True), ("rescale", True)):
        other = build(initialization={"kind": "fixup", left_out: False}, **fields)
        assert torch.equal(other.hidden(tokens()), other.embedding(tokens())) == silent
        assert bool(other(tokens()).any()) == (left_out == "zero_readout")
    plain, rescaled = (build(initialization={"kind": "fixup", "rescale": flag}, **fields) for flag in (False, True))
    up = [model.blocks[0].ffn.up.weight for model in (plain, rescaled)]
    close(up[0] / math.sqrt(12), up[1])
    values = [model.blocks[0].attention.heads.value_matrix() for model in (plain, rescaled)]
    close(values[0] / math.sqrt(12), values[1])


def test_deepnorm_bounds_the_update_by_its_identity():
    for n, alpha, beta in ((6, 1.861, 0.380), (12, 2.213, 0.319), (24, 2.632, 0.269), (100, 3.761, 0.188)):
        residual = Residual.build("deepnorm", config(n_layers=n))
        model = build(residual="deepnorm", initialization="deepnorm", n_layers=n, n_heads=1)
        xavier = build(residual="deepnorm", initialization="xavier", n_layers=n, n_heads=1)
        ratio = model.blocks[0].ffn.up.weight / xavier.blocks[0].ffn.up.weight
        got = ratio.mean().item()
        assert residual.alpha == pytest.approx(alpha, abs=6e-4) and got == pytest.approx(beta, abs=6e-4)
        assert 2 * n * 2 * got**2 / residual.alpha**2 == pytest.approx(1, abs=1e-5)
    for part, scaled in (("q", False), ("k", False), ("v", True)):
        a, b = (dict(zip("qkv", m.blocks[3].attention.heads.matrices(), strict=True))[part] for m in (model, xavier))
        close(a, b * got if scaled else b, 1e-6)
    close(model.blocks[3].attention.heads.out.weight, xavier.blocks[3].attention.heads.out.weight * got)


@pytest.mark.parametrize("n_layers", [6, 48])
def test_t_fixup_keeps_the_stream_without_a_norm(n_layers):
    fields = {"residual": "plain", "norm": "none", "d_model": 128, "n_layers": n_layers} | {
        k: v for k, v in XIONG.items() if k != "initialization"
    }
    growth = {}
    for scheme in ("t-fixup", "xavier"):
        first, *_, last = stream_moments(build(initialization=scheme, **fields), torch.arange(16)[None])
        growth[scheme] = last / first
    assert growth["t-fixup"] < 1.4 and growth["xavier"] > 10
    model, plain = (build(initialization=scheme, **fields) for scheme in ("t-fixup", "xavier"))
    close(model.embedding.weight, plain.embedding.weight * (9 * n_layers) ** -0.25)


def test_depth_scaling_divides_what_writes_into_the_stream_only():
    for base in ("normal", "xavier", "he"):
        scaled, plain = (
            build(initialization=start, n_layers=8) for start in ({"kind": "depth-scaled", "base": base}, base)
        )
        writes = {id(w) for w in scaled.writes_to_stream()}
        assert len(writes) == 16 and branches(scaled) == 16
        for a, b in zip(scaled.parameters(), plain.parameters(), strict=True):
            close(a, b / 4 if id(a) in writes else b, 1e-7)
    old, new = (build(initialization=start) for start in ("depth-scaled", {"kind": "depth-scaled", "base": "normal"}))
    assert torch.equal(old(tokens()), new(tokens()))


def test_he_keeps_the_second_moment_through_relu():
    model = build(initialization="he", d_model=256, ffn="relu")
    x = randn(64, 256)
    hidden = model.blocks[0].ffn.act(model.blocks[0].ffn.up(x))
    assert hidden.square().mean().item() == pytest.approx(1, rel=0.05)
    assert model.embedding.weight.std().item() == pytest.approx(1 / 16, rel=0.1)


@pytest.mark.parametrize("heads", ["full", "sliced", "low-rank-value", "full-value"])
def test_schemes_know_the_weights_of_branches_but_not_queries_and_keys(heads):
    model = build(heads=heads, ffn="swiglu", bias=True)
    part = model.blocks[0].attention.heads
    with torch.no_grad():
        for weight in part.query_key_weights():
            weight.zero_()
        q, k, v = part.split(randn(2, 5, 32))
        assert not q.any() and not k.any() and v.any()
        for weight in branch_weights(model):
            weight.zero_()
        assert torch.equal(model.hidden(tokens()), model.norm(model.embedding(tokens())))


# Shared layers, early exit


def test_shared_layers_are_one_block_used_in_turn():
    own, shared, cycled = (build(n_layers=4, unique_layers=unique) for unique in (None, 1, 2))
    sizes = [sum(p.numel() for p in model.blocks.parameters()) for model in (own, shared, cycled)]
    assert sizes[0] == 4 * sizes[1] == 2 * sizes[2]
    with torch.no_grad():
        own.blocks.load_state_dict(cycled.blocks.state_dict())
        own.load_state_dict(cycled.state_dict(), strict=False)  # where a shared tensor has one name
    close(own(tokens()), cycled(tokens()), 0)
    caches, steps = shared.caches(2), []
    for chunk in tokens().split(1, dim=1):
        steps.append(shared(chunk, caches=caches))
    close(torch.cat(steps, 1), shared(tokens()))
    for start in ("depth-scaled", "deepnorm", "t-fixup", "fixup"):
        model = build(n_layers=4, unique_layers=1, initialization=start)
        assert branches(model) == 8 and len(branch_weights(model)) == 4 and len(model.writes_to_stream()) == 2
    for wrong, message in (({"unique_layers": 3}, "divide"), ({"unique_layers": 1, "n_heads": [4] * 4}, "list")):
        with pytest.raises(ValueError, match=message):
            build(n_layers=4, **wrong)


@pytest.mark.parametrize("residual", ["pre", "post", "dense", "reversible"])
def test_exits_end_with_the_whole_model_and_begin_with_the_first_block(residual):
    model, x = build(residual=residual, n_layers=3), tokens()
    answers = list(model.exits(x))
    assert len(answers) == 3
    close(answers[-1], model(x))
    differs(answers[0], answers[1])
    first = build(residual=residual, n_layers=1)
    own = {name for name in first.state_dict() if "weights" not in name}  # dense has as many as it may need
    first.load_state_dict({name: w for name, w in model.state_dict().items() if name in own}, strict=False)
    close(answers[0], first(x))


def test_early_exit_takes_the_first_sure_block_and_runs_no_more_than_needed():
    model, x = build(n_layers=4, initialization={"kind": "fan-in", "gain": 2.0}), tokens(8, batch=16)
    runs = []
    for block in model.blocks:
        block.register_forward_hook(lambda *_: runs.append(1))
    answers = torch.stack(list(model.exits(x)))  # (4, b, t, V)
    confidence = answers.softmax(-1).amax(-1)  # (4, b, t)
    for wanted in (0.0, confidence[0].min().item(), confidence.median().item(), 1.0):
        runs.clear()
        logits, depth = early_exit(model, x, wanted)
        assert len(runs) == depth.max()
        sure = torch.cat([confidence[:-1] >= wanted, torch.ones_like(confidence[:1], dtype=torch.bool)])
        assert torch.equal(depth, sure.double().argmax(0) + 1)
        close(logits, answers.gather(0, (depth - 1)[None, ..., None].expand(1, *logits.shape))[0])
    assert len(early_exit(model, x, confidence.median().item())[1].unique()) > 1
    with pytest.raises(ValueError, match="confidence"):
        early_exit(model, x, 1.5)


# Measures and training


def test_perturbation_of_a_product_is_what_calculus_says_and_leaves_no_trace():
    model, x = nn.Linear(64, 512, bias=False).double(), randn(256, 64, seed=1, dtype=torch.float64)
    weight = model.weight.detach().clone()
    expected = weight.square().mean().item() * x.square().sum(-1).mean().item()
    got = perturbation(model, lambda m: m(x))
    assert got == pytest.approx(expected, rel=0.05)
    assert torch.equal(model.weight, weight)
    with pytest.raises(RuntimeError, match="finite"):
        perturbation(model, lambda m: m(x * math.inf))


def test_a_moved_model_moves_back_even_after_an_error():
    model = build()
    before = [p.clone() for p in model.parameters()]
    with pytest.raises(KeyError), moved(model, 0.1):
        assert all((p != q).any() for p, q in zip(model.parameters(), before, strict=True))
        raise KeyError
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), before, strict=True))


def test_a_block_left_out_is_a_block_that_is_not_there():
    model, shorter = build(n_layers=3), build(n_layers=3)
    del shorter.blocks[1]
    base = loss_of(model).item()
    rises = rises_without(model.blocks, lambda: loss_of(model).item())
    assert rises[1] == pytest.approx(loss_of(shorter).item() - base, abs=1e-6) and abs(rises[1]) > 1e-3
    assert loss_of(model).item() == base
    streams = outputs_of(model.blocks, lambda: model(tokens()))
    close(streams[0], model.blocks[0](model.embedding(tokens()), causal=True))
    close(model.readout(model.norm(streams[-1])), model(tokens()))


def test_likeness_is_one_for_equal_and_none_for_orthogonal_streams():
    streams = torch.stack([torch.eye(4), 2 * torch.eye(4), torch.eye(4).roll(1, 0)])
    close(likeness(streams), torch.tensor([1.0, 0.0]))


def test_training_stops_where_it_is_told_to():
    def draw(generator, size):
        x = torch.randint(VOCABULARY, (size, 12), generator=generator)
        return x, x

    run = TrainConfig(steps=40, batch=4, warmup=0)
    whole = train(build(), draw, run, every=5)
    stopped = train(build(), draw, run, every=5, stop=lambda row: row["step"] >= 15)
    assert stopped.step.tolist() == [0, 5, 10, 15] and whole.step.iloc[-1] == 40
    assert stopped.equals(whole[:4])
