"""Position encodings made of others: added up, one for each layer, or with tokens spread over more
places (§1.3).

Letters as in positions.py. Each takes other kinds as options, so that whatever is registered can be
combined.
"""

import torch
from torch import nn

from lab.models.gpt import Position


class Together(Position):
    """The encodings `parts` at once."""

    def __init__(self, parts):
        nn.Module.__init__(self)
        self.parts = nn.ModuleList(parts)

    def at_input(self, x, start=0):
        for part in self.parts:
            x = part.at_input(x, start)
        return x

    def at_query_key(self, q, k, start=0):
        for part in self.parts:
            q, k = part.at_query_key(q, k, start)
        return q, k

    def bias(self, q_len, k_len):
        biases = [bias for part in self.parts if (bias := part.bias(q_len, k_len)) is not None]
        return sum(biases) if biases else None

    def of_layer(self, i, layer):
        parts = [part.of_layer(i, layer) for part in self.parts]
        return self if parts == list(self.parts) else Together(parts)

    def acts(self):
        return set().union(*(part.acts() for part in self.parts))


class Hybrid(Together, kind="hybrid"):
    """Several encodings at once: codes and biases add up, queries and keys are turned by one after
    the other.
    """

    def __init__(self, config, *, parts=("sinusoidal", "alibi")):
        super().__init__(Position.build(part, config) for part in parts)


class ByLayer(Position, kind="by-layer"):
    """An encoding for each layer, `layers` over and over: layer i has the one at i modulo their
    number.

    What is added to the embeddings is there once for all layers, so only the first may be of that
    kind (ValueError).
    """

    def __init__(self, config, *, layers=("none", "rotary")):
        super().__init__(config)
        self.layers = nn.ModuleList(Position.build(layer, config) for layer in layers)
        for i, layer in enumerate(self.layers):
            if i and "at_input" in layer.acts():
                raise ValueError(
                    f"by-layer: {layers[i]!r} acts at the input, so it can only come first, not at {i}"
                )

    def at_input(self, x, start=0):
        return self.layers[0].at_input(x, start)

    def of_layer(self, i, layer):
        return self.layers[i % len(self.layers)].of_layer(i, layer)

    def acts(self):
        return {"at_input"} & self.layers[
            0
        ].acts()  # what else is done, the encodings of its layers do


class Spread(Position):
    """`encoding` of tokens that stand on the places that `whole` has drawn."""

    repeatable = False  # another pass, in training, draws other places

    def __init__(self, whole, encoding):
        nn.Module.__init__(self)
        self.whole, self.encoding = whole, encoding

    def at_query_key(self, q, k, start=0):
        places, reach = self.whole.places(start + q.shape[2])[start:], self.whole.reach

        def spread(x):  # (b, h, q, d) to (b, h, reach, d)
            return x.new_zeros(*x.shape[:2], reach, x.shape[3]).index_copy(2, places, x)

        q, k = self.encoding.at_query_key(spread(q), spread(k))
        return q[:, :, places], k[:, :, places]

    def bias(self, q_len, k_len):
        bias, places = (
            self.encoding.bias(self.whole.reach, self.whole.reach),
            self.whole.places(k_len),
        )
        return None if bias is None else bias[:, places[k_len - q_len :]][:, :, places]

    def acts(self):
        return self.encoding.acts()


class Randomized(Spread, kind="randomized"):
    """In training n tokens stand on n of `reach` places, drawn anew for each batch, in order.

    Ruoss 2023.

    tokens   c   a   f   b        places of the first batch   1   4   5   9     of `reach` = 10
                                  of the second               0   2   3   7

    Any `encoding` then sees `reach` places, twice the context by default. `gaps` False keeps tokens
    together and draws the place of the first (Kiyono 2021). A model in evaluation has one draw of
    `context` places, of which a text takes the first. That draw follows from the seed of the model,
    and a checkpoint does not hold it: ValueError where one of another seed is loaded. What
    `encoding` does at the input must be to add.
    """

    def __init__(self, config, *, encoding="learned", reach=None, gaps=True):
        Position.__init__(self, config)
        self.context, self.reach, self.gaps = config.context, reach or 2 * config.context, gaps
        if self.reach < self.context:
            raise ValueError(f"reach must be at least context {self.context}, got {self.reach}")
        self.encoding = Position.build(encoding, config.model_copy(update={"context": self.reach}))
        self.seed = torch.initial_seed()
        self.generator = torch.Generator().manual_seed(self.seed)
        self.register_buffer("fixed", self._draw(self.context), persistent=False)
        self.drawn = None

    @property
    def whole(self):
        return self

    def _draw(self, n):
        options = {"generator": self.generator, "device": "cpu"}
        if not self.gaps:
            return torch.arange(n, device="cpu") + torch.randint(self.reach - n + 1, (), **options)
        return torch.randperm(self.reach, **options)[:n].sort().values

    def _apply(self, fn, recurse=True):
        """What moves a module; here the places of evaluation are drawn anew, the same ones."""
        super()._apply(fn, recurse)
        mine, self.generator = self.generator, torch.Generator().manual_seed(self.seed)
        self.fixed, self.generator = self._draw(self.context).to(self.fixed.device), mine
        return self

    def _save_to_state_dict(self, destination, prefix, keep_vars):
        super()._save_to_state_dict(destination, prefix, keep_vars)
        drawn = {"seed": self.seed, "of": (self.context, self.reach, self.gaps)}
        destination._metadata[prefix[:-1]]["drawn"] = drawn

    def _load_from_state_dict(self, state, prefix, local_metadata, *rest):
        drawn, mine = local_metadata.get("drawn"), (self.context, self.reach, self.gaps)
        if drawn is not None and drawn["of"] == mine and drawn["seed"] != self.seed:
            raise ValueError(
                f"randomized positions follow from the seed: these weights are of {drawn['seed']}, "
                f"this model is of {self.seed}; build it with that seed"
            )
        super()._load_from_state_dict(state, prefix, local_metadata, *rest)

    def places(self, n):
        """Where the first n tokens stand, (n,)."""
        return (self.fixed if self.drawn is None else self.drawn)[:n]

    def at_input(self, x, start=0):
        end = start + x.shape[1]
        if end > self.context:
            raise ValueError(
                f"randomized positions end at context {self.context}, {end} are needed"
            )
        self.drawn = self._draw(end).to(x.device) if self.training and start == 0 else None
        codes = self.encoding.at_input(x.new_zeros(1, self.reach, x.shape[2]))
        return x + codes[:, self.places(end)[start:]]

    def of_layer(self, i, layer):
        encoding = self.encoding.of_layer(i, layer.model_copy(update={"context": self.reach}))
        return self if encoding is self.encoding else Spread(self, encoding)

    def acts(self):
        return {"at_input"} | self.encoding.acts()  # where places are drawn
