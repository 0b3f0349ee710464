"""What every registered kind keeps, or refuses in words: padding, caches, half precision, copies, checkpoints."""

import copy

import pytest
import torch
from helpers import close, kinds_of_models
from test_transformer import NEEDED, tokens

from lab.models import ModelConfig, Transformer
from lab.models.config import SEAMS
from lab.models.mixers import Mixer, QKVMixer

WITH_OPTIONS = NEEDED | {"linformer": {"rank": 4}}
UNLIKE = {"linformer": {"mask": "none", "position": "none"}}  # what a kind cannot do without


def arms():
    """{name: fields of a configuration}: every kind of every seam; mixers, scores and heads without positions too."""
    found = {"default": {}}
    for field, seam in SEAMS.items():
        for kind in kinds_of_models(seam):
            choice = {"kind": kind, **WITH_OPTIONS.get(kind, {})}
            fields = {field: choice} | UNLIKE.get(kind, {})
            if field != "mixer" or issubclass(seam.kinds[kind], QKVMixer):
                found[f"{field} {kind}"] = fields
            if field in ("mixer", "score", "heads"):
                found[f"{field} {kind}, no positions"] = fields | {"position": "none"}
    return found


ARMS = arms()
each_arm = pytest.mark.parametrize("arm", ARMS)


def build(arm, seed=0):
    sizes = {"vocabulary": 13, "context": 24, "d_model": 32, "n_layers": 2, "n_heads": 4}
    return Transformer(ModelConfig(**(sizes | ARMS[arm])), seed=seed).eval()


def refused(error):
    """Whether an error says in words what is not done."""
    return len(str(error).split()) > 3


# Padding

WHERE = {
    "behind": [1, 1, 1, 1, 1, 1, 1, 0, 0, 0],
    "in front": [0, 0, 0, 1, 1, 1, 1, 1, 1, 1],
    "between": [1, 1, 1, 0, 0, 1, 1, 1, 0, 1],
}
ACCEPTED = {"behind": 100, "in front": 70, "between": 10}  # arms at least, so that not all is refused


def padding_is_kept(arm, where):
    """Whether the model accepts padding there; its texts are then those without padding."""
    model, x = build(arm), tokens(10)
    real = torch.stack([torch.ones(10), torch.tensor(WHERE[where])])  # as tokenizers give it, numbers
    with torch.no_grad():
        try:
            padded = model(x, padding_mask=real.long())
        except ValueError as error:
            assert refused(error)
            return False
        close(padded[0], model(x[:1])[0], 1e-4)
        close(padded[1][real[1].bool()], model(x[1:, real[1].bool()])[0], 1e-4)
    return True


@pytest.mark.parametrize("where", WHERE)
def test_padding_leaves_no_trace_or_is_refused(where):
    kept = [arm for arm in ARMS if padding_is_kept(arm, where)]
    assert len(kept) >= ACCEPTED[where], kept
    assert ("default" in kept) == (where != "between")


# Decoding


@each_arm
def test_greedy_generation_equals_computing_all_anew(arm):
    model, x = build(arm), tokens(5)
    slow = x
    try:
        fast = model.generate(x, 8, temperature=0)
    except ValueError as error:
        assert refused(error) and not arm.startswith(("default", "position", "ffn", "residual", "lm_head"))
        return
    with torch.no_grad():
        for _ in range(8):
            slow = torch.cat([slow, model(slow)[:, -1].argmax(-1, keepdim=True)], 1)
    assert torch.equal(fast, slow)


@each_arm
def test_prompts_padded_in_front_are_continued_as_each_alone(arm):
    model, x = build(arm), tokens(6)
    real = torch.tensor([[True] * 6, [False] * 2 + [True] * 4])
    try:
        both = model.generate(x, 6, temperature=0, padding_mask=real)
    except ValueError as error:
        assert refused(error) and arm != "default"
        return
    assert torch.equal(both[:1], model.generate(x[:1], 6, temperature=0))
    assert torch.equal(both[1:, 2:], model.generate(x[1:, 2:], 6, temperature=0))


@pytest.mark.parametrize("wrong, said", [
    ({"tokens": torch.zeros(1, 0, dtype=torch.long)}, "the prompt is empty"),
    ({"temperature": -1}, "temperature is 0 or more"),
    ({"padding_mask": torch.tensor([[True, False]])}, "ends in padding"),
])  # fmt: skip
def test_a_wrong_call_of_generate_is_refused(wrong, said):
    call = {"tokens": torch.zeros(1, 2, dtype=torch.long), "n": 2} | wrong
    with pytest.raises(ValueError, match=said):
        build("default").generate(**call)


