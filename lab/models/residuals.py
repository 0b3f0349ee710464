"""Where norm and skip stand around a branch, attention or feed-forward (chapter §1.5.3)."""

from torch import nn

from lab.models.norms import Norm
from lab.models.seams import Seam


class Residual(nn.Module, Seam):
    """No norm on the way.

    x ──┬── branch ── + ──
        └─────────────┘
    """

    final_norm = False  # True where the stream itself is never normalised on the way

    def __init__(self, config):
        super().__init__()

    def forward(self, x, branch):
        return x + branch(x)


Residual.kinds["plain"] = Residual


class Pre(Residual, kind="pre"):
    """The norm inside the branch, and one at the end of the stack. Xiong 2020.

    x ──┬── norm ── branch ── + ──
        └─────────────────────┘
    """

    final_norm = True

    def __init__(self, config):
        super().__init__(config)
        self.norm = Norm.build(config.norm, config)

    def forward(self, x, branch):
        return x + branch(self.norm(x))


class Post(Residual, kind="post"):
    """The norm on the stream. Vaswani 2017.

    x ──┬── branch ── + ── norm ──
        └─────────────┘
    """

    def __init__(self, config):
        super().__init__(config)
        self.norm = Norm.build(config.norm, config)

    def forward(self, x, branch):
        return self.norm(x + branch(x))
