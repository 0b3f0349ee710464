"""Parameters of notebooks: declared in a cell tagged `parameters`, typed here by name, checked before any kernel.

A name means the same in all notebooks, so its type and limits stand once, in TYPES; RULES relate several of them.
"""

import ast
import bisect
import difflib
import inspect
import json
import os
from typing import Annotated

import yaml
from pydantic import AfterValidator, BeforeValidator, Field, TypeAdapter, ValidationError

from lab.results import inside_project, project_root

PROFILES = ("smoke", "quick", "full")


class Refused(ValueError):
    """Input that cannot be run; the message names where, the field, the value and what is allowed."""


def _no_bool(value):
    if isinstance(value, bool):
        raise ValueError("a number is wanted, not true or false")
    return value


def _all_differ(values):
    if len({json.dumps(v) for v in values}) < len(values):
        raise ValueError("values must differ")
    return values


def _known_profile(value):
    if value not in PROFILES:
        raise ValueError(f"profile is one of {', '.join(PROFILES)}")
    return value


def _known_position(value):
    from lab.models.positions import Position

    Position.resolve(value)
    return value


def _is_there(value):
    if value and not os.path.exists(os.path.expanduser(value)):  # False for a name that no file can have
        raise ValueError("there is no such file or folder; empty: the standard library of this Python")
    return value


def _in_project(value):
    if value:
        inside_project(value)
    return value


def whole(least, most=10**9):
    """A whole number, `least` to `most`; the default is more than any size here can be."""
    return Annotated[int, BeforeValidator(_no_bool), Field(strict=True, ge=least, le=most)]


Count = whole(1)
Whole = whole(0)
Number = Annotated[float, BeforeValidator(_no_bool), Field(allow_inf_nan=False)]
Positive = Annotated[Number, Field(gt=0)]


def some(kind):
    """A list with at least one entry, all different."""
    return Annotated[list[kind], Field(min_length=1), AfterValidator(_all_differ)]


TYPES = {
    "profile": Annotated[str, AfterValidator(_known_profile)],
    "results": Annotated[str, AfterValidator(_in_project)],
    "corpus": Annotated[str, AfterValidator(_is_there)],
    "pretrained": str,
    "text": str,
    "seeds": whole(1, 10**4),
    "d_model": Count,
    "n_layers": Count,
    "context": whole(2),
    "batch": Count,
    "steps": Count,
    "lookup_steps": Count,
    "head_widths": some(whole(1, 4096)),
    "samples": whole(1000, 10**5),
    "intervention_steps": Count,
    "recall_steps": Whole,
    "learning_rates": some(Positive),
    "position": Annotated[str, AfterValidator(_known_position)],
    "heads": some(Count),
    "lookups": some(whole(1, 8)),
    "lengths": some(whole(2)),
    "contexts": some(whole(8, 2**22)),
    "batches": some(Count),
    "widths": some(Count),
    "score_heads": Count,
    "block_widths": some(Annotated[int, BeforeValidator(_no_bool), Field(strict=True, ge=64, le=4096, multiple_of=64)]),
    "memory_lengths": some(whole(2, 2**17)),
    "repeats": whole(2, 10**4),
    "offsets": Count,
    "positions": Count,
    "windows": Count,
    "kept_windows": whole(1, 10**6),
    "dropouts": some(Annotated[Number, Field(gt=0, lt=1)]),
    "decays": some(Positive),
    "padded_steps": Count,
    "queries": whole(2, 10**5),
    "learning_rate": Positive,
    "n_heads": Count,
    "prefix_context": whole(2, 4096),
    "infill_steps": Whole,
    "cross_steps": Whole,
    "longest": whole(4, 4096),
    "symbols": whole(1, 4096),
    "digits": whole(1, 100),
    "adding_steps": Count,
    "slow_steps": Count,
    "gate": Annotated[Number, Field(ge=0, le=1)],
    "texts": Count,
    "scored": whole(16, 10**7),
    "stride": Count,
    "needle_steps": Count,
    "deepest": Count,
    "start_width": whole(16),
    "start_depths": some(Count),
    "start_seeds": whole(2, 10**4),
    "code_layers": whole(3),
    "code_steps": Count,
    "elements": some(Count),
    "depths": some(whole(2, 1024)),
    "plain_width": Count,
    "dead_rates": some(Positive),
    "subjects": whole(2, 10**4),
    "fact_steps": Count,
    "many_subjects": whole(2, 10**4),
    "many_steps": Count,
    "keys": whole(2, 64),
    "document_steps": Count,
    "co2_steps": Count,
    "sparse_lengths": some(whole(128, 2**17)),
    "flex_length": whole(0, 2**17),
    "draws": whole(640, 10**7),
    "pair_counts": some(whole(1, 32)),
    "memory_widths": some(whole(4, 512)),
    "scaling_widths": some(Annotated[int, BeforeValidator(_no_bool), Field(strict=True, ge=4, le=4096, multiple_of=4)]),
    "scaling_steps": whole(8),
    "spans": some(Count),
    "order_steps": Count,
    "sample_counts": some(whole(1, 10**6)),
    "batch_sizes": some(whole(1, 4096)),
    "bias_steps": Count,
    "parity_steps": Count,
    "longest_run": whole(27, 10**6),
    "side": whole(2, 64),
    "grid_steps": Count,
    "answer_steps": Count,
    "questions": whole(1, 10**6),
    "fusion_steps": Count,
    "budgets": some(Positive),
    "budget_widths": some(Annotated[int, BeforeValidator(_no_bool), Field(strict=True, ge=4, le=4096, multiple_of=4)]),
    "budget_seeds": whole(2, 10**4),
    "fewest_steps": Count,
    "most_steps": Count,
    "ratios": some(Annotated[Positive, Field(ge=0.1, le=64)]),
    "ratio_widths": some(Annotated[int, BeforeValidator(_no_bool), Field(strict=True, ge=8, le=4096, multiple_of=8)]),
    "ratio_steps": Count,
}
RULES = []


