"""From the stream to logits: a matrix of its own, or the table of the embedding again (chapter §1.1.1)."""

from torch import nn

from lab.models.registry import Seam


class LMHead(nn.Linear, Seam):
    """(b, t, m) -> logits (b, t, d_out)."""

    def __init__(self, config, embedding):
        super().__init__(config.d_model, config.d_out, bias=False)
        self.follow(embedding)

    def follow(self, embedding):
        """Told which embedding the model has."""


LMHead.kinds["own"] = LMHead


class Tied(LMHead, kind="tied"):
    """The embedding's own weight: a token's logit is the product of the stream with its vector. Press & Wolf 2017.

    The scheme of initialisation gives it the spread of a matrix, not of an embedding. ValueError where the outputs are
    not the tokens.
    """

    def __init__(self, config, embedding):
        if config.d_out != config.vocabulary:
            raise ValueError(f"a tied LM head gives a logit a token: d_out {config.d_out} must be {config.vocabulary}")
        super().__init__(config, embedding)

    def follow(self, embedding):
        self.weight = embedding.weight
