"""A model is trained once for all who ask, again when what made it changed, and is the same to the last bit.

Of `lab.trials.models` and `lab.trials.rng`: the zoo is how they are used.
"""

import json
import shutil
import subprocess
import sys
import textwrap
from functools import partial

import pytest
import torch

from lab import trace, training, zoo
from lab.models import ModelConfig
from lab.recipes import reference
from lab.recipes.byte_model import byte_model, validation_loss
from lab.tasks.code import Code
from lab.tasks.corpus import HASH
from lab.tasks.recall import MQAR
from lab.training import TrainConfig
from lab.trials import arithmetic, models
from lab.trials import sweep as trials
from lab.trials.files import file_hash
from lab.trials.run import run_trial

NEEDED = 3  # steps of a training


def total(seed, factor):
    """A trial that asks the zoo; only its measurement depends on the factor."""
    model = zoo.model(*small(), seed)
    return {"value": factor * sum(p.double().sum().item() for p in model.parameters()), "drawn": torch.rand(()).item()}


def small(dropout=0.1):
    task = MQAR()
    residual = {"kind": "post", "dropout": dropout}
    config = ModelConfig(vocab_size=task.vocabulary, block_size=task.length, d_model=16, n_layers=1, residual=residual)
    return config, task, TrainConfig(steps=NEEDED, batch=4)


@pytest.fixture
def trained(monkeypatch):
    """A list that gets an entry for every training in this process."""
    calls, fit = [], zoo.fit
    monkeypatch.setattr(zoo, "fit", lambda *args, **options: calls.append(1) or fit(*args, **options))
    return calls


@pytest.fixture
def sources(tmp_path):
    return trials.Sources("n", store=tmp_path)


def bits(model):
    return training.digest(*model.state_dict().values())


def test_two_trials_and_a_cell_train_one_model(sources, tmp_path, trained, monkeypatch):
    used = []
    first = trials.sweep(total, {"seed": [0, 1], "factor": [1, 2]}, sources=sources, used=used)
    assert len(trained) == 2 and (first.value[1], first.value[3]) == (2 * first.value[0], 2 * first.value[2])
    monkeypatch.setattr(models, "home", tmp_path)
    model = zoo.model(*small(), seed=1)
    assert len(trained) == 2 and sum(p.double().sum().item() for p in model.parameters()) == first.value[2]
    assert not model.training and model.run["parameters"] == sum(p.numel() for p in model.parameters())
    kept = [each.body for each in used]
    assert [len(body["curve"]) for body in kept] == [NEEDED] * 4 and kept[0]["batch"] == kept[1]["batch"] != ""
    assert "Residual.post" in kept[1]["kinds"] and kept[0]["kinds"] == kept[1]["kinds"]
    assert kept[1]["seconds"] > 0.1 * kept[0]["seconds"], "seconds of a trial hold its training"


def test_it_makes_no_difference_whether_a_model_was_kept(sources, trained):
    used = []
    trials.sweep(total, {"seed": [0], "factor": [1, 2]}, sources=sources, used=used)
    for each in used:  # as `lab verify` runs it
        again = run_trial(total, each.body["parameters"], device="cpu", threads=1)
        assert {name: again[name] for name in ("columns", "curve", "batch")} == {
            name: each.body[name] for name in ("columns", "curve", "batch")
        }
        assert sorted(again["kinds"]) == sorted(each.body["kinds"])
    assert len(trained) == 3, "one for the store, none of it for the checks"


def test_out_of_time_a_check_leaves_the_training_of_its_model():
    outcome = run_trial(total, {"seed": 0, "factor": 1}, device="cpu", threads=1, until=0)
    assert outcome == {"curve": [], "batch": ""}


def test_weights_are_those_of_a_training_to_the_last_bit(sources, tmp_path, trained, monkeypatch):
    monkeypatch.setattr(models, "home", tmp_path)
    config, task, schedule = small(dropout=0.0)
    alone = zoo.Transformer(config, seed=3)
    with models.as_in_a_trial():
        training.train(alone, task.batch, schedule, seed=3)
    new, kept, other = (zoo.model(config, task, schedule, seed) for seed in (3, 3, 4))
    assert bits(new) == bits(kept) == bits(alone) != bits(other) and len(trained) == 2
    new.embedding.weight.data.zero_()
    assert bits(zoo.model(config, task, schedule, 3)) == bits(alone), "everyone has a model of their own"


def test_random_numbers_go_on_as_if_nothing_had_been_trained(tmp_path, trained, monkeypatch):
    monkeypatch.setattr(models, "home", tmp_path)
    torch.manual_seed(5)
    expected = torch.rand(2)
    found = []
    for seed in (7, 7):  # trained, then kept
        torch.manual_seed(seed - 2)
        found.append((bits(zoo.model(*small(), 0)), *torch.rand(2).tolist()))
    assert found[0] == found[1] and list(found[0][1:]) == expected.tolist() and len(trained) == 1


def test_what_was_damaged_is_seen_and_trained_again(tmp_path, trained, monkeypatch):
    monkeypatch.setattr(models, "home", tmp_path)
    before = bits(zoo.model(*small(), 0))
    (weights,) = tmp_path.rglob("*.safetensors")
    weights.write_bytes(weights.read_bytes()[:-9])
    with pytest.warns(UserWarning, match="is damaged"):
        assert bits(zoo.model(*small(), 0)) == before
    assert len(trained) == 2
    assert bits(zoo.model(*small(), 0)) == before and len(trained) == 2, "it was mended"


