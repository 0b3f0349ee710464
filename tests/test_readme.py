"""What the READMEs show runs as printed: the variant, swept in worker processes; every command is understood."""

import re
import shlex
import subprocess
import sys
import textwrap

import pytest
from lab.trials.runs import project_root
from typer.main import get_command
from typer.testing import CliRunner

from lab.tools import arguments, batch
from lab.tools.cli import app
from lab.trials import parameters

README = (project_root() / "README.md").read_text("utf-8")
SNIPPETS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


@pytest.mark.slow
def test_the_variant_runs_as_printed_and_in_workers(tmp_path):
    (snippet,) = (text for text in SNIPPETS if 'kind="fading"' in text)
    swept = f"""
        from pathlib import Path
        from lab.trials import sweep as trials

        def size(position, seed):
            from lab.models import ModelConfig, Transformer
            model = Transformer(ModelConfig(vocab_size=8, block_size=8, d_model=8, position=position), seed=seed)
            return {{"logit": model(torch.arange(8)[None])[0, -1, 0].item()}}

        if __name__ == "__main__":
            sources = trials.Sources("n", store=Path({str(tmp_path)!r}))
            table = trials.sweep(size, {{"position": ["fading", "none"], "seed": [0, 1]}}, sources=sources, jobs=2)
            assert table.logit.nunique() == 4
            print("swept")
        """
    (tmp_path / "readme.py").write_text(snippet + textwrap.dedent(swept))
    done = subprocess.run([sys.executable, tmp_path / "readme.py"], capture_output=True, text=True, timeout=300)
    assert done.stdout.strip() == "swept", done.stderr


# Commands

BOTH = pytest.mark.parametrize("name", ["README.md", "README.zh.md"])
FAST = ("list",)


def commands(name, word):
    """[words after the first] of the commands that a README shows, on lines of their own and inside sentences."""
    text = (project_root() / name).read_text("utf-8")
    shown = re.findall(rf"^    (?:\.venv/bin/)?{word} (.*)$", text, re.MULTILINE)
    shown += re.findall(rf"`(?:\.venv/bin/)?{word} ([a-z-][^`]*)`", text)
    return [shlex.split(line, comments=True) for line in shown]


def parsed(words):
    """(the command, {parameter: value}) as the terminal reads them; it exits where it does not understand."""
    command, context = get_command(app), None
    while hasattr(command, "commands") and words:
        assert words[0] in command.commands, words
        command, words = command.commands[words[0]], words[1:]
    context = command.make_context(command.name, list(words))
    return command.name, context.params


@BOTH
def test_every_command_is_understood_and_what_it_names_is_there(name, monkeypatch):
    monkeypatch.chdir(project_root())
    shown = [parsed(words) for words in commands(name, "lab")]
    assert len(shown) > 6
    for command, given in shown:
        exercises = given.get("notebooks") or ([given["lesson"]] if "lesson" in given else [])
        assert [parameters.notebook_of(each) for each in exercises] or not exercises
        if command == "run":
            overrides = arguments.assignments(given["parameter"] or [])
            assert batch.plan(exercises, given["profile"], project_root() / "results", overrides)


@BOTH
def test_what_make_is_asked_for_is_there(name):
    targets = re.findall(r"^([a-z-]+):", (project_root() / "Makefile").read_text("utf-8"), re.MULTILINE)
    shown = [words[0] for words in commands(name, "make")]
    assert len(shown) >= 2 and set(shown) <= set(targets)


@BOTH
def test_commands_that_take_a_moment_run(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ran = 0
    for place, words in enumerate(commands(name, "lab")):
        if words[0] in FAST:
            (tmp_path / str(place)).mkdir()
            monkeypatch.chdir(tmp_path / str(place))
            done = CliRunner().invoke(app, words)
            assert done.exit_code == 0 and done.output, (words, done.output)
            ran += 1
    assert ran
