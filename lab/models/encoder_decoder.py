"""Encoder-decoder: every decoder layer attends to the encoder output (chapter §1.1.1)."""

from functools import partial

import torch
from torch import nn

from lab.models.decoding import eval_mode
from lab.models.gpt import AttentionFn, Block, Norm, QKVProjection, Transformer
from lab.models.lm_head import Tied
from lab.models.masks import Mask
from lab.models.padding import Padding
from lab.models.registry import Part
from lab.models.weights import NamedOnce


class CrossAttention(Part):
    """x (b, t, m), memory (b, s, m) -> (b, t, m): queries from x, keys and values from memory.

    It applies no position encoding. Every query sees the whole memory except padding. Raises
    ValueError for an attention function that depends on the distance between query and key.
    """

    def __init__(self, config):
        super().__init__(config)
        self.heads = QKVProjection.build(config.projection, config)
        self.score = AttentionFn.build(config.score, config)
        if getattr(self.score, "by_distance", False):
            raise ValueError(
                f"cross-attention has no query-key distances, but score {config.score!r} needs them"
            )
        of_head = config.model_copy(update={"d_model": config.d_head})
        self.query_norm = Norm.build(config.qk_norm, of_head)
        self.key_norm = Norm.build(config.qk_norm, of_head)

    def forward(self, x, memory, mask=None):
        q, _, _ = self.heads.split(x)
        _, k, v = self.heads.split(memory)
        return self.heads.join(self.score(self.query_norm(q), self.key_norm(k), v, mask=mask))


class DecoderBlock(Block):
    """A layer of self-attention, cross-attention and feed-forward. Vaswani 2017 §3.1.

    Raises ValueError for a residual other than "pre" and "post", and for options of these.
    """

    def __init__(self, config, position):
        super().__init__(config, position)
        if config.residual not in ("pre", "post"):
            raise ValueError(f"the residual of a decoder is pre or post, not {config.residual!r}")
        self.final_norm = config.residual == "pre"
        self.cross = CrossAttention(config)
        self.cross_norm = Norm.build(config.norm, config)

    def forward(self, x, *, memory, memory_mask=None, **seen):
        sublayers = (
            (partial(self.mixer, **seen), self.mixer_norm),
            (partial(self.cross, memory=memory, mask=memory_mask), self.cross_norm),
            (self.ffn, self.ffn_norm),
        )
        for f, norm in sublayers:
            x = x + f(norm(x)) if self.final_norm else norm(x + f(x))
        return x


class Decoder(Transformer):
    """A Transformer with cross-attention: hidden(tokens, memory=..., memory_mask=...)."""

    make_block = DecoderBlock


class EncoderDecoder(NamedOnce):
    """Map (source (b, s), target_in (b, t)) to logits (b, t, d_out).

    Encoder and decoder have n_layers layers each and share the token embedding. The mask of the
    config applies to the decoder only. Config and seed determine the initial weights. Raises
    ValueError for a mask that is not causal.

        source ── embedding ── encoder blocks ── norm ──┬── memory ──┬── ...
        target_in ── embedding ────────────────────── block 0 ──── block 1 ── ... ── norm ── LM head
    """

    def __init__(self, config, *, seed=0):
        super().__init__()
        if not Mask.build(config.mask).causal:
            raise ValueError(f"the mask of a decoder must be causal, got {config.mask!r}")
        self.config = config
        generator = torch.Generator().manual_seed(seed)
        apart = torch.randint(2**62, (1,), generator=generator, device="cpu").item()
        self.encoder = Transformer(config.model_copy(update={"mask": "none"}), seed=seed)
        self.encoder.lm_head = nn.Identity()
        self.decoder = Decoder(config, seed=apart)  # weights differ from the encoder's
        self.decoder.embedding = self.encoder.embedding
        if isinstance(self.decoder.lm_head, Tied):
            self.decoder.lm_head.weight = self.decoder.embedding.weight

    def forward(self, inputs, *, source_padding_mask=None):
        """`inputs`: (source, target_in). `source_padding_mask` (b, s): False or 0 at padding."""
        source, target_in = inputs
        return self.decoder(target_in, **self.memory(source, source_padding_mask))

    def memory(self, source, source_padding_mask=None):
        """Inputs of the decoder blocks: memory, the encoder output (b, s, m), and memory_mask."""
        if source_padding_mask is None:
            return {"memory": self.encoder(source)}
        padding = Padding(source_padding_mask)
        memory = self.encoder(source, mask=padding)
        return {"memory": memory, "memory_mask": padding.real[:, None, None]}  # (b, 1, 1, s)

    @torch.no_grad()
    def generate(self, source, start, n, *, source_padding_mask=None):
        """Greedily decode n tokens after the token id `start`. Returns (b, n), without `start`."""
        caches = self.decoder.caches(len(source), n)
        tokens = [torch.full_like(source[:, :1], start)]
        with eval_mode(self):
            memory = self.memory(source, source_padding_mask)
            for _ in range(n):
                logits = self.decoder(tokens[-1], caches=caches, **memory)[:, -1]
                tokens.append(logits.argmax(-1, keepdim=True))
        return torch.cat(tokens[1:], dim=1)
