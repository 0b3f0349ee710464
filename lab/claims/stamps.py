"""Predictions as they are typed, and the ledger that they are written to, with time and hash,
before anything runs.
"""

import hashlib
import json
import re
from datetime import UTC, datetime

import yaml

from lab.claims.claims import own_ledger
from lab.names import near
from lab.trials import runs

FORM = re.compile(r"(.+?)\s*(>|<|=)\s*([-+]?[\d.]+(?:e[-+]?\d+)?)\s*(?:(?:±|\+-|\+/-)\s*([\d.]+))?")


def read_prediction(text, arms):
    """(first arm, second arm, direction, bar, tolerance) of "mine - rotary > 0.05".

    ValueError says what is wanted.
    """
    found = FORM.fullmatch(text.strip())
    pairs = {f"{a} - {b}": (a, b) for a in arms for b in arms if a != b}
    if not found:
        raise ValueError(
            f"predict {text!r}: such as {next(iter(pairs))!r} > 0.05, < 0 or = 0 ± 0.02, is wanted"
        )
    said = re.sub(r"\s*[-−–]\s*", " - ", found[1]) if found[1] not in pairs else found[1]
    first, second = pairs[near(said, pairs, "predict: arms")]
    direction = {">": "above", "<": "below", "=": "equal"}[found[2]]
    if (direction == "equal") != bool(found[4]):
        raise ValueError(f"predict {text!r}: a tolerance goes with =, such as = 0 ± 0.02")
    return first, second, direction, float(found[3]), float(found[4] or 0)


def comparison_of(direction, threshold, tolerance=0.0):
    """The fields of a part that say "> threshold", "< threshold" or "= threshold ± tolerance"."""
    if direction == "equal":
        return {"direction": "equal", "value": threshold, "bar": tolerance}
    towards = threshold if direction == "above" else -threshold
    if towards >= 0:
        return {"direction": direction, "bar": towards}
    opposite = {"above": "not below", "below": "not above"}[direction]
    return {"direction": opposite, "bar": -towards}


def asked_in_words(asked):
    first, second, direction, bar, tolerance = asked
    sign = {"above": ">", "below": "<", "equal": "="}[direction]
    return f"{first} - {second} {sign} {bar:g}" + (f" ± {tolerance:g}" if tolerance else "")


def stamp(path, body, made_of, known, trials):
    """The claim of a ledger file, with the time at which it was first written there: now, unless it
    is there already.

    Its hash is that of the prediction, its gates, the models' configuration and the code of their
    kinds.
    """
    sha = hashlib.sha256(
        json.dumps([body, made_of], sort_keys=True, default=str).encode()
    ).hexdigest()
    name = f"{body['exercise']}-{sha[:8]}"
    ledger = own_ledger(path) if path.exists() else {}
    if name not in ledger:
        told = {
            "time": datetime.now(UTC).isoformat(" ", "seconds")[:19],
            "sha256": sha,
            "known": known,
            "trials": trials,
        }
        text = path.read_text("utf-8") if path.exists() else ""
        entry = yaml.safe_dump(
            [{"id": name} | body | {"stamp": told}], allow_unicode=True, sort_keys=False, width=100
        )
        runs.write_text(path, text + entry)
        ledger = own_ledger(path)
    return ledger[name]
