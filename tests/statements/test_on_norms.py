"""Exact statements of the chapter (§1.5) and its notes about norms, residuals, initialization and stacks."""

import copy

import pytest
import torch
import torch.nn.functional as F
from helpers import config, heads, norm, normal, small_config, tokens
from torch import nn
from torch.autograd.functional import jacobian

from lab.measure.hooks import capture
from lab.models import Transformer
from lab.models.gpt import Block, Position
from lab.models.initialization import output_projection_weights


def deep(**fields):
    sizes = {"block_size": 16, "d_model": 48, "n_layers": 12, "position": "none"}
    return Transformer(small_config(**sizes | fields)).double().requires_grad_(False)


# Norms


def test_layer_norm_is_per_token():
    """norm-ln-batch-free. "LayerNorm normalises each sample (token) over features independently of
    the batch; BatchNorm depends on batch statistics; gamma and beta have d entries shared by all
    tokens." (chapter §1.5.2; note 3, Layer Norm)
    norm-ln-over-length. "LayerNorm treats a whole sentence as one sample and normalises over its
    length as well as features." (note 1, 细节讨论4) False: other tokens have no effect.
    norm-bn-train-infer. "BatchNorm differs between training and inference (running averages),
    LayerNorm does not." (note 3, Layer Norm, Questions 1)
    """
    x = normal(2, 5, 16)
    other = x.clone()
    other[0, 3:], other[1] = 7, normal(5, 16, seed=1)
    for kind, moves in (("layernorm", False), ("batchnorm", True)):
        part = norm(kind).train()
        assert torch.equal(part(x)[0, :3], part(other)[0, :3]) != moves
        assert torch.equal(part(x), part.eval()(x)) != moves
    assert {p.shape for p in norm().parameters()} == {(16,)}


def test_rms_norm_divides_by_rms_not_std():
    """norm-rms-variance. "RMSNorm only rescales by the variance." (note 2, §2.2.5)
    False: it divides by the root mean square, which equals the std only for zero mean.
    """
    x = normal(5, 16) + 3
    by_deviation = x / x.std(-1, correction=0, keepdim=True)
    assert (norm("rmsnorm")(x) / by_deviation).mean() < 0.5
    centred = x - x.mean(-1, keepdim=True)
    torch.testing.assert_close(norm("rmsnorm")(centred), norm()(x))


def test_epsilon_outside_the_root_gives_nan_gradients_at_a_constant():
    """norm-ln-formula. "LayerNorm is gamma (x - mu)/(sigma + eps) + beta with the biased standard
    deviation over features." (chapter §1.5.2; note 2, §2.2.5; note 3, Layer Norm)
    False: libraries divide by √(σ² + ε), which differs for small σ and is differentiable at σ = 0.
    """

    def printed(x):
        centred = x - x.mean()
        return centred / (centred.square().mean().sqrt() + 1e-5)

    constant, weights = torch.ones(16).double(), normal(16)
    for function, finite in ((printed, False), (norm(), True)):
        gradient = torch.func.grad(lambda x, f=function: (f(x) * weights).sum())(constant)
        assert gradient.isfinite().all() == finite
    x = weights / weights.std(correction=0)
    torch.testing.assert_close(printed(x), norm()(x), rtol=2e-5, atol=0)
    assert (printed(1e-3 * x) / norm()(1e-3 * x)).mean() > 3


def test_layer_norm_jacobian_has_singular_values_one_over_sigma():
    """The chapter: layer norm may add some scaling to the gradient (§1.5.1, exercise 1.11).
    Exactly: the Jacobian has d - 2 singular values 1/σ and two 0 (γ = 1, ε = 0).
    """
    x = 3 * normal(12)
    of_norm = jacobian(lambda x: F.layer_norm(x, (12,), eps=0.0), x)
    sizes = torch.linalg.svdvals(of_norm) * x.std(correction=0)
    torch.testing.assert_close(sizes, torch.tensor([1.0] * 10 + [0.0] * 2).double(), rtol=0, atol=1e-9)


# Residuals


