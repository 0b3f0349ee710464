"""Spot checks: some of the recorded trials that a run drew are run here again, and must give what the record says.

On the arithmetic that recorded them every digit must be equal. On another one rounding differs and trainings drift
apart: their data, the loss that they start from and their first steps must agree. Where more than rounding explains
differs at the end, the arm's other seeds run here too, and the claims that read them are judged again with what they
gave (`lab.ledger.again`). What is checked next follows from where the last run stopped, so that repeated runs check
every row. Nothing here enters a table.
"""

import json
import math
import time
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime

from lab.engine import arithmetic, runs, store
from lab.engine.record import digits
from lab.engine.running import run_trial
from lab.language import tr
from lab.trace import FIRST_STEPS

AT_START, IN_FIRST_STEPS = 1e-5, 1e-3  # relative, of the loss before training and in its first steps
UNTRAINED, TRAINED, LEAST = 5e-3, 0.01, 1e-6  # relative, and absolute, of what rounding explains in other numbers
FEW = 0.1  # of a trial's numbers: as many may be counts, of which rounding moved an item, where nothing is trained


@dataclass(frozen=True)
class Finding:
    """One check: what was compared, and what is not as recorded."""

    trial: str
    parameters: dict
    key: str
    row: str  # see `row_of`
    part: str  # "all digits", "all numbers" or "the beginning"
    fault: str = ""  # what no rounding explains
    end: str = ""  # what rounding may have grown to in training
    here: dict | None = None  # {"n", "columns"} of a whole trial

    @property
    def agrees(self):
        return not (self.fault or self.end)

    def __str__(self):
        said = self.fault or self.end or "as recorded"
        return f"{self.trial} {store.canonical(self.parameters)}: {said} ({self.part} compared)"


@dataclass
class Checked:
    """What a spot check found: its findings, the arms that ran here whole, the seconds that others would have taken."""

    findings: list = field(default_factory=list)
    arms: list = field(default_factory=list)
    short: list = field(default_factory=list)
    interrupted: bool = False


def spot_check(used, seconds, cursor, *, device="cpu", again=(), report=lambda done, total, left: None):
    """`Checked`, of as many of the recorded trials among `used` as fit in `seconds`.

    `cursor` is the file that says where the last check stopped. A trial that takes more than a third of the time is
    left after the beginning of its training. Where the end of one differs, or its row is among `again`, its arm runs
    whole if it fits. An interrupt ends the check. report(checked, recorded, seconds left) is called before each.
    """
    until, found, arms, short = time.perf_counter() + seconds, {}, {}, {}
    recorded = sorted({each.key: each for each in used if each.origin == "record"}.values(), key=lambda each: each.key)
    last = cursor.read_text() if cursor.exists() else ""
    recorded.sort(key=lambda each: each.key <= last)  # stable: those after the last one first
    interrupted = False

    def left():
        return until - time.perf_counter()

    def run(each, limit):
        report(len(found), len(recorded), max(0.0, left()))
        found[each.key] = check(each, limit, device)
        return found[each.key]

    def run_arm(each, slower):
        """The trials of an arm that have not run whole, if they fit in the time; `slower` than recorded."""
        arm = [other for other in recorded if _arm(other) == _arm(each)]
        others = [other for other in arm if not (other.key in found and found[other.key].here)]
        short[_arm(each)] = slower * sum(other.body["seconds"] for other in others)
        if short[_arm(each)] <= left():
            findings = [found[other.key] if other not in others else run(other, left()) for other in arm]
            if all(finding.here for finding in findings):
                del short[_arm(each)]
                arms[_arm(each)] = findings

    try:
        for each in recorded:
            if (rest := left()) <= 0:
                break
            limit = rest if each.body["seconds"] < rest / 3 else max(rest / 3, 1)
            if each.key in found or (each.body["seconds"] > limit and not each.body["curve"]):
                continue
            finding = run(each, limit)
            runs.write_text(cursor, each.key)
            if finding.here and not finding.fault and (finding.end or finding.row in again):
                run_arm(each, (rest - left()) / max(each.body["seconds"], 1e-4))
    except KeyboardInterrupt:
        interrupted = True
    finally:
        report(len(recorded), len(recorded), 0.0)
    whole = [arm for arm in arms.values() if not any(finding.fault for finding in arm)]
    return Checked(list(found.values()), whole, list(short.values()), interrupted)


