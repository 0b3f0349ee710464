"""Encoder-decoder models.

Tests `lab.models.encoder_decoder`.
"""

import inspect

import pytest
import torch
from helpers import close, differs, small_config, tokens

from lab.models.encoder_decoder import EncoderDecoder
from lab.models.gpt import AttentionFn, Block, FeedForward, Initialization, Norm, Position, QKVProjection
from lab.models.initialization import output_projection_weights
from lab.tasks.sequences import Reversal
from lab.tasks.task import accuracy
from lab.training import TrainConfig, fit

VOCABULARY = 13
SEAMS = {
    "position": Position, "score": AttentionFn, "projection": QKVProjection, "ffn": FeedForward,
    "norm": Norm, "residual": Block, "initialization": Initialization,
}  # fmt: skip


def has_no_required_options(variant):
    options = [p for p in inspect.signature(variant.__init__).parameters.values() if p.kind is p.KEYWORD_ONLY]
    return all(p.default is not p.empty for p in options)


CHOICES = [
    (field, kind)
    for field, seam in SEAMS.items()
    for kind in sorted(seam.kinds)
    if has_no_required_options(seam.kinds[kind]) and (field != "residual" or kind in ("pre", "post"))
]


def config(**fields):
    return small_config(**({"n_layers": 3} | fields))


def build(seed=0, **fields):
    model = EncoderDecoder(config(**fields), seed=seed).eval()
    if fields.get("initialization") == "fixup":  # fixup zero-initializes the LM head
        generator = torch.Generator().manual_seed(seed)
        for parameter in model.parameters():
            parameter.data += torch.randn(parameter.shape, generator=generator) / 10
    return model


every_choice = pytest.mark.parametrize("field, kind", CHOICES, ids=str)
OF_ATTENTION = [choice for choice in CHOICES if choice[0] in ("position", "score", "projection", "residual")]
SOURCE, TARGET_IN = tokens(9, batch=3), tokens(7, batch=3, seed=1)
REAL = torch.arange(9) < torch.tensor([[9], [5], [1]])


# Encoder-decoder


@every_choice
@torch.no_grad()
def test_decoder_is_causal_and_attends_to_the_whole_source(field, kind):
    model = build(**{field: kind})
    logits = model((SOURCE, TARGET_IN))
    assert logits.shape == (3, 7, VOCABULARY) and logits.isfinite().all()
    later = TARGET_IN.clone()
    later[:, 4:] = (later[:, 4:] + 1) % VOCABULARY
    close(model((SOURCE, later))[:, :4], logits[:, :4])
    by = (
        1e-7 if (field, kind) == ("residual", "none") else 1e-3
    )  # without skip connections the target acts through queries only
    differs(model((SOURCE, later))[:, 4:], logits[:, 4:], by)
    if (field, kind) != ("initialization", "mean-field"):
        for i in range(9):
            other = SOURCE.clone()
            other[:, i] = (other[:, i] + 1) % VOCABULARY
            differs(model((other, TARGET_IN))[:, 0], logits[:, 0], 1e-6)


@torch.no_grad()
def test_every_decoder_layer_attends_to_the_final_encoder_output():
    model, read = build(), []
    for block in model.decoder.blocks:
        block.cross.register_forward_hook(
            lambda module, inputs, given, output: read.append(given["memory"]), with_kwargs=True
        )
    before = model((SOURCE, TARGET_IN))
    final = model.encoder.hidden(SOURCE)
    assert len(read) == 3 and all(torch.equal(memory, final) for memory in read)
    differs(final, model.encoder.embedding(SOURCE))

    # Encoder layers act through the final output only: with that fixed, changing a middle layer has no effect.
    perturbation = model.encoder.blocks[1].register_forward_hook(lambda module, inputs, output: output * 3 + 1)
    differs(model((SOURCE, TARGET_IN)), before)
    model.encoder.norm.register_forward_hook(lambda module, inputs, output: final)
    close(model((SOURCE, TARGET_IN)), before, 0)
    perturbation.remove()


