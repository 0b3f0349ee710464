"""A block of different tokens, repeated."""

import pytest
import torch

from lab.tasks.blocks import Blocks


def test_blocks_repeat_different_tokens():
    task = Blocks(vocabulary=32)
    tokens, targets = task.batch(torch.Generator().manual_seed(1), 5)
    assert tokens.shape == targets.shape == (5, 100) and task.length == 100
    block = tokens[:, :25]
    assert all(len(set(row.tolist())) == 25 for row in block) and tokens.equal(block.repeat(1, 4))
    assert (
        (targets[:, :25] == -100).all()
        and targets[:, 25:-1].equal(tokens[:, 26:])
        and targets[:, -1].equal(block[:, 0])
    )
    assert len({tuple(row.tolist()) for row in block}) == 5
    for wrong in ({"vocabulary": 24}, {"vocabulary": 32, "repeats": 1}, {"vocabulary": 32, "period": 0}):
        with pytest.raises(ValueError, match="period <= vocabulary"):
            Blocks(**wrong)