def _arm(each):
    """What all seeds of an arm have in common."""
    return store.canonical([each.trial.__name__, each.body["parameters"] | {"seed": None}])


def alarms(checked):
    """The findings that no rounding explains."""
    return [each for each in checked.findings if each.fault]


class Progress(runs.Progress):
    """Tells how far a check is, as that of a sweep is told."""

    def __call__(self, done, total, left):
        super().__call__(done, total, 1, left)

    def _state(self, done, total, workers, left):
        return {"said": self._words(done, total, left) if done < total else ""}

    def _words(self, done, total, left):
        said = {"done": done + 1, "total": total, "left": left}
        return tr("checking {done} of {total} recorded trials, at most {left:.0f} s", **said)


def under_way(file):
    """Whether a check is, as `Progress` told the file last."""
    try:
        return bool(json.loads(file.read_text("utf-8")).get("said"))
    except (OSError, ValueError, AttributeError):
        return False


def origins(used):
    """What is told of the trials that a run drew: how many ran here, how many are recorded, by which runs."""
    counts, recorded, accepted = {"run": 0, "store": 0, "record": 0}, {}, {}
    for each in used:
        counts[each.origin] += 1
        if each.origin == "record":
            labels = each.body["labels"]
            name = ", ".join(filter(None, (labels.get("date"), labels.get("machine"), labels.get("commit", "")[:10])))
            recorded[name] = recorded.get(name, 0) + 1
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
        "accepted": accepted,
    }


def told(origins, checked=None, more=()):
    """The same as a sentence, with what the spot checks found, and more sentences."""
    checked = checked or Checked()
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
    if findings := checked.findings:
        parts = {"all digits": tr("all digits"), "all numbers": tr("all numbers"), "the beginning": tr("the beginning")}
        compared = {words: sum(f.part == part for f in findings) for part, words in parts.items()}
        how = ", ".join(tr("{n} by {part}", n=n, part=words) for words, n in compared.items() if n)
        said += tr(" Run again here: {n} ({how}), ", n=len(findings), how=how)
        faults, ends = "; ".join(map(str, alarms(checked))), sum(bool(each.end) for each in findings)
        if faults:
            said += tr("NOT as recorded: {faults}", faults=faults)
        elif ends:
            end = {"ends": ends, "arms": len(checked.arms)}
            said += tr("as recorded but for the end of {ends}; all seeds of {arms} arms were run here for that.", **end)
        else:
            said += tr("as recorded.")
    if checked.short:
        short = {"n": len(checked.short), "seconds": math.ceil(sum(checked.short))}
        said += tr(
            " {n} arms did not fit in the time: about {seconds} s more. A part of an arm proves nothing.", **short
        )
    if checked.interrupted:
        said += tr(" The check was interrupted; what it had checked counts.")
    return " ".join([said, *more])


def check(each, limit, device):
    """The `Finding` on one recorded trial, run again for at most `limit` seconds."""
    here = run_trial(each.trial, each.body["parameters"], device=device, threads=each.threads, until=limit)
    about = {"trial": each.trial.__name__, "parameters": each.body["parameters"], "key": each.key, "row": row_of(each)}
    if "failed" in here:
        return Finding(**about, part="all digits", fault=f"fails here: {here['failed']}")
    here = json.loads(store.encoded({name: here[name] for name in ("n", "columns", "curve", "batch") if name in here}))
    exact = each.body["arithmetic"] == arithmetic.digest(device, each.threads)
    fault, end = beginning(each.body, here, exact=exact), ""
    if "columns" not in here:
        return Finding(**about, part="the beginning", fault=fault)
    if exact:
        fault = "" if digits(here) == digits(each.body) else different(each.body, here)
    elif not fault:
        off, among = beyond(each.body, here)
        fault, end = ("", off) if each.body["curve"] or among <= FEW else (off, "")
    about |= {"part": "all digits" if exact else "all numbers", "fault": fault, "end": end}
    return Finding(**about, here={name: here[name] for name in ("n", "columns")})


def row_of(each):
    """The name of a recorded row: it is another where its code or its digits are."""
    body = each.body
    return store.key([each.trial.__name__, body["parameters"], body["code"], digits(body)])