def test_other_arguments_and_other_data_are_other_models(tmp_path, trained, monkeypatch):
    monkeypatch.setattr(models, "home", tmp_path / "store")
    text = tmp_path / "text.txt"
    text.write_text("one text " * 100)
    ask = partial(byte_model, 1, batch=2, context=16, corpus=str(text), d_model=16, n_layers=1)
    for arguments in (ask(), ask(learning_rate=0.1), ask(), ask(n_heads=2)):
        zoo.model(*arguments)
    assert len(trained) == 3
    text.write_text("another text " * 100)
    zoo.model(*ask())
    assert len(trained) == 4


def test_a_model_of_another_arithmetic_is_not_used(tmp_path, trained, monkeypatch):
    monkeypatch.setattr(models, "home", tmp_path)
    for digest, trainings in (("this", 1), ("another", 2), ("this", 2)):
        monkeypatch.setattr(arithmetic, "digest", lambda *_, digest=digest: digest)
        zoo.model(*small(), 0)
        assert len(trained) == trainings


def test_workers_share_models(sources, tmp_path):
    alone = trials.sweep(
        total, {"seed": [0], "factor": [1, 2, 3]}, sources=trials.Sources("n", store=tmp_path / "alone")
    )
    shared = trials.sweep(total, {"seed": [0], "factor": [1, 2, 3]}, sources=sources, jobs=2)
    assert shared.value.tolist() == alone.value.tolist()
    assert len(list((tmp_path / models.FOLDER).glob("*.safetensors"))) == 1


PACKAGE = """
    from lab import zoo
    from lab.models import ModelConfig
    from lab.tasks.recall import MQAR
    from lab.training import TrainConfig

    def asked(seed):
        task = MQAR()
        config = ModelConfig(vocab_size=task.vocabulary, block_size=task.length, d_model=16, n_layers=1)
        model = zoo.model(config, task, TrainConfig(steps=1, batch=4), seed)
        return {"value": float(model.embedding.weight.sum())}
"""


@pytest.mark.parametrize(
    "old, new, origin, again",
    [
        ("\n    model.train()\n", "\n    model.train()  # a remark\n", "store", 0),
        ("\n    model.train()\n", "\n    model.train()\n    model.train()\n", "run", 1),
    ],
)
def test_an_edit_of_the_code_of_training_trains_again(tmp_path, old, new, origin, again):
    lab = tmp_path / "lab"
    shutil.copytree(zoo.REFERENCE.parents[1], lab)  # with what is compiled, and its times
    (tmp_path / "asks.py").write_text(textwrap.dedent(PACKAGE))

    def run():
        command = [sys.executable, "-c", textwrap.dedent(SWEEP), str(tmp_path / "store")]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True, env=ENVIRONMENT).stdout

    assert run() == "run 1\n"
    code = (lab / "training.py").read_text()
    edited = code.replace(old, new, 1)
    assert edited != code
    (lab / "training.py").write_text(edited)
    assert run().endswith(f"{origin} {again}\n")
    assert len(list((tmp_path / "store" / models.FOLDER).glob("*.safetensors"))) == 1 + again


SWEEP = """
    import pathlib, sys
    from asks import asked
    from lab import zoo
    from lab.trials import sweep as trials
    calls, fit = [], zoo.fit
    zoo.fit = lambda *arguments, **options: calls.append(1) or fit(*arguments, **options)
    used = []
    trials.sweep(asked, {"seed": [0]}, sources=trials.Sources("n", store=pathlib.Path(sys.argv[1])), used=used)
    print(used[0].origin, len(calls))
"""
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "PATH": "/usr/bin:/bin"}


# The reference model


def test_the_reference_model_is_as_good_as_its_story_says():
    model = zoo.reference()
    story = model.story
    assert story["corpus"] == HASH, "the text of the lab is no longer the one that it read"
    loss = validation_loss(model, Code(story["config"]["block_size"]), story["windows"])
    assert loss == pytest.approx(story["validation_loss"], abs=1e-4) == story["curve"]["validation"][-1]
    assert loss < story["marks"]["4-gram"] - 0.2 < story["marks"]["trigram"] < story["marks"]["unigram"]
    assert sum(p.numel() for p in model.parameters()) == story["parameters"] and not model.training
    assert zoo.REFERENCE.stat().st_size < 4e6


def test_its_story_is_that_of_the_recipe_here():
    config, _, schedule = byte_model(**reference.SIZES)
    story = zoo.reference().story
    assert story["config"] == config.model_dump(exclude_unset=True)
    assert story["schedule"] == json.loads(schedule.model_dump_json()) and story["changes"] is False


def test_a_trial_that_reads_it_has_its_hash_and_no_file():
    with trace.touching() as touched:
        zoo.reference()
    assert touched.data == {"reference": file_hash(zoo.REFERENCE)} == {"reference": zoo.reference_hash()}


def test_weights_that_nobody_trained_are_refused(tmp_path, monkeypatch):
    for suffix in (".safetensors", ".json"):
        (tmp_path / f"model{suffix}").write_bytes(zoo.REFERENCE.with_suffix(suffix).read_bytes())
    monkeypatch.setattr(zoo, "REFERENCE", tmp_path / "model.safetensors")
    zoo.reference()
    raw = bytearray(zoo.REFERENCE.read_bytes())
    raw[-1] ^= 1
    zoo.REFERENCE.write_bytes(raw)
    with pytest.raises(ValueError, match="is not what was trained"):
        zoo.reference()
