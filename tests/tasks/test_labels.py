"""Labels of Python source: every token type and bracket on snippets, identical on every Python version."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from lab.tasks.labels import KINDS, annotate, last_uses

LABELS = "7adb2a783785"  # hash over the networkx validation files


def labels(source):
    """(one letter per byte for its token type, {closing: opening bracket}) of a snippet without tabs."""
    text = source.encode()
    kind, opener = annotate(text)
    assert len(kind) == len(text)
    return "".join(KINDS[k][0] if KINDS[k] != "number" else "#" for k in kind), opener


@pytest.mark.parametrize("source, kinds", [
    ("x = 1\n",                "nbob#b"),
    ("if ab: pass  # no\n",    "kkbnnobkkkkbbccccb"),
    ("s = 'a(b]'\n",           "nbobssssssb"),
    ('"""two\nlines"""\n',     "s" * 15 + "b"),
    ("f(-1.5e3, not x)\n",     "noo#####obkkkbnob"),
    ("ä = 'ü€'  # ö\n",        "nnbobsssssssbbccccb"),
    ("a\\\n= 1\n",             "nbbob#b"),
    ("'\x0c\x85\u2028' + a\n",  "ssssssssbobnb"),  # line ends for str.splitlines, but not for Python
    ("x = 0b1 if y else 2j\r\n", "nbob###bkkbnbkkkkb##bb"),
])  # fmt: skip
def test_every_byte_has_the_correct_token_type(source, kinds):
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
def test_closing_brackets_point_to_their_opening_brackets(source, openers):
    text = source.encode()
    assert labels(source)[1] == openers
    for close, open_ in openers.items():
        assert chr(text[open_]) + chr(text[close]) in ("()", "[]", "{}")


@pytest.mark.parametrize("source", [
    "x = f'(é {a[0]:>{w}} ]' + g(x)\n",
    "x = f'{a}' 'b' f'{f(c, \"(\")}' + g(x)\n",
    "x = f'{{' rf'\\d{a!r}' + g(x)\n",
    "x = f\"\"\"\n{a +\n b[0]} (\n\"\"\" + g(x)\n",
])  # fmt: skip
def test_f_string_is_labelled_as_one_string(source):
    kinds, openers = labels(source)
    text = source.encode()
    first, stop = text.index(b"f"), text.index(b" + g(x)")
    inside = kinds[first:stop].replace("sbs", "sss").replace("sbs", "sss")  # whitespace between adjacent strings
    assert set(inside) == {"s"} and kinds[:first] == "nbob" and kinds[stop:] == "bobnonob"
    assert openers == {text.rindex(b")"): text.rindex(b"(")}


@pytest.mark.parametrize("source", ["def f(:\n", "x = (1]\n", "x = (\n", "  x\n y\n"])
def test_invalid_syntax_raises(source):
    with pytest.raises(SyntaxError):
        annotate(source.encode())


def test_last_uses_point_to_the_previous_occurrence_of_a_name():
    text = b"alpha = 1\nfor beta in alpha:\n    \xc3\xa9 = alpha  # alpha\n    'alpha', \xc3\xa9\n"
    kinds, _ = annotate(text)
    first, second, third = (text.find(b"alpha", start) + 4 for start in (0, 10, 35))
    accent = text.find(b"\xc3\xa9") + 1
    assert last_uses(text, kinds) == {second: first, third: second, text.rfind(b"\xc3\xa9") + 1: accent}


PRINTS_LABELS = """
import hashlib, sys
sys.path[:0] = sys.argv[1:]
from lab.tasks.corpus import HASH, corpus_hash, read_corpus, split
from lab.tasks.labels import annotate, last_uses
sha = hashlib.sha256()
for name, text in split(read_corpus()[0])[1].items():
    if name.startswith("networkx"):
        kinds, openers = annotate(text)
        sha.update(repr((name, openers, last_uses(text, kinds))).encode() + kinds)
print(corpus_hash() == HASH, sha.hexdigest()[:12])
"""
OTHERS = sorted(Path.home().glob(".pyenv/versions/3.1[1-9]*/bin/python"))


@pytest.mark.parametrize("python", [sys.executable, *OTHERS], ids=lambda p: Path(p).parts[-3])
def test_corpus_and_labels_are_identical_on_every_python_version(python):
    where = [Path(__file__).parents[2], Path(importlib.util.find_spec("sympy").origin).parents[1]]
    run = subprocess.run([python, "-I", "-c", PRINTS_LABELS, *where], capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["True", LABELS]
