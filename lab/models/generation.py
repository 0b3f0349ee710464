"""Early exit from a trained model (chapter §1.5)."""

import torch

from lab.models.gpt import eval_mode


@torch.no_grad()
def early_exit(model, tokens, confidence, **hidden):
    """(logits (b, t, d_out), depth (b, t)): each token exits at the first block that is confident.

    A token exits where the probability of its most likely class reaches `confidence`; the last
    block answers for the rest. Blocks run until all tokens have exited. There is no cache: tokens
    that have exited are still computed for the sake of later ones. The model runs in evaluation
    mode. Raises ValueError unless 0 <= confidence <= 1.
    """
    if not 0 <= confidence <= 1:
        raise ValueError(f"confidence is a probability, got {confidence}")
    answer = None
    depth = torch.zeros_like(tokens)
    with eval_mode(model):
        for block, logits in enumerate(model.exits(tokens, **hidden), start=1):
            sure = (depth == 0) & (logits.softmax(-1).amax(-1) >= confidence)
            answer = (
                logits if answer is None else torch.where((depth == 0)[..., None], logits, answer)
            )
            depth[sure] = block
            if depth.all():
                break
    depth[depth == 0] = block
    return answer, depth