def test_residual_jacobian_is_a_matrix():
    """norm-residual-jacobian. "For y = x + F(x) the gradient is dL/dy (1 + dF/dx), so even with
    tiny dF/dx it passes through the '+1'." (chapter §1.5.1)
    True for the matrix I + J, not for each component.
    """
    x, upstream, map = normal(6), normal(6, seed=1), normal(6, 6, seed=2)
    of_branch = jacobian(lambda x: torch.tanh(map @ x), x)
    gradient = torch.func.vjp(lambda x: x + torch.tanh(map @ x), x)[1](upstream)[0]
    torch.testing.assert_close(gradient, upstream @ (torch.eye(6) + of_branch))
    assert not torch.allclose(gradient, upstream * (1 + of_branch.diagonal()))


def test_pre_norm_main_path_is_the_identity():
    """norm-pre-gradient. "In pre-norm the main path is the identity, dL/dy (1 + dF/dLN dLN/dx), and
    LayerNorm touches only the branch." (chapter §1.5.3, exercise 1.11)
    """
    block, x = deep(d_model=16).blocks[0], normal(16)
    block.mixer.heads.out.weight.zero_()
    of_block = jacobian(lambda x: block(x[None, None])[0, 0], x)
    of_norm, of_branch = jacobian(block.ffn_norm, x), jacobian(block.ffn, block.ffn_norm(x))
    torch.testing.assert_close(of_block, torch.eye(16).double() + of_branch @ of_norm)


def test_pre_ln_stream_grows_and_post_ln_stream_does_not():
    """The chapter: in Post-LN residuals may add up, while in Pre-LN the output of the residual branch keeps its
    magnitude (exercise 1.11).
    False for the stream: Post-LN normalises it, and in Pre-LN it grows about linearly with depth.
    """

    def stream(kind):
        """Mean square of the residual stream after each block."""
        net = deep(residual=kind, initialization="xavier")
        with capture(net.blocks) as after:
            net(tokens(16, 8))
        return [x.square().mean().item() for x in after]

    pre, post = stream("pre"), stream("post")
    assert all(a < b for a, b in zip(pre, pre[1:], strict=False)) and pre[-1] > 4 * pre[0]
    assert pre[11] - pre[5] == pytest.approx(pre[5] * 6 / 5.5, rel=0.5)
    assert post == pytest.approx([1] * 12, abs=1e-3)


@pytest.mark.parametrize(("final", "grows"), [(False, True), (True, False)])
def test_pre_ln_needs_a_final_norm(final, grows):
    """The chapter: Pre-LN is given by its block alone, x + Sublayer(LN(x)) (§1.5.3).
    False: a final norm follows; without it the input of the LM head grows with depth.
    """

    def size(n_layers):
        net = deep(residual="pre", initialization="xavier", n_layers=n_layers)
        net.norm = net.norm if final else nn.Identity()
        return net.hidden(tokens()).square().mean().item()

    assert (size(32) > 3 * size(2)) == grows


def test_listing_of_note_4_has_neither_residual_nor_norm():
    """Note 4: its title promises add and norm, which the code is meant to show (title, §5.2).
    False: the listing is attention only. With add and norm, a zero attention output leaves the normalised stream.
    """
    x = 5 * normal(1, 4, 128) + 1
    block = Block.build("post", config(), Position.build("none", config())).double()
    torch.testing.assert_close(block.around(x, torch.zeros_like, "mixer"), norm(width=128)(x))
    assert heads().join(torch.zeros(1, 4, 4, 32).double()).abs().max() == 0


def test_original_post_ln_applies_dropout_to_the_branch():
    """Note 3: Post-LN as in the original is dropout(norm(sublayer(x) + x)) (Questions 2).
    False: the original is LN(x + Dropout(Sublayer(x))).
    """
    x = 5 * normal(2, 30, 128) + 1
    torch.manual_seed(0)
    printed = nn.Dropout(0.5)(norm(width=128)(x))  # with a zero sublayer
    assert 0.4 < (printed == 0).double().mean() < 0.6, "dropout must zero the stream itself"
    layer = nn.TransformerEncoderLayer(128, 4, dropout=1.0, batch_first=True).double().train()
    torch.testing.assert_close(layer(x), layer.norm2(layer.norm1(x)))  # dropout 1 removes the branches