def rule(check):
    """Register a check; it runs where a notebook has all the parameters that it names, and raises ValueError."""
    RULES.append(check)
    return check


@rule
def heads_divide_width(heads, d_model):
    for h in heads:
        if d_model % h:
            allowed = [n for n in range(1, min(d_model, 4096) + 1) if d_model % n == 0]
            raise ValueError(f"heads: {h} does not divide d_model {d_model}; allowed: {', '.join(map(str, allowed))}")


@rule
def n_heads_divide_width(n_heads, d_model, position="none"):
    if d_model % n_heads:
        raise ValueError(f"n_heads: {n_heads} does not divide d_model {d_model}; change one of them")
    if position == "rotary" and d_model // n_heads % 2:
        raise ValueError(f"n_heads: {n_heads} leaves d_head {d_model // n_heads}, and rotary turns pairs")


@rule
def rotary_turns_pairs(heads, d_model, position):
    odd = [h for h in heads if d_model // h % 2]
    if position == "rotary" and odd:
        raise ValueError(
            f"heads: {odd[0]} leaves d_head {d_model // odd[0]}, and rotary turns pairs; give an even d_head"
        )


@rule
def spans_tile_the_window(spans, context):
    for span in spans:
        if context % span:
            raise ValueError(f"spans: {span} does not divide context {context}")


@rule
def a_bend_shows_at_four_sizes(scaling_widths, longest_run):
    ratios = {b / a for a, b in zip(scaling_widths, scaling_widths[1:], strict=False)}
    if len(scaling_widths) < 4 or len(ratios) > 1 or min(ratios) <= 1:
        raise ValueError(f"scaling_widths: {scaling_widths} are not four or more, each as many times the one before")


@rule
def budgets_can_be_judged(budgets, budget_widths, ratios, ratio_widths, steps, d_model):
    for name, values, least in (("budgets", budgets, 2), ("budget_widths", budget_widths, 3), ("ratios", ratios, 3),
                                ("ratio_widths", ratio_widths, 2)):  # fmt: skip
        if len(values) < least:
            raise ValueError(f"{name}: {values} are too few, a lowest point or a trend needs {least}")
    if steps < 8 or d_model % 8:
        raise ValueError(f"steps: {steps} and d_model {d_model}; at least 8, and a multiple of 8, are needed")


@rule
def model_fits_in_memory(d_model, n_layers=2, context=64, batch=8):
    """Weights, gradients and two moments (16 bytes each of 12 d² a layer), and activations of a training step."""

    def need(d_model, n_layers, batch, context):
        return 16 * 12 * n_layers * d_model**2 + 4 * 34 * n_layers * batch * context * d_model

    within_memory(need, d_model=d_model, n_layers=n_layers, batch=batch, context=context)


@rule
def codes_fit_in_memory(offsets, positions, d_model):
    """Three tables of (offsets + positions) x d_model numbers of 8 bytes."""

    def need(offsets, positions, d_model):
        return 24 * (offsets + positions) * d_model

    within_memory(need, offsets=offsets, positions=positions, d_model=d_model)


@rule
def scores_fit_in_memory(lengths, score_heads=8):
    """Explicit attention at the largest length, forward and backward: about six h x n x n arrays of 4 bytes."""
    within_memory(lambda lengths, score_heads: 24 * score_heads * lengths**2,
                  lengths=max(lengths), score_heads=score_heads)  # fmt: skip


@rule
def memory_lengths_fit_in_memory(memory_lengths, heads):
    """Scores and weights of explicit attention, forward, at the largest length: two h x n x n arrays of 4 bytes."""
    within_memory(lambda memory_lengths, heads: 8 * heads * memory_lengths**2,
                  memory_lengths=max(memory_lengths), heads=max(heads))  # fmt: skip


@rule
def a_head_is_an_even_part_of_the_width(n_heads, d_model):
    if d_model % (2 * n_heads):
        raise ValueError(
            f"d_model: {d_model} does not give {n_heads} heads an even width; take a multiple of {2 * n_heads}"
        )


@rule
def caches_fit_in_memory(contexts, batches):
    """Keys and values of two layers 512 wide, 4 bytes each, for 8, 4, 2 and 1 key-value heads at once."""
    within_memory(lambda contexts, batches: 2 * 2 * 512 * 4 * 15 * contexts * batches // 8,
                  contexts=max(contexts), batches=max(batches))  # fmt: skip


def within_memory(need, **sizes):
    """ValueError where need(**sizes), bytes, is over 4/5 of what is free; tells what fits of each size alone."""
    available = available_memory()

    def fits(**changed):
        return 5 * need(**sizes | changed) <= 4 * available

    if fits():
        return
    fitting = {}
    for name, size in sizes.items():  # need grows with every size
        most = bisect.bisect_left(range(size), True, key=lambda n, name=name: not fits(**{name: n + 1}))
        if most:
            fitting[name] = most
    largest = " or ".join(f"{name} that fits is {most}" for name, most in fitting.items())
    raise ValueError(
        f"{', '.join(f'{name} = {size}' for name, size in sizes.items())} needs about {need(**sizes) / 2**30:.1f} GiB, "
        f"{available / 2**30:.1f} GiB are available; "
        + (f"the largest {largest}" if fitting else "no single size makes it fit")
    )


@rule
def vectors_fit_in_memory(elements):
    """Input, output, two gradients and one spare at the largest size, 4 bytes an element."""
    within_memory(lambda elements: 20 * elements, elements=max(elements))


@rule
def plain_networks_fit_in_memory(plain_width, depths):
    """Weights and gradients of the deepest network, 8 bytes a weight, and 64 rows of activations."""
    within_memory(lambda plain_width, depths: 8 * depths * plain_width * (plain_width + 64),
                  plain_width=plain_width, depths=max(depths))  # fmt: skip


@rule
def windows_fit_in_memory(windows, context, d_model):
    """Logits over bytes and one hidden layer for all measured windows at once, 4 bytes a number."""
    within_memory(lambda windows, context, d_model: 4 * windows * context * (256 + 4 * d_model),
                  windows=windows, context=context, d_model=d_model)  # fmt: skip


@rule
def widths_fit_in_memory(widths, context, n_layers=2):
    """The widest block, and a training step at width 128 with explicit attention of four heads, 4 bytes a number."""

    def need(widths, context, n_layers):
        return 4 * max(widths * (12 * widths + 34 * context), n_layers * context * (34 * 128 + 8 * context))

    within_memory(need, widths=max(widths), context=context, n_layers=n_layers)


@rule
def block_scores_fit_in_memory(block_widths):
    """Scores of heads 64 wide on 16 d tokens, the most that a block is timed on, 4 bytes each."""
    within_memory(
        lambda block_widths: 4 * block_widths // 64 * (16 * block_widths) ** 2, block_widths=max(block_widths)
    )


@rule
def models_at_the_start_fit_in_memory(start_width, start_depths):
    """Weights of the deepest model, 4 bytes each."""
    within_memory(lambda start_width, start_depths: 48 * start_depths * start_width**2,
                  start_width=start_width, start_depths=max(start_depths))  # fmt: skip


@rule
def deep_models_fit_in_memory(depths, code_layers, d_model, deepest=2):
    """Weights, gradients and two moments of the deepest trained model, 16 bytes a weight."""

    def need(depths, code_layers, d_model, deepest):
        return 16 * 12 * max(depths, code_layers, deepest) * d_model**2

    within_memory(need, depths=max(depths), code_layers=code_layers, d_model=d_model, deepest=deepest)


@rule
def a_window_slides_within_itself(stride, context):
    if stride > context:
        raise ValueError(f"stride: {stride} is longer than the window of context {context}; the largest is {context}")


@rule
def the_longest_window_is_scored(scored, context):
    if scored < 8 * context:
        raise ValueError(f"scored: {scored} bytes do not fill a window of eight times context {context}")


@rule
def copies_fit_in_memory(longest, texts, d_model, n_layers=2):
    """Evaluation at four times the longest text, about 8 x longest tokens: twenty arrays of 4 bytes, and the maps."""

    def need(longest, texts, d_model, n_layers):
        return 80 * texts * 8 * longest * d_model + 8 * min(texts, 32) * 4 * n_layers * (8 * longest) ** 2

    within_memory(need, longest=longest, texts=texts, d_model=d_model, n_layers=n_layers)


def available_memory():
    """Bytes of memory that can be had without swapping, as far as the system tells."""
    import psutil

    return psutil.virtual_memory().available


def notebooks():
    """Paths of all notebooks, in order of exercise."""
    return sorted((project_root() / "notebooks").glob("[0-9][0-9]_*.ipynb"))


def notebook_of(name):
    """The notebook of an exercise named 1.4, 4, 04 or 04_head_count. Refused lists the valid ones."""
    for path in notebooks():
        number = int(path.stem[:2])
        if str(name) in (f"1.{number}", str(number), path.stem[:2], path.stem):
            return path
    valid = ", ".join(f"1.{int(p.stem[:2])} ({p.stem})" for p in notebooks())
    raise Refused(f"there is no exercise {name!r}; there are {valid}")


def exercise_of(notebook):
    return f"1.{int(notebook.stem[:2])}"


def title_of(notebook):
    """The first heading of a notebook."""
    cells = json.loads(notebook.read_text("utf-8"))["cells"]
    return "".join(cells[0]["source"]).splitlines()[0].lstrip("# ")


def read_declared(notebook):
    """{name: default} of the notebook's cell tagged `parameters`; all of them literals."""
    cells = json.loads(notebook.read_text("utf-8"))["cells"]
    tagged = ["".join(c["source"]) for c in cells if "parameters" in c["metadata"].get("tags", ())]
    if len(tagged) != 1:
        raise Refused(f"{notebook.name}: one cell must be tagged `parameters`, found {len(tagged)}")
    declared = {}
    for node in ast.parse(tagged[0]).body:
        target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
        declared[target.id] = ast.literal_eval(node.value)
    return declared


def validate(notebook, values, source):
    """The defaults overridden by `values`, converted. Refused names source, field, value and what is allowed."""
    declared = read_declared(notebook)
    for name in values:
        if name not in declared:
            near = difflib.get_close_matches(str(name), declared, 1)
            hint = f"; did you mean {near[0]!r}?" if near else "."
            raise Refused(f"{source}: {notebook.stem} has no parameter {name!r}{hint} It has {', '.join(declared)}")
    checked = {}
    for name, value in (declared | values).items():
        try:
            checked[name] = TypeAdapter(TYPES[name]).validate_python(value)
        except ValidationError as error:
            first = error.errors()[0]
            inner = "".join(f"[{part}]" for part in first["loc"] if isinstance(part, int))
            message = first["msg"].removeprefix("Value error, ")
            raise Refused(f"{source}: {name}{inner} = {first['input']!r}: {message}") from None
    for check in RULES:
        wanted = inspect.signature(check).parameters
        if all(p in checked or d.default is not d.empty for p, d in wanted.items()) and any(
            p in checked for p in wanted
        ):
            try:
                check(**{p: checked[p] for p in wanted if p in checked})
            except ValueError as error:
                raise Refused(f"{source}: {error}") from None
    return checked


class EachOnce(yaml.SafeLoader):
    """Plain YAML in which no key stands twice, and no aliases: a few of them can be gigabytes."""

    def compose_node(self, parent, index):
        if self.check_event(yaml.AliasEvent):
            raise yaml.composer.ComposerError(None, None, "an alias is not allowed", self.peek_event().start_mark)
        return super().compose_node(parent, index)

    def construct_mapping(self, node, deep=False):
        keys = [key.value for key, _ in node.value]
        if twice := [key for i, key in enumerate(keys) if key in keys[:i]]:
            raise yaml.constructor.ConstructorError(None, None, f"{twice[0]!r} stands twice", node.start_mark)
        return super().construct_mapping(node, deep)


def read_yaml(text):
    """What the YAML text says, as plain Python values. ValueError where it cannot be read."""
    try:
        return yaml.load(text, EachOnce)
    except (yaml.YAMLError, LookupError, AttributeError, RecursionError) as error:  # !!bool maybe, 2024-99-99
        raise ValueError(str(error)) from None


def read_file(path):
    """The flat mapping in a YAML parameter file."""
    try:
        values = read_yaml(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise Refused(f"{path}: cannot be read: {error}") from None
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise Refused(f"{path}: a mapping of parameters to values is wanted, found {type(values).__name__}")
    return values


def of_profile(notebook, profile):
    """The parameters of a notebook in a profile's file; Refused where it is unknown or has none."""
    if profile not in PROFILES:
        raise Refused(f"there is no profile {profile!r}; there are {', '.join(PROFILES)}")
    path = project_root() / "experiments" / profile / f"{notebook.stem}.yaml"
    return validate(notebook, read_file(path), source=path.relative_to(project_root()).as_posix())
