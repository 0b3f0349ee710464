"""Tasks against answers worked out by hand or by brute force, and gold labels against snippets that show every case."""

import sysconfig
from pathlib import Path

import pytest
import torch

from lab.tasks.code import KINDS, Code, annotate, read_corpus, split
from lab.tasks.sequences import ConjunctiveLookup, Lookup, accuracy


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


TASKS = [Lookup(), Lookup(offsets=(2, 40), length=9, vocabulary=5), ConjunctiveLookup(), ConjunctiveLookup(2, 5, 3),
         Code(context=16)]  # fmt: skip


@pytest.mark.parametrize("task", TASKS, ids=str)
def test_a_batch_depends_on_its_generator_alone(task):
    torch.manual_seed(0)
    first = task.batch(generator(1), 4)
    before = torch.get_rng_state()
    again, other = task.batch(generator(1), 4), task.batch(generator(2), 4)
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not torch.equal(first[0], other[0])
    stream = generator(1)
    task.batch(stream, 4)
    assert not torch.equal(task.batch(stream, 4)[0], first[0]), "the second batch is another one"


@pytest.mark.parametrize("task", TASKS, ids=str)
def test_tokens_and_targets_are_in_the_vocabulary(task):
    tokens, targets = task.batch(generator(), 50)
    assert tokens.dtype == targets.dtype == torch.int64
    assert tokens.shape == targets.shape[:2]
    assert tokens.min() >= 0 and tokens.max() < task.vocabulary
    answers = targets[targets != -100]
    assert len(answers) and answers.min() >= 0 and answers.max() < task.vocabulary
    assert len(tokens[:, 0].unique()) > 1 and len(answers.unique()) > 1


# Sequences


@pytest.mark.parametrize("offsets", [(1,), (1, 3), (4, 2, 7), (3, 40)])
def test_lookup_answers_with_the_tokens_at_its_offsets(offsets):
    task = Lookup(offsets=offsets, vocabulary=7, length=12)
    tokens, targets = task.batch(generator(), 20)
    assert tokens.shape == (20, 12) and targets.shape == (20, 12, len(offsets))
    assert task.d_out == 7 * len(offsets)
    for b in range(20):
        for t in range(12):
            for i, offset in enumerate(offsets):
                assert targets[b, t, i] == (tokens[b, t - offset] if t >= offset else -100)


@pytest.mark.parametrize("task", [ConjunctiveLookup(), ConjunctiveLookup(subjects=2, predicates=5, values=3)], ids=str)
def test_exactly_one_item_matches_the_query_and_holds_the_answer(task):
    tokens, targets = task.batch(generator(), 50)
    pairs = [(s, p) for s in range(task.subjects) for p in range(task.predicates)]
    meaning = [(pair, value) for pair in pairs for value in range(task.values)] + [(pair, None) for pair in pairs]
    assert len(meaning) == task.vocabulary and tokens.shape == (50, task.length) == (50, len(pairs) + 1)
    places = set()
    for row, target in zip(tokens.tolist(), targets.tolist(), strict=True):
        *items, (query, nothing) = (meaning[token] for token in row)
        assert nothing is None and all(value is not None for _, value in items)
        assert sorted(pair for pair, _ in items) == pairs, "every pair once"
        assert target[:-1] == [-100] * len(items)
        assert [target[-1]] == [value for pair, value in items if pair == query], "one match, and it is the answer"
        halves = [(pair[0] == query[0]) + (pair[1] == query[1]) for pair, _ in items]
        assert halves.count(1) == task.subjects + task.predicates - 2, "the others tempt in one field at most"
        places.add(halves.index(2))
    assert len(places) > 5, "the answer stands anywhere"


def test_accuracy_counts_answers_only():
    targets = torch.tensor([[[0, 2], [-100, 1]]])
    logits = torch.zeros(1, 2, 2, 3)
    for t, i, winner in ((0, 0, 0), (0, 1, 1), (1, 0, 0), (1, 1, 1)):
        logits[0, t, i, winner] = 1
    assert accuracy(logits.flatten(2), targets) == pytest.approx(2 / 3)


# Text


@pytest.fixture
def folder(tmp_path):
    for i in range(40):
        text = f"# file {i}\nvalue_{i} = [{i}, ({i} + 1)]\n" * (i + 3)
        (tmp_path / f"module_{i:02}.py").write_text(text, "utf-8")
    return tmp_path


def test_the_standard_library_is_the_text_where_none_is_given():
    files, short_hash = read_corpus()
    assert "ast.py" in files and files["ast.py"] == (Path(sysconfig.get_paths()["stdlib"]) / "ast.py").read_bytes()
    assert sum(map(len, files.values())) > 5_000_000 and len(short_hash) == 12
    assert not [name for name in files if "site-packages" in name or {"test", "tests"} & set(name.split("/"))]


