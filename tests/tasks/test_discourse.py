import pytest
import torch

from lab.tasks.discourse import Pronouns


def test_the_pronoun_means_the_name_of_its_kind_and_both_names_stand_before_it():
    task = Pronouns()
    tokens, targets = task.batch(torch.Generator().manual_seed(0), 400)
    assert tokens.max() < task.vocabulary and (targets[:, :-1] == -100).all()
    for row, answer in zip(tokens, targets[:, -1], strict=True):
        women, men = row[row < 8], row[(row >= 8) & (row < 16)]
        assert len(women) == len(men) == 1 and row[-1] in (16, 17)
        assert answer == (women[0] if row[-1] == 16 else men[0])


def test_the_nearer_name_tells_nothing():
    tokens, targets = Pronouns().batch(torch.Generator().manual_seed(1), 4000)
    nearer = torch.stack([row[row < 16][-1] for row in tokens])
    assert 0.46 < (nearer == targets[:, -1]).double().mean() < 0.54


@pytest.mark.parametrize("wrong", [{"others": 0}, {"length": 2}])
def test_a_text_has_room_for_two_names_and_a_pronoun(wrong):
    with pytest.raises(ValueError, match="at least one other word and three tokens"):
        Pronouns(**wrong)
