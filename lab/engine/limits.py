"""What each parameter of a notebook may be, by its name, which means the same in all of them."""

import json
import os
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field

PROFILES = ("smoke", "quick", "full")


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
    "results": str,
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
    "gate_seeds": whole(1, 10**4),
    "heads_rate": Positive,
}