# Precision


def near(half, full):
    """Logits in half precision beside those in float32: apart by rounding, not by a sum that went wrong."""
    assert half.isfinite().all()
    assert (half.float() - full).abs().mean() <= 0.05 * full.std()


@each_arm
def test_half_precision_and_autocast_are_near_float32(arm):
    model, x = build(arm), tokens(10)
    half = copy.deepcopy(model).bfloat16()
    with torch.no_grad():
        full = model(x)
        near(half(x), full)
        with torch.autocast("cpu", torch.bfloat16):
            near(model(x), full)
    with torch.autocast("cpu", torch.bfloat16):
        model.train()(x).square().mean().backward()


def test_tables_that_grew_while_observing_serve_training():
    model = build("default")
    with torch.inference_mode():
        model(tokens(60))
    model.train()(tokens(60)).square().mean().backward()


# Copies and checkpoints


@each_arm
def test_a_checkpoint_makes_another_model_the_same(arm):
    model, x = build(arm), tokens(10)
    state = model.state_dict()
    with torch.device("meta"):
        empty = build(arm)
    others = [build(arm, seed=1), build(arm, seed=1), empty.to_empty(device="cpu"), copy.deepcopy(model)]
    for other, options in zip(others, ({}, {"assign": True}, {}, {}), strict=True):
        other.load_state_dict(state, **options)
        with torch.no_grad():
            assert torch.equal(other.eval()(x), model(x))
        assert sum(p.numel() for p in other.parameters()) == sum(p.numel() for p in model.parameters())


@each_arm
def test_a_model_in_double_precision_is_as_exact(arm):
    """What is not a weight is computed anew in the new type."""
    model, x = build(arm).double(), tokens(10)
    torch.set_default_dtype(torch.float64)
    try:
        exact = build(arm).double()
    finally:
        torch.set_default_dtype(torch.float32)
    exact.load_state_dict(model.state_dict())
    with torch.no_grad():
        close(model(x), exact(x), 1e-12)


# What a block that runs again cannot have


@pytest.mark.parametrize("field", [
    {"ffn": {"kind": "gelu", "hidden": 0.1}}, {"ffn": "mixture"}, {"ffn": "adaptive-width"}, {"norm": "batchnorm"},
    {"score": {"kind": "offset-gate", "reach": 4}},
], ids=str)  # fmt: skip
def test_a_reversible_block_is_the_same_whenever_it_runs(field):
    with pytest.raises(ValueError, match="runs a block again in the backward pass"):
        Transformer(ModelConfig(vocabulary=13, context=8, residual="reversible", **field))


def test_padding_does_not_count_in_losses_of_feed_forward_layers():
    from lab.models.feedforward import balance_loss
    from lab.models.sparse_feedforward import width_loss

    for kind, loss in (("mixture", balance_loss), ("adaptive-width", width_loss)):
        model, x = build(f"ffn {kind}"), tokens(10)
        real = torch.arange(10) < torch.tensor([[6], [6]])
        model(x, padding_mask=real)
        padded = loss(model)
        model(x[:, :6])
        close(padded, loss(model))


def test_a_new_file_of_the_package_is_found(tmp_path, monkeypatch):
    import lab.models

    (tmp_path / "mine_of_a_test.py").write_text(
        "from lab.models.norms import Norm\n\n\nclass Mine(Norm, kind='mine-of-a-test'):\n    pass\n"
    )
    monkeypatch.setattr(lab.models, "__path__", [*lab.models.__path__, str(tmp_path)])
    lab.models.import_kinds()
    try:
        Transformer(ModelConfig(vocabulary=13, context=8, norm="mine-of-a-test"))
    finally:
        SEAMS["norm"].kinds.pop("mine-of-a-test")


def test_a_misspelt_field_is_told_its_name():
    with pytest.raises(ValueError, match="'positon' is unknown; did you mean 'position'"):
        ModelConfig(vocabulary=13, context=8, positon="alibi")


def test_every_mixer_is_an_arm():
    assert {f"mixer {kind}, no positions" for kind in kinds_of_models(Mixer)} <= set(ARMS)
