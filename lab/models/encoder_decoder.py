"""Encoder-decoder: every decoder layer reads the final output of the encoder (chapter §1.1.1)."""

import torch
from torch import nn

from lab.models.gpt import AttentionFn, Norm, QKVProjection, Transformer, eval_mode, known_padding
from lab.models.masks import Mask, padding_before_tokens, real_tokens
from lab.models.weights import NamedOnce


class CrossAttention(nn.Module):
    """x (b, t, m), memory (b, s, m) -> (b, t, m): queries from x, keys and values from memory.

    No position encoding is applied, and every query sees the whole memory except padding. Raises
    ValueError for a score that depends on the distance between key and query.
    """

    def __init__(self, config):
        super().__init__()
        self.kind = config.heads
        self.heads = QKVProjection.build(config.heads, config)
        self.score = AttentionFn.build(config.score, config)
        if self.score.by_distance:
            raise ValueError(
                f"cross-attention has no distances between queries and keys, "
                f"which score {config.score!r} needs"
            )
        width = config.model_copy(update={"d_model": config.d_head})
        self.query_norm = Norm.build(config.qk_norm, width)
        self.key_norm = Norm.build(config.qk_norm, width)

    def forward(self, x, memory, mask=None):
        if mask is not None and self.heads.history and padding_before_tokens(mask.flatten(1))[0]:
            raise ValueError(
                f"heads {self.kind!r} depends on absolute positions: padding must come last"
            )
        q, k, v = self.heads.across(x, memory)
        padding_mask = None
        if self.key_norm.sees_padding:
            padding_mask = torch.ones_like(memory[..., 0], dtype=torch.bool)[:, None, None] & (
                mask is None or mask
            )
            padding_mask = padding_mask.flatten(1)  # (b, s)
        with known_padding(self.key_norm, padding_mask):
            k = self.key_norm(k)
        return self.heads.join(self.score(self.query_norm(q), k, v, mask=mask))


class Decoder(Transformer):
    """A Transformer whose blocks read a memory too: hidden(tokens, memory=..., memory_mask=...)."""

    def __init__(self, config, *, seed=0):
        super().__init__(config, seed=seed, cross=CrossAttention)

    def random_inputs(self, batch):
        return {"memory": torch.randn(batch, self.config.block_size, self.config.d_model)}


class EncoderDecoder(NamedOnce):
    """(source (b, s), target_in (b, t)) -> logits (b, t, d_out); one ModelConfig for both sides.

    The encoder has no mask; the decoder uses the mask of the configuration. Both have n_layers and
    share the token embedding. The weights depend on config and seed alone. Raises ValueError for a
    mask that is not causal.

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
        self.decoder = Decoder(config, seed=apart)  # not the seed of the encoder
        self.decoder.embedding = self.encoder.embedding
        self.decoder.lm_head.follow(self.decoder.embedding)

    def forward(self, inputs, *, source_padding_mask=None):
        """`source_padding_mask` (b, s) is False or 0 at padding of the source, which is ignored.

        Raises ValueError as `Transformer.hidden` does.
        """
        source, target_in = inputs
        return self.decoder(target_in, **self.memory(source, source_padding_mask))

    def memory(self, source, source_padding_mask=None):
        """Inputs of the decoder blocks: {memory: encoder output (b, s, m), memory_mask}."""
        mask = None
        if source_padding_mask is not None:
            source_padding_mask = real_tokens(source_padding_mask, source.shape[:2])
            mask = source_padding_mask[:, None, None]  # (b, 1, 1, s)
        return {
            "memory": self.encoder(source, padding_mask=source_padding_mask),
            "memory_mask": mask,
        }

    @torch.no_grad()
    def generate(self, source, start, n, *, source_padding_mask=None):
        """Greedy decoding of n tokens after the token id `start`, which is not returned: (b, n)."""
        caches = self.decoder.caches(len(source), n)
        tokens = [torch.full_like(source[:, :1], start)]
        with eval_mode(self):
            memory = self.memory(source, source_padding_mask)
            for _ in range(n):
                logits = self.decoder(tokens[-1], caches=caches, **memory)[:, -1]
                tokens.append(logits.argmax(-1, keepdim=True))
        return torch.cat(tokens[1:], dim=1)
