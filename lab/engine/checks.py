"""Spot checks: some of the recorded trials that a run drew are run here again, and must give what the record says.

On the arithmetic that recorded them every digit must be equal. On another one rounding differs and trainings drift
apart: their beginnings must agree, and their ends as closely as the spread over seeds allows. What is checked next
follows from where the last run stopped, so that repeated runs check every row. Nothing here enters a table.
"""

import json
import math
import time
from dataclasses import dataclass
from itertools import pairwise

from scipy import stats

from lab.engine import arithmetic, runs, store
from lab.engine.record import digits
from lab.engine.running import run_trial
from lab.language import tr

AT_START, FIRST_STEPS = 1e-5, 1e-3  # relative, of the loss before training and in its first ten steps
WITHOUT_SEEDS = 1e-3, 1e-6  # relative and absolute, of numbers that no seed moves
TRAINED = 0.01  # relative, of numbers that a training gave: a test item or two that fall on the other side
ALARMS = 0.001  # chance of a false alarm in a run
SHIFT = 3.5  # standard errors that the mean difference of all checks may be from 0


@dataclass(frozen=True)
class Finding:
    """One check: what was compared, whether it agrees, and where it does not, how."""

    trial: str
    parameters: dict
    key: str
    part: str  # "all digits", "all numbers" or "the beginning"
    fault: str = ""
    shift: float = math.nan  # mean difference over the spread of seeds, on another arithmetic

    @property
    def agrees(self):
        return not self.fault

    def __str__(self):
        return f"{self.trial} {store.canonical(self.parameters)}: {self.fault or 'as recorded'} ({self.part} compared)"


def spot_check(used, seconds, cursor, *, device="cpu"):
    """Findings on as many of the recorded trials among `used` as fit in `seconds`, a list.

    `cursor` is the file that says where the last check stopped. A trial that takes more than a third of the time is
    left after the beginning of its training. Where a whole trial disagrees, its arm's other seeds are checked too.
    """
    until = time.perf_counter() + seconds
    recorded = sorted((each for each in used if each.origin == "record"), key=lambda each: each.key)
    last = cursor.read_text() if cursor.exists() else ""
    recorded.sort(key=lambda each: each.key <= last)  # stable: those after the last one first
    seeds, found = Seeds(used), []
    for each in recorded:
        rest = until - time.perf_counter()
        limit = rest if each.body["seconds"] < rest / 3 else max(rest / 3, 1)
        if rest <= 0 or (each.body["seconds"] > limit and not each.body["curve"]):
            if rest <= 0:
                break
            continue
        found.append(check(each, seeds, limit, device))
        runs.write_text(cursor, each.key)
        if not found[-1].agrees and found[-1].part != "the beginning":
            found += [check(other, seeds, math.inf, device) for other in seeds.arm(each) if other.key != each.key]
            break
    return found + seeds.together(found)


def alarms(findings):
    """The findings that do not agree with the record."""
    return [each for each in findings if not each.agrees]


def origins(used):
    """What is told of the trials that a run drew: how many ran here, how many are recorded, by which runs."""
    counts, recorded, because, accepted = {"run": 0, "store": 0, "record": 0}, {}, {}, {}
    for each in used:
        counts[each.origin] += 1
        if each.origin == "record":
            labels = each.body["labels"]
            name = ", ".join(filter(None, (labels.get("date"), labels.get("machine"), labels.get("commit", "")[:10])))
            recorded[name] = recorded.get(name, 0) + 1
            because |= {labels["because"]: None} if "because" in labels else {}
            if "accepted" in labels:
                accepted[labels["accepted"]] = accepted.get(labels["accepted"], 0) + 1
    states = {}
    for each in used:
        state = states.setdefault(each.trial.__name__, {"code": each.body["code"], "keys": []})
        state["keys"] += [each.key] if each.origin != "record" else []
    arithmetics = len({each.body["arithmetic"] for each in used})
    return {
        "ran_here": counts["run"],
        "kept_here": counts["store"],
        "recorded": counts["record"],
        "trials": states,
        "recorded_by": recorded,
        "arithmetics": arithmetics,
        "because": list(because),
        "accepted": accepted,
    }


def told(origins, findings):
    """The same as a sentence, with what the spot checks found."""
    counts = {
        tr("{n} recorded", n=origins["recorded"]): origins["recorded"],
        tr("{n} kept from earlier runs on this machine", n=origins["kept_here"]): origins["kept_here"],
        tr("{n} run now", n=origins["ran_here"]): origins["ran_here"],
    }
    said = tr("Trials: {counts}.", counts=", ".join(words for words, n in counts.items() if n) or tr("none"))
    said += "".join(tr(" {n} by a run of {name}.", n=n, name=name) for name, n in origins["recorded_by"].items())
    said += "".join(
        tr(" {n} of them by older code, accepted: {why}.", n=n, why=why) for why, n in origins["accepted"].items()
    )
    if findings:
        parts = {"all digits": tr("all digits"), "all numbers": tr("all numbers"), "the beginning": tr("the beginning")}
        compared = {words: sum(f.part == part for f in findings) for part, words in parts.items()}
        how = ", ".join(tr("{n} by {part}", n=n, part=words) for words, n in compared.items() if n)
        said += tr(" Run again here: {n} ({how}), ", n=len(findings), how=how)
        faults = "; ".join(map(str, alarms(findings)))
        said += tr("NOT as recorded: {faults}", faults=faults) if faults else tr("as recorded.")
    return said


