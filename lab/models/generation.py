"""A trained model at work: in evaluation mode, token by token with a cache, and left early (chapter
§1.5).
"""

import torch

from lab.models.gpt import eval_mode


@torch.no_grad()
def early_exit(model, tokens, confidence, **hidden):
    """(logits (b, t, d_out), depth (b, t)): each token's from the first block whose likeliest class
    has `confidence`.

    Blocks run until every token has its answer; the last one answers what is left. Without a cache,
    a token that left is still carried along for the later ones. Nothing is dropped out. ValueError
    unless confidence lies in 0..1.
    """
    if not 0 <= confidence <= 1:
        raise ValueError(f"confidence is a probability, got {confidence}")
    answer, depth = None, torch.zeros_like(tokens)
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