@pytest.mark.parametrize("path", ["standard library", "folder"])
def test_training_and_validation_share_no_file(path, folder):
    path = "" if path == "standard library" else str(folder)
    train, validation = split(path)
    files, _ = read_corpus(path)
    assert train | validation == files and not set(train) & set(validation)
    sizes = [sum(map(len, part.values())) for part in (train, validation)]
    assert 0 < sizes[1] < sizes[0]
    if not path:
        assert sizes[1] / sum(sizes) == pytest.approx(0.1, abs=0.05)


def test_the_split_of_a_file_stays_when_others_come_and_go(folder):
    before = set(split(str(folder))[1])
    (folder / "another.py").write_text("x = 1\n")
    read_corpus.cache_clear()
    split.cache_clear()
    assert set(split(str(folder))[1]) - {"another.py"} == before


def test_a_single_file_is_cut_in_two(tmp_path):
    text = bytes(range(256)) * 10
    (tmp_path / "all bytes.bin").write_bytes(text)
    task = Code(context=16, path=str(tmp_path / "all bytes.bin"))
    (train,), (validation,) = (part.values() for part in split(task.path))
    assert train + validation == text and len(train) == 2304
    assert task.batch(generator(), 3)[0].shape == (3, 16)


def test_targets_are_the_tokens_one_byte_on(folder):
    task = Code(context=16, path=str(folder))
    train, validation = (b"\n".join(part.values()) for part in split(task.path))
    for (tokens, targets), text in ((task.batch(generator(), 30), train), (task.validation(30), validation)):
        assert tokens.shape == targets.shape == (30, 16)
        assert torch.equal(tokens[:, 1:], targets[:, :-1])
        for row, target in zip(tokens.tolist(), targets.tolist(), strict=True):
            assert bytes([*row, target[-1]]) in text
    assert torch.equal(task.validation(30)[0], task.validation(30)[0])
    assert not torch.equal(task.validation(30)[0], task.validation(30, seed=1)[0])


def test_every_window_can_be_drawn_the_last_one_too(tmp_path):
    (tmp_path / "a").write_bytes(bytes(range(20)) * 2)
    task = Code(context=16, path=str(tmp_path / "a"), validation_share=0.5)
    starts = {tuple(row.tolist()) for row in task.batch(generator(), 200)[0]}
    assert starts == {tuple(range(i, i + 16)) for i in range(4)}


@pytest.mark.parametrize("path", ["no/such/folder", "/no/such/file.txt"])
def test_a_missing_text_is_named(path):
    with pytest.raises(FileNotFoundError, match=path):
        Code(path=path).batch(generator(), 1)


def test_too_short_a_text_is_named(tmp_path):
    (tmp_path / "tiny.txt").write_text("too short")
    with pytest.raises(ValueError, match="tiny.txt.*bytes, too few"):
        Code(path=str(tmp_path / "tiny.txt")).batch(generator(), 1)


def test_the_hash_changes_with_content_and_with_names(folder):
    seen = set()

    def look():
        read_corpus.cache_clear()
        seen.add(Code(path=str(folder)).hash)
        return len(seen)

    assert look() == 1
    assert look() == 1, "unchanged text keeps its hash"
    (folder / "module_00.py").write_text("changed = 1\n")
    assert look() == 2
    (folder / "module_00.py").rename(folder / "renamed.py")
    assert look() == 3
    (folder / "module_01.py").unlink()
    assert look() == 4


def test_frequencies_and_entropy_are_those_of_the_text(tmp_path):
    (tmp_path / "ab").write_bytes(b"ab" * 9 * 10 + b"aaab" * 5)
    task = Code(context=4, path=str(tmp_path / "ab"))
    assert task.log_frequency.exp().sum().item() == pytest.approx(1, abs=1e-6)
    assert task.log_frequency[ord("a")].item() == pytest.approx(torch.tensor(91 / (180 + 256)).log().item(), abs=1e-6)
    assert task.log_frequency[ord("z")].item() == pytest.approx(torch.tensor(1 / (180 + 256)).log().item(), abs=1e-6)
    p = torch.tensor([0.75, 0.25])
    assert task.unigram_entropy == pytest.approx(-(p * p.log()).sum().item(), abs=1e-6)


# Gold labels


def labels(source):
    """Kind of every character as a letter, and {closing: opening} positions, of a snippet without tabs."""
    text = source.encode()
    kind, opener = annotate(text)
    assert len(kind) == len(opener) == len(text)
    letters = "".join(KINDS[k][0] if KINDS[k] != "number" else "#" for k in kind)
    return letters, {i: int(j) for i, j in enumerate(opener) if j >= 0}