def test_gpt2_depth_scaling_applies_at_initialization():
    """The chapter: GPT-2 multiplies by 1/√N before the residual sum (§1.5.5).
    False: it scales initial weights. A factor in the forward pass trains N times slower (N branches).
    """
    plain, scaled = (output_projection_weights(deep(initialization=kind)) for kind in ("normal", "depth-scaled"))
    for before, after in zip(plain, scaled, strict=True):
        torch.testing.assert_close(after, before / 24**0.5)  # two branches per layer
    x, target, weight, factor = normal(8), normal(8, seed=1), normal(8, 8, seed=2), 24**-0.5

    def step(weight, times):
        """Change of the output of `times` x weight by one gradient step."""
        gradient = torch.func.grad(lambda w: (times * w @ x - target).square().sum())(weight)
        return -times * gradient @ x

    torch.testing.assert_close(step(weight * factor, 1), 24 * step(weight, factor))


# Stacks


@torch.no_grad()
def test_every_decoder_layer_reads_the_final_encoder_output():
    """stack-encoder-layer-pairing. "Decoder layer L takes keys and values from encoder layer L (the
    corresponding one)." (note 1, Decoder, 细节讨论1)
    False: all layers read the final encoder output, and the depths may differ.
    """
    sizes = {"num_encoder_layers": 3, "num_decoder_layers": 2, "dim_feedforward": 16}
    net = nn.Transformer(16, 2, **sizes, batch_first=True).eval()
    with capture([net.encoder]) as encoded, capture(net.decoder.layers, inputs=True) as read:
        net(torch.randn(1, 5, 16), torch.randn(1, 4, 16))
    assert len(read) == 2 and all(torch.equal(memory, encoded[0]) for _, memory in read)


def test_decoder_only_block_has_one_attention():
    """stack-two-self-attentions. "In decoder-only models each block has two causal self-attention
    layers (the cross-attention is replaced by self-attention)." (note 1, Decoder, 细节讨论1)
    False: GPT-2's block has one, with 12 d² weights rather than 16 d².
    """
    transformers = pytest.importorskip("transformers")
    from transformers.models.gpt2.modeling_gpt2 import GPT2Attention, GPT2Block

    block = GPT2Block(transformers.GPT2Config(n_embd=32, n_head=4))
    assert sum(isinstance(module, GPT2Attention) for module in block.modules()) == 1
    assert sum(p.numel() for p in block.parameters() if p.dim() == 2) == 12 * 32**2


@torch.no_grad()
def test_renaming_token_ids_does_not_change_the_model():
    """stack-embedding-lookup. "Token ids have no numerical relation; an embedding table maps each
    id to a vector, turning a length-s sequence into an (s, d) matrix." (note 2, §2.1)
    """
    net, renamed = deep(), deep()
    by_name = torch.randperm(13, generator=torch.Generator().manual_seed(0))
    one_hot = F.one_hot(tokens(), 13).double()
    torch.testing.assert_close(net.embedding(tokens()), one_hot @ net.embedding.weight)
    assert not torch.allclose(net(by_name[tokens()])[..., by_name], net(tokens()))
    for table, old in ((renamed.embedding, net.embedding), (renamed.lm_head, net.lm_head)):
        table.weight[by_name] = copy.copy(old.weight)
    torch.testing.assert_close(renamed(by_name[tokens()])[..., by_name], net(tokens()))


def test_lm_head_not_norm_maps_to_vocabulary():
    """stack-lm-head. "Mapping d_model back to vocab_size (shape [b, s, d] to [b, s, V]) is listed
    among the properties of RMSNorm/normalisation." (note 2, §2.2.5)
    False: the LM head does that, a separate linear layer after the final norm.
    """
    net = deep(norm="rmsnorm")
    hidden = net.norm(net.embedding(tokens()))
    assert hidden.shape[-1] == 48 and net.lm_head(hidden).shape[-1] == net(tokens()).shape[-1] == 13
