"""Anything at all as a command line or a parameter file: exit 2 in words or a plan, no traceback, no kernel."""

import gc
import json

import pytest
import yaml
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st
from jupyter_client.manager import AsyncKernelManager
from lab.trials.runs import CHECKOUT
from made import DECLARED, DICE
from typer.testing import CliRunner

from lab.tools.cli import app
from lab.trials import parameters, workers

pytestmark = pytest.mark.usefixtures("project")
NAMES = sorted(DECLARED)
many = settings(
    max_examples=60,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return str(tmp_path_factory.mktemp("fuzz"))


@pytest.fixture(autouse=True)
def plans(monkeypatch):
    """The plans that got as far as a run, which is where these tests end; a kernel would be an error."""
    reached = []

    def no_kernel(*_, **__):
        raise AssertionError("a kernel was started")

    monkeypatch.setattr(AsyncKernelManager, "start_kernel", no_kernel)
    monkeypatch.setattr("lab.tools.terminal.run_all", lambda todo, *_: reached.append(todo))
    monkeypatch.setattr(workers, "CONNECT_SECONDS", 0.2)
    return reached


def answer(plans, *arguments):
    """What `lab run` says: nothing where it would run, else a refusal with exit code 2."""
    plans.clear()
    result = CliRunner().invoke(app, ["run", *arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert "Traceback" not in result.output
    assert (result.exit_code, len(plans)) in ((0, 1), (2, 0)), result.output
    if plans:
        for job in plans[0]:
            json.dumps(job.parameters, allow_nan=False)
            again = parameters.validate(job.notebook, job.parameters, "again")
            assert again == job.parameters, "accepted once, accepted unchanged"
        return ""
    assert result.output.startswith(("lab: ", "Usage: ", "╭─ Error")), result.output
    return result.output


# Values of parameters

WORDS = (
    "1e-3 nan -inf .inf 0x10 1_0 true null ~ 2024-99-99 ../x results/../../x /etc/passwd ~nobody \0 [1 {a:1} *a &a "
    "!!int !!bool !!timestamp !!python/object/apply:os.getcwd[] <<: 1e999 9999999999 [1,1] [[1]] 64,64 "
    "' \" : # % @ ` \udcff"
)
odd = st.one_of(
    st.sampled_from(WORDS.split(" ")), st.integers().map(str), st.floats().map(str), st.text(max_size=12),
    st.lists(st.integers(-2, 10**10), max_size=3).map(str),
    st.sampled_from(["[" * 400, "9" * 1000, "9" * 5000, "x" * 3000]),
)  # fmt: skip


@many
@given(name=st.sampled_from(NAMES), value=odd)
def test_a_value_on_the_command_line_is_taken_or_refused_by_name(name, value, plans, place):
    said = answer(plans, DICE, "--profile", "smoke", "--results", place, "-p", f"{name}={value}")
    if said:
        assert name in said and said.count("\n") == 1, "one line names the field"
        if name != "results":
            read = parameters.read_value(value)
            inner = [read, *(read if isinstance(read, list) else [])]
            assert "command line" in said and any(str(x) in said or repr(x) in said for x in inner), "and the value"


def readable(text):
    try:
        parameters.read_yaml(text)
    except ValueError:
        return False
    return True


# Files of parameters

keys = st.one_of(st.sampled_from(NAMES), st.text(max_size=6))
anything = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.integers(10**12, 10**30), st.floats(), st.text(max_size=8),
              st.dates(), st.binary(max_size=4), st.sampled_from(["../x", "/etc/passwd", "\0", "nan", "1e-3"])),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(keys, inner, max_size=2)), max_leaves=6,
)  # fmt: skip
mappings = st.lists(st.tuples(keys, anything), max_size=4).map(
    lambda pairs: "".join(yaml.safe_dump({key: value}, allow_unicode=True) for key, value in pairs)  # keys may repeat
)
LAUGHS = "a: &a [x, x]\n" + "".join(
    f"{b}: &{b} [*{a}, *{a}, *{a}, *{a}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True)
)
no_text = st.binary(max_size=40).map(lambda content: content.decode("utf-8", "surrogateescape"))
like_yaml = st.text("ad: -[]{}#&*!|>%@`'\",?\n\t019.eE_x", max_size=40)


@many
@given(text=st.one_of(mappings, st.text(max_size=60), no_text, like_yaml))
@example(text="seeds: 2\nseeds: 3\n")
@example(text=LAUGHS + "seeds: *i\n")
@example(text="seeds: &a [*a]\n")
@example(text="? [1, 2]\n: 3\n")
@example(text="results: ../elsewhere\n")
def test_a_file_of_anything_is_taken_or_refused_by_its_name(text, plans, place, tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_bytes(text.encode("utf-8", "surrogateescape"))
    said = answer(plans, DICE, "--profile", "smoke", "--results", place, "-f", str(file))
    if said:
        assert "mine.yaml" in said or "--results" in said
    elif readable(text):
        assert not {key for key in parameters.read_yaml(text) or {} if key not in DECLARED}


# Whole command lines

WHOLE = "the whole path"
exercises = st.one_of(
    st.sampled_from(["1.1", "02", "1.99", "../01", f"{DICE}.ipynb", "", WHOLE]),
    st.text(max_size=6),
)
options = st.one_of(
    st.tuples(st.just("--profile"), st.sampled_from([*parameters.PROFILES, "../quick", "", "Quick", "\0"])),
    st.tuples(st.just("--jobs"), st.one_of(st.integers().map(str), st.floats().map(str), st.text(max_size=3))),
    st.tuples(st.just("--device"), st.sampled_from(["auto", "cpu", "CPU", "tpu", "", "cuda:0", "\0"])),
    st.tuples(st.just("-p"), st.one_of(st.text(max_size=8), st.tuples(st.sampled_from(NAMES), odd).map("=".join))),
    st.tuples(st.just("-f"), st.sampled_from(["", ".", "no/such.yaml", "/", "pyproject.toml", "\0", "x" * 300])),
    st.tuples(st.just("--results"), st.sampled_from(["", "a\0b"])),
    st.tuples(st.sampled_from(["--fresh", "--nonsuch", "--", "-", "--jobs", "-p", "--fresh=1", "\ud800"])),
)  # fmt: skip


@many
@given(names=st.lists(exercises, max_size=2), chosen=st.lists(options, max_size=4))
def test_a_command_line_of_anything_is_planned_or_refused(names, chosen, plans, place):
    names = [str(parameters.notebook_of(DICE)) if name == WHOLE else name for name in names]
    rest = [word for option in chosen for word in option]
    before = there()
    answer(plans, "--results", place, *names, *rest)
    assert there() == before


def there():
    places = (CHECKOUT, CHECKOUT / "lab", parameters.project_root())
    return {path for place in places for path in place.iterdir() if path.name != "__pycache__"}


ADDRESSES = "x : tcp:// http://x tcp://127.0.0.1 tcp://127.0.0.1:x tcp://[::1 tcp://127.0.0.1:99999 tls://127.0.0.1:9"


@pytest.mark.parametrize("address", [*ADDRESSES.split(), "x" * 300])
def test_an_address_that_is_no_cluster_is_refused_by_name(address, plans, place):
    gc.collect()  # Dask hangs where a client that failed before is collected while another starts
    said = answer(plans, DICE, "--profile", "smoke", "--results", place, "--cluster", address)
    assert address in said
