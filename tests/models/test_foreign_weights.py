"""GPT-2 and Llama checkpoints (small, random) load strictly and give the same logits and greedy text.

Tests `lab.models.lm_head` and `lab.models.weights`.
"""

import pytest
import torch
from helpers import small_config
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from lab.models import ModelConfig, Transformer

VOCABULARY, CONTEXT, D, LAYERS, HEADS = 37, 48, 32, 3, 4


def gpt2(tied=True):
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=VOCABULARY, n_positions=CONTEXT, n_embd=D, n_layer=LAYERS, n_head=HEADS, n_inner=72,
        layer_norm_epsilon=1e-4, initializer_range=0.3, tie_word_embeddings=tied, bos_token_id=0, eos_token_id=None,
    )  # fmt: skip
    theirs = GPT2LMHeadModel(config).eval()
    ours = ModelConfig(
        vocab_size=VOCABULARY, block_size=CONTEXT, d_model=D, n_layers=LAYERS, n_heads=HEADS, bias=True,
        position="learned", ffn={"kind": "gelu-tanh", "width": 72}, norm={"kind": "layernorm", "eps": 1e-4},
        lm_head="tied" if tied else "own",
    )  # fmt: skip
    source, weights = theirs.state_dict(), {}
    weights["embedding.weight"], weights["position.embedding.weight"] = (
        source["transformer.wte.weight"],
        source["transformer.wpe.weight"],
    )
    places = {
        "ln_1": "mixer_norm.norm", "attn.c_attn": "mixer.heads.qkv",
        "attn.c_proj": "mixer.heads.out", "ln_2": "ffn_norm.norm", "mlp.c_fc": "ffn.up",
        "mlp.c_proj": "ffn.down",
    }  # fmt: skip
    for i in range(LAYERS):
        for place, name in places.items():
            for part in ("weight", "bias"):
                weight = source[f"transformer.h.{i}.{place}.{part}"]
                weights[f"blocks.{i}.{name}.{part}"] = (
                    weight.t() if place[:2] != "ln" else weight
                )  # Conv1D stores (in, out)
    for part in ("weight", "bias"):
        weights[f"norm.norm.{part}"] = source[f"transformer.ln_f.{part}"]
    if not tied:
        weights["lm_head.weight"] = source["lm_head.weight"]
    return theirs, ours, weights


def llama(kv_heads, biases=False, tied=False):
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY, max_position_embeddings=CONTEXT, hidden_size=D, num_hidden_layers=LAYERS,
        num_attention_heads=HEADS, num_key_value_heads=kv_heads, intermediate_size=76, rms_norm_eps=1e-6,
        initializer_range=0.3, attention_bias=biases, mlp_bias=biases, tie_word_embeddings=tied, bos_token_id=0,
        eos_token_id=None, rope_parameters={"rope_type": "default", "rope_theta": 5000.0},
    )  # fmt: skip
    theirs = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for parameter in theirs.parameters():  # otherwise biases are 0 and gains 1
            parameter += torch.randn_like(parameter) / 10
    ours = ModelConfig(
        vocab_size=VOCABULARY, block_size=CONTEXT, d_model=D, n_layers=LAYERS, n_heads=HEADS, kv_heads=kv_heads,
        position={"kind": "rotary", "base": 5000.0}, norm={"kind": "rmsnorm", "eps": 1e-6},
        projection={"kind": "full", "bias": biases}, ffn={"kind": "swiglu", "width": 76, "bias": biases},
        lm_head="tied" if tied else "own",
    )  # fmt: skip
    source = theirs.state_dict()
    weights = {"embedding.weight": source["model.embed_tokens.weight"], "norm.norm.weight": source["model.norm.weight"]}
    places = {"self_attn.o_proj": "mixer.heads.out", "mlp.gate_proj": "ffn.gate", "mlp.up_proj": "ffn.up",
              "mlp.down_proj": "ffn.down"}  # fmt: skip
    for i in range(LAYERS):
        theirs_at, ours_at = f"model.layers.{i}", f"blocks.{i}"
        weights[f"{ours_at}.mixer_norm.norm.weight"] = source[f"{theirs_at}.input_layernorm.weight"]
        weights[f"{ours_at}.ffn_norm.norm.weight"] = source[f"{theirs_at}.post_attention_layernorm.weight"]
        for part in ("weight", "bias") if biases else ("weight",):
            qkv = [source[f"{theirs_at}.self_attn.{x}_proj.{part}"] for x in "qkv"]
            weights[f"{ours_at}.mixer.heads.qkv.{part}"] = torch.cat(qkv)
            for place, name in places.items():
                weights[f"{ours_at}.{name}.{part}"] = source[f"{theirs_at}.{place}.{part}"]
    if not tied:
        weights["lm_head.weight"] = source["lm_head.weight"]
    return theirs, ours, weights


MODELS = {
    "gpt2": gpt2,
    "gpt2, untied": lambda: gpt2(tied=False),
    "llama": lambda: llama(HEADS),
    "llama, grouped": lambda: llama(2),
    "llama, biases": lambda: llama(1, biases=True),
    "llama, tied": lambda: llama(2, tied=True),
}


@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_huggingface_weights_give_the_same_logits_and_greedy_text(name):
    theirs, config, weights = MODELS[name]()
    ours = Transformer(config).eval()
    assert set(ours.state_dict()) == set(weights)
    ours.load_state_dict(weights, strict=True)
    tokens = torch.randint(VOCABULARY, (3, 20), generator=torch.Generator().manual_seed(0))
    expected = theirs(tokens).logits
    assert (ours(tokens) - expected).norm() < 1e-5 * expected.norm() and expected.std() > 0.1
    text = theirs.generate(tokens, attention_mask=torch.ones_like(tokens), max_new_tokens=20, do_sample=False)
    assert torch.equal(ours.generate(tokens, 20, temperature=0), text)
    assert len(text[:, 20:].unique()) > 3, "greedy output is constant"


def test_tied_lm_head_shares_the_embedding_weight():
    model = Transformer(small_config(lm_head="tied"))
    assert model.lm_head.weight is model.embedding.weight
    x = torch.zeros(1, 3, dtype=torch.long)
    before = model(x)
    with torch.no_grad():
        model.embedding.weight[5, 0] += 1  # an equal step in all features would be orthogonal to the normalised stream
    changed = (model(x) - before).abs().amax((0, 1)) > 1e-3
    assert changed.nonzero().flatten().tolist() == [5]
    with pytest.raises(ValueError, match="d_out 3 must be 13"):
        Transformer(small_config(lm_head="tied", d_out=3))