@torch.no_grad()
def test_cross_attention_uses_no_positions():
    """With a position-free encoder, source order has no effect for any decoder position encoding."""
    order = [3, 0, 7, 5, 1, 2, 4, 6, 8]
    for position in ("rotary", "t5", "alibi", "none"):
        model = build(position=position)
        model.encoder = build(position="none").encoder
        close(model((SOURCE[:, order], TARGET_IN)), model((SOURCE, TARGET_IN)))
        differs(model((SOURCE, TARGET_IN[:, [1, 0, 2, 3, 4, 5, 6]]))[:, 6], model((SOURCE, TARGET_IN))[:, 6], 1e-5)


@pytest.mark.parametrize("field, kind", OF_ATTENTION, ids=str)
@torch.no_grad()
def test_cached_generation_matches_full_forward_argmax(field, kind):
    model, answer = build(**{field: kind}), torch.full((3, 1), 2)
    for _ in range(6):
        likeliest = model((SOURCE, answer), source_padding_mask=REAL)[:, -1:].argmax(-1)
        answer = torch.cat([answer, likeliest], 1)
    assert torch.equal(model.generate(SOURCE, 2, 6, source_padding_mask=REAL), answer[:, 1:])


def test_seed_determines_weights_and_encoder_differs_from_decoder():
    one, again, other = build(seed=1), build(seed=1), build(seed=2)
    for (name, a), b in zip(one.named_parameters(), again.parameters(), strict=True):
        assert torch.equal(a, b), name
    differs(one((SOURCE, TARGET_IN)), other((SOURCE, TARGET_IN)))
    first = [side.blocks[0].mixer.heads.qkv.weight for side in (one.encoder, one.decoder, other.encoder)]
    differs(first[0], first[1])
    differs(first[1], first[2])


@pytest.mark.parametrize("kind", ["depth-scaled", "xavier"])
def test_cross_attention_follows_the_initialization_scheme(kind):
    wide = {"d_model": 128, "n_layers": 4, "initialization": kind}
    model = build(**wide)
    for side, branches in ((model.encoder, 8), (model.decoder, 12)):
        for weight in output_projection_weights(side):
            expected = 0.02 / branches**0.5 if kind == "depth-scaled" else (2 / sum(weight.shape)) ** 0.5
            assert weight.std().item() == pytest.approx(expected, rel=0.04)
    expected = 0.02 if kind == "depth-scaled" else 128**-0.5
    for matrix in model.decoder.blocks[0].cross.heads.matrices():
        assert matrix.std().item() == pytest.approx(expected, rel=0.04)


@pytest.mark.parametrize("kind", sorted(AttentionFn.kinds))
@torch.no_grad()
def test_cross_attention_sees_the_whole_source_or_raises(kind):
    needed = {"local": {"size": 3}, "offset-gate": {"reach": 6}, "linformer": {"rank": 4}}
    choice = {"kind": kind, **needed.get(kind, {})}
    if kind in ("local", "offset-gate"):
        with pytest.raises(ValueError, match="no query-key distances"):
            build(score=choice)
        return
    cross, width = build(score=choice).decoder.blocks[0].cross, 32
    for targets, sources in ((5, 12), (12, 5), (1, 24)):
        x, memory = (torch.randn(1, n, width, generator=torch.Generator().manual_seed(n)) for n in (targets, sources))
        before = cross(x, memory)
        for i in range(sources):
            other = memory.clone()
            other[:, i] *= -2
            moved = (cross(x, other) - before).abs().amax(-1) > 1e-7
            assert moved.all() or kind in ("lsh", "top-k", "sparsemax"), (
                "only selecting scores may ignore a source token"
            )


def test_invalid_decoder_options_raise():
    with pytest.raises(ValueError, match="must be causal, got 'none'"):
        build(mask="none")
    with pytest.raises(ValueError, match="is pre or post, not 'sandwich'"):
        build(residual="sandwich")


def test_small_encoder_decoder_learns_reversal():
    torch.set_num_threads(1)
    task = Reversal(symbols=6, length=5)
    model = EncoderDecoder(
        config(vocab_size=task.vocabulary, block_size=task.length, n_layers=1, position="learned"), seed=0
    )
    settings = TrainConfig(steps=300, batch=64, learning_rate=5e-3, warmup=30)
    run, history = fit(model, task, settings, seed=0)
    (source, target_in), targets = task.batch(torch.Generator().manual_seed(9), 200)
    assert accuracy(model((source, target_in)), targets) > 0.99, history
    assert (model.generate(source, task.symbols, task.length) == targets).float().mean() > 0.98
    assert run["training_loss"] < 0.1 and not run["diverged"]
