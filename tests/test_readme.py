"""What the README shows runs as printed: its variant, swept in worker processes; its commands know their options."""

import re
import subprocess
import sys
import textwrap

import pytest

from lab.engine.runs import project_root

README = (project_root() / "README.md").read_text("utf-8")
SNIPPETS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


@pytest.mark.slow
def test_the_variant_runs_as_printed_and_in_workers(tmp_path):
    (snippet,) = (text for text in SNIPPETS if 'kind="noisy"' in text)
    swept = f"""
        from pathlib import Path
        from lab.engine import trials

        def size(position, seed):
            from lab.models import ModelConfig, Transformer
            model = Transformer(ModelConfig(vocabulary=8, context=8, d_model=8, position=position), seed=seed)
            return {{"logit": model(torch.arange(8)[None])[0, -1, 0].item()}}

        if __name__ == "__main__":
            sources = trials.Sources(store=Path({str(tmp_path)!r}))
            table = trials.sweep(size, {{"position": ["noisy", "none"], "seed": [0, 1]}}, sources=sources, jobs=2)
            assert table.logit.nunique() == 4
            print("swept")
        """
    (tmp_path / "readme.py").write_text(snippet + textwrap.dedent(swept))
    done = subprocess.run([sys.executable, tmp_path / "readme.py"], capture_output=True, text=True, timeout=300)
    assert done.stdout.strip() == "swept", done.stderr


@pytest.mark.parametrize("name", ["README.md", "README.zh.md"])
def test_commands_have_the_options_that_are_shown(name):
    from typer.main import get_command

    from lab.cli import app

    known = get_command(app).commands
    shown = re.findall(r"\.venv/bin/lab (\w+)([^#\n]*)", (project_root() / name).read_text("utf-8"))
    assert len(shown) > 5
    for command, rest in shown:
        each = [known[command], *getattr(known[command], "commands", {}).values()]
        options = {option for one in each for parameter in one.params for option in parameter.opts}
        assert set(re.findall(r"(?<!\S)--?[a-z][a-z-]*", rest)) <= options, (command, rest)
