"""The Transformer composed from one configuration: embeddings, blocks, logits (chapter §1.1)."""

from functools import partial

import torch
from torch import nn

from lab.models.attention import AttentionContext
from lab.models.config import ModelConfig
from lab.models.feedforward import FeedForward
from lab.models.generation import evaluated
from lab.models.initialization import Initialization
from lab.models.lm_head import LMHead
from lab.models.masks import Mask, padding_before_tokens, real_tokens
from lab.models.mixers import Mixer
from lab.models.norms import Norm, leaving_out
from lab.models.positions import Position
from lab.models.registry import GOES_BY
from lab.models.residuals import Residual
from lab.models.weights import NamedOnce


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


class Transformer(NamedOnce):
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
            self.residual.check(self.blocks)
            self.norm = Norm.build(config.norm if self.residual.final_norm else "none", config)
            self.lm_head = LMHead.build(config.lm_head, layers[0], self.embedding)
            Initialization.build(config.initialization)(self)

    def forward(self, tokens, **inputs):
        return self.lm_head(self.hidden(tokens, **inputs))

    def hidden(self, tokens, *, padding_mask=None, mask=None, caches=None, **inputs):
        """What the LM head reads, (b, t, m). `caches` are one per layer.

        `padding_mask` (b, k) is True or 1 at tokens, False or 0 at padding; k counts cached ones too.
        With padding a text gets the same outputs as without. ValueError names the part for which it
        would not: learned positions for padding in front, say, rotary ones for padding within.
        ValueError for caches under a mask that is not causal: what is kept saw no later token.
        `mask` is a Mask of this batch alone, which joins the configuration's: pairs both allow are attended.
        `inputs` go to every block, where blocks of another kind take some.
        """
        padding_mask = self.real_tokens(tokens, padding_mask, caches)
        x, layers = self.embedded(tokens, padding_mask, mask, caches, inputs)
        stream = self.residual.enter(x)
        stream = self.residual.run(stream, layers)
        return self.normed(stream, padding_mask)

    def exits(self, tokens, *, padding_mask=None, mask=None, caches=None, **inputs):
        """Logits (b, t, d_out) after the first block, the second, ... the last: who stops asking saves the rest."""
        padding_mask = self.real_tokens(tokens, padding_mask, caches)
        x, layers = self.embedded(tokens, padding_mask, mask, caches, inputs)
        stream = self.residual.enter(x)
        for layer in layers:
            stream = self.residual.run(stream, [layer])
            yield self.lm_head(self.normed(stream, padding_mask))

    def real_tokens(self, tokens, padding_mask, caches):
        """`padding_mask` as booleans (b, k), or None. ValueError as `hidden` says."""
        if padding_mask is None:
            return None
        known = caches[0].length if caches else 0
        padding_mask = real_tokens(padding_mask, (len(tokens), known + tokens.shape[1]))
        in_front, between = padding_before_tokens(padding_mask)
        for part, goes_by in self.goes_by().items() if in_front else ():
            if goes_by == "place":
                raise ValueError(f"{part} counts places from the first: padding must come last")
            if goes_by == "distance" and between:
                raise ValueError(f"{part} counts distances: padding must not stand between tokens")
        return padding_mask

    def goes_by(self):
        """{part, in words: a word of registry.GOES_BY}."""
        found = {f"mask {self.config.mask!r}": self.mask.goes_by}
        if "at_input" in self.position.acts():
            found[f"position {self.config.position!r}"] = "place"
        for block in self.blocks:
            for part, goes_by in block.mixer.goes_by().items():
                found[part] = max(found.get(part, goes_by), goes_by, key=GOES_BY.index)
        return found

    def embedded(self, tokens, padding_mask, mask, caches, inputs):
        """The embedded tokens (b, t, m), and a pair (block, its inputs) for every layer."""
        start = caches[0].length if caches else 0
        if caches and not self.mask.causal:
            raise ValueError(f"a cache needs a causal mask, not {self.config.mask!r}")
        x = self.position.at_input(self.embedding(tokens), start)  # may draw what other hooks use
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
        return x, layers

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
        """tokens (b, t) continued by n more, (b, t + n), without dropout.

        Temperature 0 takes the likeliest. Prompts of several lengths are padded in front:
        `padding_mask` (b, t) is True or 1 at their tokens. ValueError for an empty prompt, n or a
        temperature below 0, padding that is not in front, and a mask that is not causal.
        """
        if tokens.shape[1] == 0:
            raise ValueError("a prompt must have a token to begin with")
        if n < 0:
            raise ValueError(f"n is a number of tokens, got {n}")
        if not temperature >= 0:
            raise ValueError(f"temperature must be 0 or above, got {temperature}")
        if padding_mask is not None:
            padding_mask = real_tokens(padding_mask, tokens.shape)
            if not padding_mask[:, -1].all() or padding_before_tokens(padding_mask)[1]:
                raise ValueError("prompts must be padded in front alone, none behind or within")
        caches, logits = self.caches(len(tokens), tokens.shape[1] + n), None
        with evaluated(self):
            for _ in range(n):
                new = tokens if logits is None else tokens[:, -1:]
                logits = self(new, caches=caches, padding_mask=padding_mask)[:, -1]
                if temperature == 0:
                    new = logits.argmax(-1, keepdim=True)
                else:
                    new = torch.multinomial((logits / temperature).softmax(-1), 1, generator=generator)
                tokens = torch.cat([tokens, new], dim=1)
                if padding_mask is not None:
                    padding_mask = nn.functional.pad(padding_mask, (0, 1), value=True)
        return tokens