def beginning(recorded, here, *, exact):
    """What is wrong with the beginning of a training; "" where it is as recorded.

    On another arithmetic drawn numbers may round otherwise: then first losses that agree tell that the data do.
    """
    if not recorded["curve"] or not here["curve"]:
        return ""
    steps = [pair for pair in zip(recorded["curve"], here["curve"], strict=False) if exact or pair[0][0] < FIRST_STEPS]
    other = recorded["batch"] != here["batch"]
    if other and (exact or len(steps) < 2):
        return "trains on other data"
    for (step, there), (_, now) in steps:
        if there is None or now is None:
            return "" if there == now else f"diverges at step {step} in one of them"
        allowed = 0 if exact else AT_START if step == 0 else IN_FIRST_STEPS
        if abs(now - there) > allowed * abs(there):
            return "trains on other data" if other else f"loss {now!r} at step {step}, recorded {there!r}"
    return ""


def different(recorded, here):
    """The first number that is not as recorded."""
    for old, new in zip(store.rows(recorded), store.rows(here), strict=False):
        for name in old:
            if repr(old[name]) != repr(new.get(name)):
                return f"{name} is {new.get(name)!r}, recorded {old[name]!r}"
    return beginning(recorded, here, exact=True) or f"{here['n']} rows, recorded {recorded['n']}"


def beyond(recorded, here):
    """(the first number that is off by more than rounding explains, or "", the share of such numbers)."""
    if here["n"] != recorded["n"]:
        return f"{here['n']} rows, recorded {recorded['n']}", 1.0
    relative, old, new = TRAINED if recorded["curve"] else UNTRAINED, numbers(recorded), numbers(here)
    off = [
        f"{place[1]} is {new.get(place)!r}, recorded {old.get(place)!r}"
        for place in old | new
        if not (place in old and place in new and math.isclose(old[place], new[place], rel_tol=relative, abs_tol=LEAST))
    ]
    return (off[0], len(off) / len(old | new)) if off else ("", 0.0)


def numbers(body):
    """{(row, column): value} of the numbers of a trial; whether one is beyond a mark is no number."""
    rows = enumerate(store.rows(body))
    return {(i, name): float(x) for i, row in rows for name, x in row.items() if type(x) in (int, float)}


# What was found stands until it is explained


@dataclass(frozen=True)
class Found:
    """What contradicts a verdict: the finding on a row that is no longer believed, or those on all seeds of an arm."""

    since: str  # date
    findings: list

    @property
    def fault(self):
        return self.findings[0].fault

    @property
    def rows(self):
        return {each.row for each in self.findings}

    def compared_again(self, checked):
        """Whether a check went over the same again: what it found counts from now on."""
        if not self.fault:
            return any(self.rows & {each.row for each in arm} for arm in checked.arms)
        (was,) = self.findings
        return any(f.row == was.row and (f.here or was.part == "the beginning") for f in checked.findings)


def together(standing, checked):
    """All that was found: what stands from before, but for what was compared again, and what a check found now."""
    since = {row: each.since for each in standing for row in each.rows}
    today = datetime.now(UTC).date().isoformat()
    new = [[each] for each in alarms(checked)] + checked.arms
    stays = [each for each in standing if not each.compared_again(checked)]
    return stays + [Found(min(since.get(each.row, today) for each in group), group) for group in new]


def read_found(path):
    """All that is kept in a file; nothing where there is none, or it is damaged."""
    try:
        kept = json.loads(path.read_text("utf-8"))
        return [Found(each["since"], [Finding(**finding) for finding in each["findings"]]) for each in kept]
    except (OSError, ValueError, TypeError, LookupError):
        return []


def write_found(path, found):
    """Keep what was found, in one step; no file where it is nothing."""
    if found:
        runs.write_text(path, store.encoded([asdict(each) for each in found]))
    else:
        path.unlink(missing_ok=True)


def standing(found, used):
    """(what was found that concerns the recorded rows among `used`, what concerns other rows).

    What concerns a row that was replaced since, or whose code was, is in neither.
    """
    names = {_name(each.trial, each.parameters) for group in found for each in group.findings}
    drawn = {
        name: row_of(each)
        for each in used
        if names and each.origin == "record" and (name := _name(each.trial.__name__, each.body["parameters"])) in names
    }
    here, elsewhere = [], []
    for group in found:
        now = [drawn.get(_name(each.trial, each.parameters), each.row) for each in group.findings]
        if now == [each.row for each in group.findings]:
            (here if group.rows <= set(drawn.values()) else elsewhere).append(group)
    return here, elsewhere


def _name(trial, parameters):
    return store.canonical([trial, parameters])
