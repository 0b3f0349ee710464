"""From the stream to logits: a matrix of its own, or the table of the embedding again (chapter
§1.1.1).
"""

from lab.models.gpt import LMHead


class Tied(LMHead, kind="tied"):
    """The embedding's own weight: a token's logit is the product of the stream with its vector.

    Press & Wolf 2017.

    The scheme of initialisation gives it the spread of a matrix, not of an embedding. ValueError
    where the outputs are not the tokens.
    """

    def __init__(self, config, embedding):
        if config.d_out != config.vocabulary:
            raise ValueError(
                f"a tied LM head gives a logit a token: d_out {config.d_out} must be {config.vocabulary}"
            )
        super().__init__(config, embedding)

    def follow(self, embedding):
        self.weight = embedding.weight
