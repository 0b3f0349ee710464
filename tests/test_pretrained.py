"""Checkpoints of transformers: only safetensors are read, and code in a checkpoint is not executed."""

import builtins
import json
from types import SimpleNamespace

import matplotlib as mpl
import matplotlib.pyplot as plt
import pytest
import torch
from helpers import row_sum

from lab import charts
from lab.files import cells_of, notebook_of
from lab.measure.attention import attention_probe
from lab.pretrained import load

transformers = pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def original():
    torch.manual_seed(0)
    sizes = {"vocab_size": 40, "n_positions": 32, "n_embd": 16, "n_layer": 2, "n_head": 4}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, bos_token_id=0, eos_token_id=0)).eval()


@pytest.fixture
def checkpoint(tmp_path, original):
    original.save_pretrained(tmp_path / "tiny")
    return tmp_path / "tiny"


@pytest.fixture
def offline(monkeypatch):
    """All connections fail, as without a network."""
    import socket

    def refuse(*_, **__):
        raise OSError("no network")

    for function in ("getaddrinfo", "create_connection"):
        monkeypatch.setattr(socket, function, refuse)


def test_saved_checkpoint_loads_completely_and_can_be_probed(checkpoint, original, offline):
    model, tokenizer = load(checkpoint)
    assert tokenizer is None and not model.training
    tokens = torch.randint(0, 40, (2, 12), generator=torch.Generator().manual_seed(0))
    with torch.no_grad(), attention_probe([row_sum], keep_maps=True) as probe:
        logits = model(tokens).logits
        assert torch.equal(logits, original(tokens).logits)
    assert [tuple(m.shape) for m in probe.maps[:2]] == [(2, 4, 12, 12)] * 2
    assert probe.table().value.tolist() == pytest.approx([1] * len(probe.table()), abs=1e-5)


def test_tokenizer_in_the_checkpoint_folder_is_loaded(checkpoint, offline):
    tokenizers = pytest.importorskip("tokenizers")
    words = {word: i for i, word in enumerate(["<unk>", "to", "be", "or", "not"])}
    raw = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="<unk>"))
    raw.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    transformers.PreTrainedTokenizerFast(tokenizer_object=raw, unk_token="<unk>").save_pretrained(checkpoint)
    _, tokenizer = load(str(checkpoint))
    assert tokenizer("to be or not to be").input_ids == [1, 2, 3, 4, 1, 2]


def test_pickled_weights_raise_and_are_never_unpickled(checkpoint, original, offline, monkeypatch):
    (checkpoint / "model.safetensors").unlink()
    torch.save(original.state_dict(), checkpoint / "pytorch_model.bin")
    monkeypatch.setattr(torch, "load", lambda *_, **__: pytest.fail("a pickle was opened"))
    with pytest.raises(OSError, match=r"no file named model\.safetensors"):
        load(checkpoint)


def test_code_in_a_checkpoint_is_not_executed(checkpoint, offline):
    mark = checkpoint / "ran"
    (checkpoint / "modeling_own.py").write_text(f"open({str(mark)!r}, 'w')\n")
    config = json.loads((checkpoint / "config.json").read_text())
    config |= {
        "model_type": "own",
        "auto_map": dict.fromkeys(("AutoConfig", "AutoModelForCausalLM"), "modeling_own.Own"),
    }
    (checkpoint / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match="contains custom code"):
        load(checkpoint)
    assert not mark.exists()


def test_missing_transformers_error_says_how_to_install_it(monkeypatch, checkpoint):
    real = builtins.__import__

    def missing(name, *rest, **options):
        if name == "transformers":
            raise ModuleNotFoundError("No module named 'transformers'")
        return real(name, *rest, **options)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(ImportError, match=r"pip install 'transformer-lab\[pretrained\]'"):
        load(checkpoint)


def test_lesson_1_2_cells_plot_the_heads_of_a_loaded_checkpoint(tmp_path, offline):
    """The cells that show all heads of the reference model also work, unchanged, for another model."""
    torch.manual_seed(0)
    sizes = {"vocab_size": 256, "n_positions": 128, "n_embd": 16, "n_layer": 3, "n_head": 2}
    config = transformers.GPT2Config(**sizes, bos_token_id=0, eos_token_id=0)
    transformers.GPT2LMHeadModel(config).save_pretrained(tmp_path)
    cells = [source for kind, _, source in cells_of(notebook_of("1.2")) if kind == "code"]
    needed = ("import lab", "def one_hot_targets", "def copying_scores", "lab.pretrained", "num_embeddings")
    imports, looks, copies, shows, scores = (next(c for c in cells if word in c) for word in needed)
    drawn, said = [], []

    def play(plot, line):
        plot(line)
        drawn.append(plt.gcf())

    study = SimpleNamespace(
        play=play,
        say=lambda english, chinese, **values: said.append(values["score"]),
    )
    names = {"pretrained": str(tmp_path), "text": "ab \u4e2d", "study": study}
    with mpl.rc_context(charts.LOOK):
        for cell in (imports, looks, copies, shows, scores):
            exec(cell, names)
    (figure,) = drawn
    assert [axes.get_title(loc="left") for axes in figure.axes] == [
        "1 . 1",
        "1 . 2",
        "2 . 1",
        "2 . 2",
        "3 . 1",
        "3 . 2",
    ]
    assert [label.get_text() for label in figure.axes[-1].get_xticklabels()] == ["a", "b", charts.DOT, "\u4e2d"]
    assert 0.02 < said[0] < 0.06, "at random it looks anywhere"