def check(each, seeds, limit, device):
    """The `Finding` on one recorded trial, run again for at most `limit` seconds."""
    here = run_trial(each.trial, each.body["parameters"], device=device, threads=each.threads, until=limit)
    about = {"trial": each.trial.__name__, "parameters": each.body["parameters"], "key": each.key}
    if "failed" in here:
        return Finding(**about, part="all digits", fault=f"fails here: {here['failed']}")
    here = json.loads(store.encoded({name: here[name] for name in ("n", "columns", "curve", "batch") if name in here}))
    same_arithmetic = each.body["arithmetic"] == arithmetic.digest(device, each.threads)
    if "columns" not in here:
        fault = beginning(each.body, here, exact=same_arithmetic)
        return Finding(**about, part="the beginning", fault=fault)
    if same_arithmetic:
        return Finding(
            **about, part="all digits", fault="" if digits(here) == digits(each.body) else different(each.body, here)
        )
    fault, shift = seeds.compare(each, here)
    return Finding(**about, part="all numbers", fault=beginning(each.body, here, exact=False) or fault, shift=shift)


def beginning(recorded, here, *, exact):
    """What is wrong with the beginning of a training; "" where it is as recorded."""
    if not recorded["curve"] or not here["curve"]:
        return ""
    if recorded["batch"] != here["batch"]:
        return "trains on other data"
    for (step, there), (_, now) in zip(recorded["curve"], here["curve"], strict=False):
        if there is None or now is None:
            return "" if there == now else f"diverges at step {step} in one of them"
        allowed = 0 if exact else AT_START if step == 0 else FIRST_STEPS if step < 10 else math.inf
        if abs(now - there) > allowed * abs(there):
            return f"loss {now!r} at step {step}, recorded {there!r}"
    return ""


def different(recorded, here):
    """The first number that is not as recorded."""
    for old, new in zip(store.rows(recorded), store.rows(here), strict=False):
        for name in old:
            if repr(old[name]) != repr(new.get(name)):
                return f"{name} is {new.get(name)!r}, recorded {old[name]!r}"
    return beginning(recorded, here, exact=True) or f"{here['n']} rows, recorded {recorded['n']}"


class Seeds:
    """The spread of recorded numbers over the seeds of their sweep."""

    def __init__(self, used):
        self.arms = {}
        for each in used:
            self.arms.setdefault(self._arm(each), []).append(each)

    @staticmethod
    def _arm(each):
        parameters = {name: value for name, value in each.body["parameters"].items() if name != "seed"}
        return store.canonical([each.trial.__name__, parameters])

    def arm(self, each):
        """The trials that differ from one in nothing but the seed, itself included."""
        return self.arms[self._arm(each)]

    def spread(self, each):
        """{(row, column): (standard deviation over seeds, degrees of freedom, one item)} of a sweep's numbers.

        Deviations are pooled over the arms of the sweep, without the trial in question, so that one wrong row does not
        explain itself; one item is the smallest step between values.
        """
        values = {place: {} for place in numbers(each.body)}
        for arm, members in self.arms.items():
            for member in members:
                if member.trial.__name__ == each.trial.__name__ and member is not each:
                    for place, value in numbers(member.body).items():
                        values.setdefault(place, {}).setdefault(arm, []).append(value)
        return {place: _pooled(groups) for place, groups in values.items()}

    def compare(self, each, here):
        """(what disagrees or "", mean difference in standard deviations) of a trial run on another arithmetic."""
        spread, old, new = self.spread(each), numbers(each.body), numbers(here)
        if old.keys() != new.keys():
            return "other rows or words than recorded", math.nan
        alpha, shifts, fault = ALARMS / max(1, len(old) * sum(map(len, self.arms.values()))), [], ""
        for place, there in old.items():
            deviation, freedom, item = spread[place]
            allowed = (TRAINED if each.body["curve"] else WITHOUT_SEEDS[0]) * abs(there) + WITHOUT_SEEDS[1]
            if deviation > 0:
                shifts.append((new[place] - there) / deviation)
                allowed += stats.t.ppf(1 - alpha / 2, freedom) * math.sqrt(2) * deviation + item
            if abs(new[place] - there) > allowed and not fault:
                fault = f"{place[1]} is {new[place]:.6g}, recorded {there:.6g}; rounding explains {allowed:.2g}"
        return fault, sum(shifts) / len(shifts) if shifts else math.nan

    def together(self, findings):
        """One more finding where all checks lean to one side by more than chance: a list of none or one."""
        shifts = [f.shift for f in findings if not math.isnan(f.shift)]
        allowed = SHIFT * math.sqrt(2 / len(shifts)) if shifts else math.inf
        if not shifts or abs(mean := sum(shifts) / len(shifts)) <= allowed:
            return []
        fault = f"{len(shifts)} checks are {mean:+.2f} deviations off on average; chance explains {allowed:.2f}"
        return [Finding("all", {}, "", "all numbers", fault)]


def numbers(body):
    """{(row, column): value} of the numbers of a trial; whether one is beyond a mark is no number."""
    rows = enumerate(store.rows(body))
    return {(i, name): float(x) for i, row in rows for name, x in row.items() if type(x) in (int, float)}


def _pooled(groups):
    squares, freedom = 0.0, 0
    for values in groups.values():
        middle = sum(values) / len(values)
        squares += sum((x - middle) ** 2 for x in values)
        freedom += len(values) - 1
    ordered = sorted({x for values in groups.values() for x in values})
    item = min((b - a for a, b in pairwise(ordered)), default=0.0)
    return (math.sqrt(squares / freedom) if freedom else 0.0), max(freedom, 1), item
