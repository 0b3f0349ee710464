"""Position encodings that combine others: summed, one per layer, or randomized (chapter §1.3).

These kinds have other position encodings as options. Shape letters are as in positions.py.
"""

import torch
from torch import nn

from lab.models.gpt import Position


class Combined(Position):
    """Applies several encodings in order; their biases are added."""

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
        return self if parts == list(self.parts) else Combined(parts)

    def acts(self):
        return set().union(*(part.acts() for part in self.parts))


class Hybrid(Combined, kind="hybrid"):
    """Several encodings at once: embeddings and biases are added, rotations of q and k composed."""

    def __init__(self, config, *, parts=("sinusoidal", "alibi")):
        super().__init__(Position.build(part, config) for part in parts)


class ByLayer(Position, kind="by-layer"):
    """One encoding per layer: layer i uses entry i modulo the length of `layers`.

    An encoding that adds to the embeddings affects all layers, so it can only be the first entry.
    Raises ValueError for such an encoding in another entry.
    """

    def __init__(self, config, *, layers=("none", "rotary")):
        super().__init__(config)
        self.layers = nn.ModuleList(Position.build(layer, config) for layer in layers)
        for i, layer in enumerate(self.layers):
            if i and "at_input" in layer.acts():
                raise ValueError(
                    f"by-layer: {layers[i]!r} adds to the embeddings, so it must be entry 0, "
                    f"not entry {i}"
                )

    def at_input(self, x, start=0):
        return self.layers[0].at_input(x, start)

    def of_layer(self, i, layer):
        return self.layers[i % len(self.layers)].of_layer(i, layer)

    def acts(self):
        # the encodings that of_layer returns report the other hooks
        return {"at_input"} & self.layers[0].acts()


class Scattered(Position):
    """Applies `encoding` at random positions; `whole`, the Randomized encoding, draws them."""

    repeatable = False  # each training pass draws new positions

    def __init__(self, whole, encoding):
        nn.Module.__init__(self)
        self.whole = whole
        self.encoding = encoding

    def at_query_key(self, q, k, start=0):
        places = self.whole.places(start + q.shape[2])[start:]
        reach = self.whole.reach

        def spread(x):  # (b, h, q, d) to (b, h, reach, d)
            return x.new_zeros(*x.shape[:2], reach, x.shape[3]).index_copy(2, places, x)

        q, k = self.encoding.at_query_key(spread(q), spread(k))
        return q[:, :, places], k[:, :, places]

    def bias(self, q_len, k_len):
        bias = self.encoding.bias(self.whole.reach, self.whole.reach)
        places = self.whole.places(k_len)
        return None if bias is None else bias[:, places[k_len - q_len :]][:, :, places]

    def acts(self):
        return self.encoding.acts()


class Randomized(Scattered, kind="randomized"):
    """In training, each batch draws random increasing positions below `reach`. Ruoss 2023.

    tokens   c   a   f   b        positions in the first batch    1   4   5   9     of `reach` = 10
                                  positions in the second batch   0   2   3   7

    The wrapped `encoding` has `reach` positions, by default twice block_size. With gaps=False the
    positions are consecutive, and only the first is random (Kiyono 2021). Evaluation uses a fixed
    draw of block_size positions, stored with the weights; n tokens get the first n of them.
    `at_input` of `encoding` must add a vector per position that does not depend on the embeddings.
    Raises ValueError if `reach` is below block_size (0 stands for the default), and for sequences
    longer than block_size.
    """

    def __init__(self, config, *, encoding="learned", reach=None, gaps=True):
        Position.__init__(self, config)
        self.context = config.block_size
        self.reach = reach or 2 * config.block_size
        self.gaps = gaps
        if self.reach < self.context:
            raise ValueError(f"reach must be at least context {self.context}, got {self.reach}")
        self.encoding = Position.build(
            encoding, config.model_copy(update={"block_size": self.reach})
        )
        self.generator = torch.Generator().manual_seed(torch.initial_seed())
        self.register_buffer("fixed", self._draw(self.context))
        self.drawn = None

    @property
    def whole(self):
        return self

    def _draw(self, n):
        options = {"generator": self.generator, "device": "cpu"}
        if not self.gaps:
            return torch.arange(n, device="cpu") + torch.randint(self.reach - n + 1, (), **options)
        return torch.randperm(self.reach, **options)[:n].sort().values

    def places(self, n):
        """Positions of the first n tokens, (n,)."""
        return (self.fixed if self.drawn is None else self.drawn)[:n]

    def at_input(self, x, start=0):
        end = start + x.shape[1]
        if end > self.context:
            raise ValueError(
                f"randomized positions support up to {self.context} positions, got {end}"
            )
        self.drawn = self._draw(end).to(x.device) if self.training and start == 0 else None
        codes = self.encoding.at_input(x.new_zeros(1, self.reach, x.shape[2]))
        return x + codes[:, self.places(end)[start:]]

    def of_layer(self, i, layer):
        encoding = self.encoding.of_layer(i, layer.model_copy(update={"block_size": self.reach}))
        return self if encoding is self.encoding else Scattered(self, encoding)

    def acts(self):
        return {"at_input"} | self.encoding.acts()  # at_input draws the positions
