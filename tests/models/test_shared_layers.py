"""Layer sharing.

Tests `lab.models.gpt`.
"""

import pytest
import torch
from helpers import close, small_model, tokens

from lab.models.initialization import branch_weights, branches, output_projection_weights


def test_shared_layers_reuse_blocks_cyclically():
    own, shared, cycled = (small_model(n_layers=4, unique_layers=unique) for unique in (None, 1, 2))
    sizes = [sum(p.numel() for p in model.blocks.parameters()) for model in (own, shared, cycled)]
    assert sizes[0] == 4 * sizes[1] == 2 * sizes[2]
    with torch.no_grad():
        own.blocks.load_state_dict(cycled.blocks.state_dict())
        own.load_state_dict(cycled.state_dict(), strict=False)  # state_dict lists a shared tensor once
    close(own(tokens()), cycled(tokens()), 0)
    caches, steps = shared.caches(2), []
    for chunk in tokens().split(1, dim=1):
        steps.append(shared(chunk, caches=caches))
    close(torch.cat(steps, 1), shared(tokens()))
    for start in ("depth-scaled", "deepnorm", "t-fixup", "fixup"):
        model = small_model(n_layers=4, unique_layers=1, initialization=start)
        assert branches(model) == 8 and len(branch_weights(model)) == 4 and len(output_projection_weights(model)) == 2
    for wrong, message in (({"unique_layers": 3}, "divide"), ({"unique_layers": 1, "n_heads": [4] * 4}, "list")):
        with pytest.raises(ValueError, match=message):
            small_model(n_layers=4, **wrong)
