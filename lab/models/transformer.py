"""The Transformer composed from one configuration: embeddings, blocks, logits (chapter §1.1)."""

from functools import partial

import torch
import torch.nn.functional as F
from torch import nn

from lab.models.attention import AttentionContext
from lab.models.config import ModelConfig
from lab.models.feedforward import FeedForward
from lab.models.generation import evaluated
from lab.models.initialization import Initialization
from lab.models.lm_head import LMHead
from lab.models.masks import Mask
from lab.models.mixers import Mixer
from lab.models.norms import Norm, leaving_out
from lab.models.positions import Position
from lab.models.residuals import Residual
from lab.models.weights import named_once


class Block(nn.Module):
    """What mixes positions, then the position-wise map, each inside its residual.

    With the default residual, PreNorm, this is   x = x + mixer(norm(x))   and then   x = x + ffn(norm(x)).
    """

    def __init__(self, config, position):
        super().__init__()
        self.mixer = Mixer.build(config.mixer, config, position)
        self.ffn = FeedForward.build(config.ffn, config)
        self.attention_residual = Residual.build(config.residual, config)
        self.ffn_residual = Residual.build(config.residual, config)

    def forward(self, x, norm_padding_mask=None, **inputs):
        """`norm_padding_mask` (b, k), True at tokens, is for norms that see it, `inputs` for the mixer."""
        with leaving_out(norm_padding_mask, self):
            x = self.attention_residual(x, partial(self.mixer, **inputs))
            return self.ffn_residual(x, self.ffn)

    def inverse(self, x, norm_padding_mask=None, **inputs):
        """What `forward` made x from, where the residuals can be undone."""
        with leaving_out(norm_padding_mask, self):
            x = self.ffn_residual.inverse(x, self.ffn)
            return self.attention_residual.inverse(x, partial(self.mixer, **inputs))


