"""What defines a model but its seed: one configuration, a word or a mapping for every seam."""

from pydantic import BaseModel, ConfigDict, model_validator

from lab import names
from lab.models.feedforward import FeedForward
from lab.models.heads import Heads
from lab.models.initialization import Initialization
from lab.models.lm_head import LMHead
from lab.models.masks import Mask
from lab.models.mixers import Mixer
from lab.models.norms import Norm
from lab.models.positions import Position
from lab.models.residuals import Residual
from lab.models.scores import Score

Choice = str | dict  # a kind, or {"kind": ..., its options}
SEAMS = {
    "mixer": Mixer, "position": Position, "mask": Mask, "score": Score, "heads": Heads, "ffn": FeedForward,
    "norm": Norm, "qk_norm": Norm, "residual": Residual, "lm_head": LMHead, "initialization": Initialization,
}  # fmt: skip


class ModelConfig(BaseModel):
    """Everything that defines a model but its seed. `n_heads`, `mixer` and `score` may be lists, an entry a layer."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    vocabulary: int
    context: int  # positions a learned encoding and a cache hold
    d_model: int = 64
    n_layers: int = 2
    unique_layers: int | None = None  # blocks with weights of their own, used in turn; default n_layers, ALBERT 1
    n_heads: int | list[int] = 4
    kv_heads: int | None = None  # key-value heads; default n_heads
    d_head: int | None = None  # default d_model / n_heads
    d_out: int | None = None  # classes of the LM head; default vocabulary
    bias: bool = False
    mixer: Choice | list[Choice] = "attention"
    position: Choice = "rotary"
    mask: Choice = "causal"
    score: Choice | list[Choice] = "softmax"
    heads: Choice = "full"
    ffn: Choice = "gelu"
    norm: Choice = "layernorm"
    qk_norm: Choice = "none"  # over the width of a head, before positions turn it
    residual: Choice = "pre"
    lm_head: Choice = "own"
    initialization: Choice = "fan-in"

    @model_validator(mode="before")
    @classmethod
    def _known(cls, values):
        return names.known_fields(cls, values)

    @model_validator(mode="after")
    def _fits(self):
        for field, seam in SEAMS.items():
            choice = getattr(self, field)
            for each in choice if isinstance(choice, list) else [choice]:
                seam.resolve(each)
        for field in ("vocabulary", "context", "d_model", "n_layers", "unique_layers", "n_heads", "kv_heads",
                      "d_head", "d_out"):  # fmt: skip
            sizes = getattr(self, field)
            if any(size is not None and size < 1 for size in (sizes if isinstance(sizes, list) else [sizes])):
                raise ValueError(f"{field} must be at least 1, got {sizes}")
        for field in ("n_heads", "mixer", "score"):
            value = getattr(self, field)
            if isinstance(value, list) and len(value) != self.n_layers:
                raise ValueError(f"{field} lists {len(value)} layers, n_layers is {self.n_layers}")
            if self.unique_layers is not None and isinstance(value, list):
                raise ValueError(f"shared layers have one {field}, not a list of them")
        if self.unique_layers is not None and self.n_layers % self.unique_layers:
            raise ValueError(f"unique_layers {self.unique_layers} does not divide n_layers {self.n_layers}")
        for heads in self.n_heads if isinstance(self.n_heads, list) else [self.n_heads]:
            if self.d_head is None and self.d_model % heads:
                raise ValueError(f"n_heads {heads} does not divide d_model {self.d_model}; give d_head, or change one")
            if self.kv_heads is not None and heads % self.kv_heads:
                raise ValueError(f"kv_heads {self.kv_heads} does not divide n_heads {heads}")
        return self

    @property
    def causal(self):
        return Mask.build(self.mask).causal

    def layer(self, i):
        """The configuration of layer i with every size a number: n_heads, kv_heads, d_head, d_out filled in."""
        n_heads, mixer, score = (
            value[i] if isinstance(value, list) else value for value in (self.n_heads, self.mixer, self.score)
        )
        return self.model_copy(
            update={
                "n_heads": n_heads,
                "mixer": mixer,
                "score": score,
                "kv_heads": self.kv_heads or n_heads,
                "d_head": self.d_head or self.d_model // n_heads,
                "d_out": self.d_out or self.vocabulary,
            }
        )
