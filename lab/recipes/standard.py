"""Named tasks for `lab.compare`, each with a recipe that learns it on a laptop in seconds."""

from dataclasses import asdict, dataclass, field, fields, is_dataclass

from lab.models.registry import Seam
from lab.tasks.code import Code
from lab.tasks.lengths import Addition, Copy
from lab.tasks.recall import MQAR


class Problem(Seam):
    """Tasks that a trial may name. Register your own: Problem.kinds["mine"] = Mine."""


@dataclass(frozen=True)
class Standard:
    """A task with its sizes, training and mark.

    lengths  test lengths for a task of any length, the training length first; if empty, tests use
             the validation of the task
    measure  the compared number: accuracy (share of correct answers), exact (share of texts with
             all answers correct) or loss (nats)
    mark     the value that the measure must reach at the first length for a valid comparison: a
             number, or the name of an n-gram table whose loss is the mark
    """

    task: type
    options: dict = field(default_factory=dict)  # fields of the task
    model: dict = field(default_factory=dict)  # fields of ModelConfig
    schedule: dict = field(default_factory=dict)  # fields of TrainConfig
    lengths: tuple = ()
    measure: str = "accuracy"
    mark: float | str | None = None


def named(kind, task):
    """Register a task under this kind and return it."""
    Problem.kinds[kind] = task
    return task


SMALL = {"d_model": 64, "n_layers": 2, "n_heads": 4}
BYTES = SMALL | {"initialization": {"kind": "fan-in", "embedding": 0.3}}
STANDARD = {
    "copy": Standard(
        named("copy", Copy),
        {"symbols": 16, "longest": 8},
        SMALL,
        {"steps": 900, "batch": 64, "learning_rate": 0.004},
        (8, 10, 12, 16),
        mark=0.95,
    ),
    "recall": Standard(
        named("recall", MQAR),
        {"pairs": 12, "keys": 32, "values": 32, "queries": 8},
        SMALL | {"n_heads": 2},
        {"steps": 900, "batch": 64, "learning_rate": 0.002},
        mark=0.9,
    ),
    "sums": Standard(
        named("sums", Addition),
        {"longest": 2},
        SMALL,
        {"steps": 1800, "batch": 64, "learning_rate": 0.004},
        (2, 3),
        measure="exact",
        mark=0.9,
    ),
    "code": Standard(
        named("code", Code),
        {},
        BYTES,
        {"steps": 600, "batch": 16, "learning_rate": 0.016},
        measure="loss",
        mark="trigram",
    ),
}


def standard(task):
    """(name, Standard) of a named task or of a user's own task.

    An own task is a dataclass with the methods of lab.tasks.task.Task. Raises TypeError for
    anything else and KeyError for an unknown name.
    """
    if isinstance(task, str):
        return task, STANDARD[task]
    instance = task() if isinstance(task, type) else task
    if not (is_dataclass(instance) and callable(getattr(instance, "batch", None))):
        raise TypeError(
            f"a task is one of {', '.join(STANDARD)}, or a dataclass of "
            f"lab.tasks.task.Task, not {task!r}"
        )
    kind = type(instance)
    name = next((name for name, known in Problem.kinds.items() if known is kind), kind.__qualname__)
    Problem.kinds[name] = kind
    taken = {each.name for each in fields(instance) if each.init}
    options = {key: value for key, value in asdict(instance).items() if key in taken}
    schedule = {"steps": 1200, "batch": 64, "learning_rate": 0.004}
    reaches = getattr(instance, "longest", None) if hasattr(instance, "of_length") else None
    return name, Standard(
        kind,
        options,
        SMALL,
        schedule,
        (reaches, 2 * reaches) if reaches else (),
        mark=_mark(instance),
    )


def _mark(task):
    """Nine tenths of the way from chance to ceiling; None if the task does not know them."""
    marks = task.marks()
    if marks.chance is None or marks.ceiling is None:
        return None
    return round(marks.chance + 0.9 * (marks.ceiling - marks.chance), 4)
