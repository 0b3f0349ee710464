"""An LM head that is tied to the token embedding (chapter §1.1.1)."""

from lab.models.gpt import LMHead


class Tied(LMHead, kind="tied"):
    """LM head that shares the weight of the token embedding. Press & Wolf 2017.

    Initialization schemes treat the shared weight as a matrix, not as an embedding. Raises
    ValueError if d_out differs from vocab_size.
    """

    def __init__(self, config, embedding):
        if config.d_out != config.vocab_size:
            raise ValueError(
                f"a tied LM head has one logit per token: d_out {config.d_out} must be "
                f"{config.vocab_size}"
            )
        super().__init__(config, embedding)
        self.weight = embedding.weight
