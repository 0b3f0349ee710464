"""3D sinusoidal and hierarchical position encodings."""

import pytest
import torch
from helpers import close

from lab.models import ModelConfig
from lab.models.gpt import Position
from lab.models.positions import sinusoids


def codes(choice, n, d_model=32, context=8):
    config = ModelConfig(vocab_size=5, block_size=context, d_model=d_model, position=choice).layer(0)
    torch.manual_seed(0)
    return Position.build(choice, config).at_input(torch.zeros(1, n, d_model))[0].detach()


def test_3d_codes_encode_plane_row_and_column_in_separate_thirds():
    got = codes({"kind": "sinusoidal-3d", "rows": 3, "columns": 4}, 30).double()
    for t in range(30):
        plane, row, column = t // 12, t // 4 % 3, t % 4
        parts = [(plane, slice(0, 12)), (row, slice(12, 22)), (column, slice(22, 32))]
        for coordinate, part in parts:
            expected = sinusoids(torch.tensor([float(coordinate)], dtype=torch.float64), part.stop - part.start)[0]
            close(got[t, part], expected)
    assert len({tuple(code.tolist()) for code in got.float()}) == 30
    with pytest.raises(ValueError, match="at least 1"):
        codes({"kind": "sinusoidal-3d", "rows": 0}, 3)


def test_hierarchical_codes_extend_learned_positions_to_unit_squared():
    alpha, unit = 0.4, 6
    got = codes({"kind": "hierarchical", "unit": unit}, unit**2)
    torch.manual_seed(0)
    table = torch.nn.Embedding(unit, 32).weight.detach()
    close(got[:unit], table)
    assert (got[:, None] - got).norm(dim=-1).fill_diagonal_(1).min() > 0.1, "two positions share a code"
    grid = got.view(unit, unit, 32)
    close(
        grid[1:] - grid[:1], (grid[1:, :1] - grid[:1, :1]).expand(-1, unit, -1)
    )  # a unit adds the same offset to every position in it
    close((grid[1, 0] - grid[0, 0]) / alpha, (grid[0, 1] - grid[0, 0]) / (1 - alpha))
    with pytest.raises(ValueError, match="up to 6² = 36 positions, got 37"):
        codes({"kind": "hierarchical", "unit": unit}, 37)
    for wrong in (0, 0.5):
        with pytest.raises(ValueError, match="between 0 and 1/2"):
            codes({"kind": "hierarchical", "alpha": wrong}, 3)
