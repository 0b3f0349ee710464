"""Tables of facts."""

import torch

from lab.models import ModelConfig, Transformer
from lab.tasks.recall import Facts, recalled
from lab.training import TrainConfig, train


def test_facts_are_one_table_in_every_wording():
    task = Facts(subjects=5, relations=3, objects=4, wordings=2)
    x, y = task.batch(torch.Generator().manual_seed(0), 200)
    table = task.table()
    assert table.shape == (2, 15, 4)
    assert task.bits == 30
    assert int(x.max()) == task.vocabulary - 1
    assert torch.equal(table[0, :, 1:3], table[1, :, 1:3].flip(1))  # turned round
    told = {}
    for tokens, answer in zip(x.tolist(), y[:, -1].tolist(), strict=True):
        told.setdefault(tuple(sorted(tokens[1:3])), set()).add(answer)
    assert len(told) == 15
    assert all(len(answers) == 1 for answers in told.values())
    assert (y[:, :-1] == -100).all()
    assert not torch.equal(task.answers, Facts(subjects=5, relations=3, objects=4, table_seed=1).answers)


def test_a_small_model_learns_a_small_table_by_heart():
    task = Facts(subjects=6, relations=2, objects=8)
    model = Transformer(ModelConfig(vocab_size=task.vocabulary, block_size=4, d_model=32, n_layers=1, ffn="relu"))
    assert recalled(model, task).double().mean() < 0.6
    train(model, task.batch, TrainConfig(steps=150, batch=32, learning_rate=5e-3, warmup=10))
    assert recalled(model, task).all()
