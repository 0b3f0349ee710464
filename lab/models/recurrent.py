"""A recurrent mixer: what a position is told of those before it is one vector, made step after step (Cho 2014)."""

from torch import nn

from lab.models.mixers import Mixer


class Gru(Mixer, kind="gru"):
    """A GRU of the width of the stream; decoding keeps its last output. Cho 2014 §2.3.

    x ── GRU ──      no W_O: its outputs, within -1..1, are added to the stream

    Its weights start as torch's do, uniform within ±1/sqrt(m), whatever the scheme of initialisation. It reads every
    position in turn: ValueError where there is padding.
    """

    def __init__(self, config, position):
        super().__init__(config, position)
        self.cell = nn.GRU(config.d_model, config.d_model, bias=config.bias, batch_first=True)

    def inputs(self, sight):
        if sight.real is not None:
            raise ValueError("Gru reads every position in turn: it takes no padding")
        return super().inputs(sight)

    def forward(self, x, cache=None):
        if cache is None:
            return self.cell(x)[0]
        out, last = self.cell(x, cache.tensors.get("output"))
        cache.tensors["output"] = last.detach()
        cache.length += x.shape[1]
        return out

    def state_bytes(self, length):
        return self.cell.hidden_size * self.cell.weight_hh_l0.element_size()

    def writers(self):
        return []
