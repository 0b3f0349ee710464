"""What others open the project with says the same as pyproject.toml: workflows, citation."""

import re
import tomllib

import pytest
import yaml

from lab.files import project_root

ROOT = project_root()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_calls_what_there_is(path):
    flow = yaml.safe_load(path.read_text("utf-8"))
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
    for job in flow["jobs"].values():
        for python in job.get("strategy", {}).get("matrix", {}).get("python", ()):
            assert int(python.removeprefix("3.")) >= int(PROJECT["requires-python"].removeprefix(">=3."))
        for step in job["steps"]:
            for target in re.findall(r"^make (\w+)", step.get("run", ""), re.MULTILINE):
                assert target in targets


def test_all_python_versions_and_systems_are_tested():
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "tests.yml").read_text("utf-8"))["jobs"]
    assert {tuple(job["strategy"]["matrix"]["python"]) for job in jobs.values()} == {("3.11", "3.12", "3.13")}
    systems = [name for job in jobs.values() for name in job["strategy"]["matrix"].get("system", [job["runs-on"]])]
    assert {name.partition("-")[0] for name in systems} == {"ubuntu", "macos", "windows"}


def test_a_result_is_quoted_by_the_version_that_is_installed():
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))["version"] == PROJECT["version"]