@pytest.mark.parametrize("source, kinds", [
    ("x = 1\n",                "nbob#b"),
    ("if ab: pass  # no\n",    "kkbnnobkkkkbbccccb"),
    ("s = 'a(b]'\n",           "nbobssssssb"),
    ('"""two\nlines"""\n',     "s" * 15 + "b"),
    ("f(-1.5e3, not x)\n",     "noo#####obkkkbnob"),
    ("ä = 'ü€'  # ö\n",        "nnbobsssssssbbccccb"),
    ("a\\\n= 1\n",             "nbbob#b"),
    ("'\x0c\x85\u2028' + a\n",  "ssssssssbobnb"),  # ends of a line to str.splitlines, not to Python
    ("x = 0b1 if y else 2j\r\n", "nbob###bkkbnbkkkkb##bb"),
])  # fmt: skip
def test_every_byte_has_its_kind(source, kinds):
    assert labels(source)[0] == kinds


@pytest.mark.parametrize("source, openers", [
    ("f(x)\n",                           {3: 1}),
    ("a[(1, {2: [3]})]\n",               {12: 10, 13: 6, 14: 2, 15: 1}),
    ("()()\n",                           {1: 0, 3: 2}),
    ("x = ')' + f('(') # )\n",           {15: 11}),
    ("f(  # ( no\n  a,\n)\n",            {16: 1}),
    ("é(ü['ö'])\n",                      {10: 5, 11: 2}),
    ('"""\n(\n"""\n(\n)\n',              {12: 10}),
    ("class A(B): pass\nx = [\n]\n",     {9: 7, 23: 21}),
])  # fmt: skip
def test_a_closing_bracket_points_to_the_one_it_closes(source, openers):
    text = source.encode()
    assert labels(source)[1] == openers
    for close, open_ in openers.items():
        assert chr(text[open_]) + chr(text[close]) in ("()", "[]", "{}")


def test_the_text_of_an_f_string_is_string_and_its_brackets_pair():
    source = "f'(é {a[0]} ]' + g(x)\n"
    kinds, openers = labels(source)
    at = {character: len(source[: source.index(character)].encode()) for character in "(é[+"}
    for character in "(é":
        assert kinds[at[character]] == "s", "literal text, whether or not tokenize looks inside"
    assert kinds[at["+"]] == "o"
    text = source.encode()
    for close, open_ in openers.items():  # before Python 3.12 an f-string is one token, without brackets
        assert chr(text[open_]) + chr(text[close]) in ("()", "[]", "{}")
    assert openers[text.rindex(b")")] == text.rindex(b"(")
    assert at["("] not in openers.values() and text.rindex(b"]") not in openers


@pytest.mark.parametrize("source", ["def f(:\n", "x = (1]\n", "x = (\n", "  x\n y\n"])
def test_what_does_not_parse_is_refused(source):
    with pytest.raises(SyntaxError):
        annotate(source.encode())


def test_annotated_windows_carry_the_labels_of_their_text(folder):
    (folder / "module_00.py").write_text("def broken(:\n" * 20)
    read_corpus.cache_clear()
    got = Code(context=24, path=str(folder)).annotated(60)
    assert {"tokens", "targets", "kind", "opener"} <= set(got) and {part.shape for part in got.values()} == {(60, 24)}
    assert torch.equal(got["tokens"][:, 1:], got["targets"][:, :-1])
    pairs = 0
    for row, opener in zip(got["tokens"].tolist(), got["opener"].tolist(), strict=True):
        for t, o in enumerate(opener):
            if o >= 0:
                pairs += 1
                assert o < t and chr(row[o]) + chr(row[t]) in ("()", "[]", "{}")
                assert row[o:t].count(row[o]) - row[o:t].count(row[t]) == 1, "balanced in between"
            elif chr(row[t]) in ")]}":  # its partner lies before the window
                assert row[:t].count(ord({")": "(", "]": "["}[chr(row[t])])) <= row[:t].count(row[t])
    assert pairs > 50
    comment = got["kind"] == KINDS.index("comment")
    assert comment.any() and comment[got["tokens"] == ord("#")].all()


def test_the_standard_library_can_be_annotated():
    got = Code(context=64).annotated(200)
    assert set(got["kind"].unique().tolist()) == set(range(len(KINDS)))
    closing = sum((got["tokens"] == ord(c)).sum() for c in ")]}")
    assert 0.3 < (got["opener"] >= 0).sum() / closing <= 1


def test_a_text_without_python_cannot_be_annotated(tmp_path):
    (tmp_path / "prose.txt").write_text("It is raining. " * 100)
    with pytest.raises(ValueError, match="no Python file"):
        Code(context=8, path=str(tmp_path / "prose.txt")).annotated(2)
