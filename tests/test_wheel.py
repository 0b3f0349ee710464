"""The package alone: a wheel of it gives models, tasks, the zoo, probes, sweeps, answers and charts.

Of `pyproject.toml`.
"""

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from lab.trials.runs import project_root

pytestmark = pytest.mark.slow
SCRIPT = """
import json

import matplotlib.pyplot as plt
import pandas as pd

import lab, lab.models, lab.zoo
import torch

from lab import book, charts, language, study
from lab.claims.claims import Claim
from lab.claims.judge import judge
from lab.measure.attention import attention_probe, entropy
from lab.models.gpt import ModelConfig, Transformer
from lab.tasks.series import weekly_co2


def squared(seed: int, width: int = 2):
    return {"value": (seed * width) ** 2}


def main():
    mine = study("mine", {"width": 3})
    table = mine.sweep(squared, {"seed": [1, 2], "width": [3]}, jobs=1)
    mine.figure("drawn", table, lambda rows: rows.plot("seed", "value"))
    arms = pd.DataFrame({"arm": ["a"] * 3 + ["b"] * 3, "seed": [1, 2, 3] * 2, "loss": [2.0, 2.1, 2.2, 1.0, 1.2, 1.1]})
    mine.figure("forest", arms, lambda rows: charts.forest(plt.subplots()[1], rows, "loss", "arm", bar=0.5))
    claim = Claim.model_validate({
        "id": "b-is-better", "exercise": "beyond", "kind": "question", "priority": "C", "sources": ["mine"],
        "claim": "b is better", "claim_zh": "\u4e59", "metric": "loss", "measure": "loss",
        "compare": {"arm": ["a", "b"]}, "question": "a - b", "direction": "above", "bar": 0.5})
    (line,) = judge(claim, arms)
    model = Transformer(ModelConfig(vocab_size=5, block_size=8, d_model=8, n_layers=1, n_heads=2), seed=0)
    with torch.no_grad(), attention_probe([entropy]) as probe:
        model(torch.arange(5)[None])
    mine.finish()
    with language.using("zh"):
        said = language.tr("supported")
    found = {"lab": lab.__file__, "values": table.value.tolist(), "said": said, "weeks": len(weekly_co2()),
             "answer": [line.label, line.effect], "heads": len(probe.table()),
             "reference": sum(p.numel() for p in lab.zoo.reference().parameters())}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
"""


def run(*command, **options):
    done = subprocess.run([sys.executable, *map(str, command)], capture_output=True, text=True, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """A wheel of this checkout, made in a copy of it, since setuptools writes beside what it reads."""
    folder, root = tmp_path_factory.mktemp("wheel"), project_root()
    shutil.copytree(root / "lab", folder / "source" / "lab", ignore=shutil.ignore_patterns("__pycache__", ".*"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(root / name, folder / "source")
    quiet = ("-q", "--no-deps", "--no-index", "--disable-pip-version-check")
    run("-m", "pip", "wheel", *quiet, "--no-build-isolation", "-w", folder, folder / "source")
    (built,) = folder.glob("*.whl")
    run("-m", "pip", "install", *quiet, "--target", folder / "site", built)
    return built


@pytest.fixture
def alone(wheel, tmp_path):
    """How a process is run that finds the package in the wheel's folder alone, in a fresh folder."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("LAB_")}
    return {"cwd": tmp_path, "env": environment | {"PYTHONPATH": str(wheel.parent / "site")}}


def test_the_wheel_holds_every_file_of_the_package(wheel):
    source = wheel.parent / "source"
    wanted = {path.relative_to(source).as_posix() for path in (source / "lab").rglob("*") if path.is_file()}
    assert any(name.endswith(".safetensors") for name in wanted) and any(name.endswith(".po") for name in wanted)
    assert wanted - set(zipfile.ZipFile(wheel).namelist()) == set()


def test_a_script_elsewhere_sweeps_its_own_trial(wheel, alone):
    script, site = alone["cwd"] / "mine.py", wheel.parent / "site"
    script.write_text(SCRIPT, "utf-8")
    found = json.loads(run(script, **alone).splitlines()[-1])
    assert Path(found["lab"]).parent == site / "lab", "the checkout is not what is tested"
    assert found["values"] == [9, 36] and found["said"] == "支持"
    assert found["weeks"] > 1000 and found["reference"] > 100_000
    kept = alone["cwd"] / "results" / "interactive" / "mine"
    assert (kept / "run.json").exists() and (kept / "figures" / "drawn.png").exists()
    assert found["heads"] == 2 and found["answer"] == ["answered", pytest.approx(1.0)]
    assert (kept / "figures" / "forest.png").stat().st_size > 1000
    assert not (site / "results").exists(), "results go to the working folder"


def test_the_command_says_that_the_lessons_are_elsewhere(alone):
    assert "checkout" in run("-m", "lab.tools.cli", "list", **alone)
    for command in (["run"], ["run", "1.4"], ["claims"]):
        done = subprocess.run(
            [sys.executable, "-m", "lab.tools.cli", *command], capture_output=True, text=True, **alone
        )
        assert done.returncode == 2 and "checkout" in done.stderr and "Traceback" not in done.stderr, command
