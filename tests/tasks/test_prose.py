"""Windows of docstrings and of code: each lies where it says, and validation is new text of both kinds."""

import pytest
import torch

from lab.tasks.code import ProseAndCode
from lab.tasks.corpus import read_corpus, split


@pytest.fixture
def task(tmp_path):
    """A corpus in which small letters stand in docstrings and capitals in code."""
    generator = torch.Generator().manual_seed(0)

    def letters(first, size):
        return bytes((torch.randint(26, (size,), generator=generator) + ord(first)).tolist())

    for i in range(60):
        text = b"".join(letters("A", 150) + b'"""' + letters("a", 150) + b'"""' for _ in range(4))
        (tmp_path / f"file_{i:02}.py").write_bytes(text)
    return ProseAndCode(16, str(tmp_path))


def kinds_of(tokens):
    """How many windows hold small letters alone, and how many capitals and ends of lines alone."""
    texts = [bytes(row) for row in tokens.tolist()]
    return sum(text.islower() and b"\n" not in text for text in texts), sum(text.isupper() for text in texts)


def test_a_window_lies_inside_docstrings_or_touches_none(task):
    tokens, targets = task.batch(torch.Generator().manual_seed(1), 400)
    prose, code = kinds_of(torch.cat([tokens, targets[:, -1:]], 1))
    assert prose + code == 400 and 150 < prose < 250, "as a coin falls"
    assert torch.equal(tokens[:, 1:], targets[:, :-1])


@pytest.mark.parametrize("size", [40, 41])
def test_validation_holds_prose_first_then_as_much_code_and_none_of_the_training_text(task, size):
    tokens = task.validation(size)[0]
    assert len(tokens) == size and kinds_of(tokens[: size // 2]) == (size // 2, 0)
    assert kinds_of(tokens[size // 2 :]) == (0, size - size // 2)
    known = b"\n".join(split(read_corpus(task.path)[0])[0].values())
    assert not any(bytes(row) in known for row in tokens.tolist())


def test_a_text_without_docstrings_has_no_windows_of_prose(tmp_path):
    for i in range(30):
        (tmp_path / f"file_{i:02}.py").write_text("".join(f"value_{i}_{j} = {i * j}\n" for j in range(40)), "utf-8")
    with pytest.raises(ValueError, match="of 4 validation windows of one kind"):
        ProseAndCode(16, str(tmp_path)).validation(8)