class Transformer(nn.Module):
    """tokens (b, t) -> logits (b, t, d_out), from a ModelConfig. The weights depend on `seed` alone."""

    def __init__(self, config: ModelConfig, *, seed=0, block=Block):
        super().__init__()
        self.config = config
        self.mask = Mask.build(config.mask)
        layers = [config.layer(i) for i in range(config.n_layers)]
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.embedding = nn.Embedding(config.vocabulary, config.d_model)
            self.position = Position.build(config.position, max(layers, key=lambda layer: layer.n_heads))
            own = config.unique_layers or config.n_layers
            unique = [block(layer, self.position.of_layer(i, layer)) for i, layer in enumerate(layers[:own])]
            self.blocks = nn.ModuleList(unique * (config.n_layers // own))
            self.residual = Residual.resolve(config.residual)[0]
            self.norm = Norm.build(config.norm if self.residual.final_norm else "none", config)
            self.lm_head = LMHead.build(config.lm_head, layers[0], self.embedding)
            Initialization.build(config.initialization)(self)
        for each in unique:
            self.residual.accept(each)
        named_once(self)

    def forward(self, tokens, **inputs):
        return self.lm_head(self.hidden(tokens, **inputs))

    def hidden(self, tokens, *, padding_mask=None, mask=None, caches=None, **inputs):
        """What the LM head reads, (b, t, m). `padding_mask` (b, k) is False at padding; `caches` one per layer.

        `padding_mask` holds booleans, or 0 and 1 as tokenizers give them. Padding may always stand behind a text, in
        front of it where nothing counts places from the first, and between tokens where nothing counts distances;
        ValueError elsewhere.
        `mask` is a Mask of this batch alone, which joins the configuration's: pairs both allow are attended.
        `inputs` go to every block, where blocks of another kind take some.
        """
        x, layers = self.embedded(tokens, padding_mask, mask, caches, inputs)
        stream = self.residual.enter(x)
        stream = self.residual.run(stream, layers)
        return self.normed(stream, padding_mask)

    def exits(self, tokens, *, padding_mask=None, mask=None, caches=None, **inputs):
        """Logits (b, t, d_out) after the first block, the second, ... the last: who stops asking saves the rest."""
        x, layers = self.embedded(tokens, padding_mask, mask, caches, inputs)
        stream = self.residual.enter(x)
        for layer in layers:
            stream = self.residual.run(stream, [layer])
            yield self.lm_head(self.normed(stream, padding_mask))

    def embedded(self, tokens, padding_mask, mask, caches, inputs):
        """The embedded tokens (b, t, m), and a pair (block, its inputs) for every layer."""
        start = caches[0].length if caches else 0
        if padding_mask is not None:
            padding_mask = padding_mask.bool()
            self._check_padding(padding_mask)
        length = tokens.shape[1]
        context = AttentionContext(
            self.mask, length, start + length,
            batch=len(tokens), device=tokens.device, padding_mask=padding_mask, batch_mask=mask,
        )  # fmt: skip
        if padding_mask is not None:
            inputs = {"norm_padding_mask": padding_mask} | inputs
        layers = [
            (block, block.mixer.inputs(context) | {"cache": cache} | inputs)
            for block, cache in zip(self.blocks, caches or [None] * len(self.blocks), strict=True)
        ]
        return self.position.at_input(self.embedding(tokens), start), layers

    def _check_padding(self, padding_mask):
        """ValueError where padding (b, k) would change what the tokens behind it are told of their places."""
        before = padding_mask.cumsum(1) > 0  # a token stands there, or before
        if not (padding_mask[:, 1:] & ~padding_mask[:, :-1]).any():
            return
        parts = [self.position, self.mask, *(block.mixer for block in self.blocks)]
        if counting := [type(part).__name__ for part in parts if part.by_place]:
            raise ValueError(f"{counting[0]} counts places from the first: padding must come last")
        between = (padding_mask[:, 1:] & ~padding_mask[:, :-1] & before[:, :-1]).any()
        if between and (counting := [type(part).__name__ for part in parts[1:] if part.by_distance]):
            raise ValueError(f"{counting[0]} counts the distance of tokens: no padding may stand between them")

    def normed(self, stream, padding_mask):
        """What the LM head reads of the stream behind a block, (b, t, m)."""
        with leaving_out(padding_mask, self.norm):
            return self.norm(self.residual.leave(stream))

    def output_projection_weights(self):
        """Weights of the maps whose output is added to the stream: W_O and W_2 of every block (of all its experts)."""
        maps = dict.fromkeys(
            m for block in self.blocks for m in (*block.mixer.output_projections(), *block.ffn.output_projections())
        )
        return [m.weight for m in maps if isinstance(m, nn.Linear | nn.Conv1d)]

    def random_inputs(self, batch):
        """What the blocks read besides the tokens, drawn from N(0, 1), by name."""
        return {}

    def caches(self, batch, context=None):
        """Empty caches, one a layer, for `context` positions (default the configuration's)."""
        weight, context = self.embedding.weight, context or self.config.context
        like = {"device": weight.device, "dtype": weight.dtype}
        return [block.mixer.empty(batch, context, **like) for block in self.blocks]

    @torch.no_grad()
    def generate(self, tokens, n, *, temperature=1.0, generator=None, padding_mask=None):
        """tokens (b, t) continued by n more, (b, t + n), without dropout; temperature 0 takes the likeliest.

        Shorter prompts are padded in front, where `padding_mask` (b, t) is False. ValueError for a mask that is not
        causal, an empty prompt, a negative temperature, and a prompt that ends in padding.
        """
        if not self.mask.causal:
            raise ValueError(f"mask {self.config.mask!r} is not causal: earlier tokens would have to be read again")
        if not tokens.shape[1]:
            raise ValueError("the prompt is empty: give one token at least")
        if temperature < 0:
            raise ValueError(f"temperature is 0 or more, got {temperature}")
        padded = {}
        if padding_mask is not None:
            if not padding_mask[:, -1].all():
                raise ValueError("a prompt ends in padding: pad prompts in front")
            padded = {"padding_mask": padding_mask.bool()}
        caches, logits = self.caches(len(tokens), tokens.shape[1] + n), None
        with evaluated(self):
            for _ in range(n):
                logits = self(tokens if logits is None else tokens[:, -1:], caches=caches, **padded)[:, -1]
                padded = {name: F.pad(mask, (0, 1), value=True) for name, mask in padded.items()}
                if temperature == 0:
                    new = logits.argmax(-1, keepdim=True)
                else:
                    new = torch.multinomial((logits / temperature).softmax(-1), 1, generator=generator)
                tokens = torch.cat([tokens, new], dim=1)
        return tokens
