"""What machines contributed: a timing's verdict belongs to a machine, and a replication to who made it.

results/machines/NAME/PROFILE/NN_slug/       run.json  verdicts.csv  tables/*.csv  of the timings of a run
results/machines/NAME/runs/NN_slug-NAME/     the same of all verdicts of a replication
"""

import re
import shutil

import pandas as pd

from lab.engine import parameters, runs
from lab.ledger import claims, numerals

KEPT = (
    "status", "exercise", "profile", "parameters", "own_parameters", "corpus", "started", "seconds", "core_seconds",
    "seeds_from", "commit", "changes", "versions", "machine", "card", "device", "threads", "products",
)  # fmt: skip


class CannotContribute(ValueError):
    """A run that says nothing of its machine, or that cannot be repeated; the message says why and what to do."""


def home():
    return runs.project_root() / "results" / "machines"


def name_of(run):
    """A readable name of the machine of a run: its graphics card, or its processor and number of cores."""
    processor, cores, *_ = run["machine"].split(", ")
    words = run.get("card") or f"{processor.split(' @')[0]} {cores}"
    words = re.sub(r"\((r|tm|c)\)|\b(cpu|processor)\b", " ", words.lower())
    return re.sub(r"[^a-z0-9]+", "-", words).strip("-")


def contribute(folder, name=None):
    """Copy the timing verdicts of a finished run, all verdicts of a replication, with their tables; returns where to.

    CannotContribute where the run is not finished, judges nothing, was made beside a commit or with other parameters
    than its profile's, has no timing, or where another machine goes by that name.
    """
    run, shown = runs.read_run(folder), runs.shown(folder)
    if run is None or "profile" not in run:
        raise CannotContribute(f"{shown} holds no finished run: `lab run` comes first")
    if wrong := runs.damaged(folder, run):
        raise CannotContribute(f"{shown}: {', '.join(wrong)} is not as the run left it; `lab run` makes it anew")
    if run.get("notebook") or run["profile"] not in ("quick", "full"):
        raise CannotContribute(f"{shown}: runs of the lessons at quick or full are wanted; smoke judges nothing")
    if run.get("changes") is not False:
        raise CannotContribute(f"{shown} was not made by a commit alone: commit, then run")
    if run["own_parameters"]:
        raise CannotContribute(f"{shown} has {runs.own_words(run['own_parameters'])}: another comparison")
    if name is not None and not re.fullmatch(r"\w[\w.-]*", name):
        raise CannotContribute(f"--name {name!r}: letters, digits, and . _ - after the first are allowed")
    ledger, rows = claims.ledger(), claims.read_verdicts(folder)
    wanted = {c for c in ledger if ledger[c].timing or run.get("seeds_from")}
    rows = rows[rows.verdict.isin((*claims.JUDGED, "answered")) & rows.id.isin(wanted)]
    if rows.empty:
        raise CannotContribute(f"{shown} judges no timing")
    place = home() / (name or name_of(run))
    about = {part: run[part] for part in KEPT if part in run}
    about["parameters"] = {key: value for key, value in run["parameters"].items() if key != "results"}
    for other in place.glob("*/*/run.json"):
        there = runs.read_run(other.parent) or {}
        if any(there.get(part) != about.get(part) for part in ("machine", "card", "device")):
            raise CannotContribute(f"{runs.shown(place)} is another machine, {there.get('machine')}: choose a --name")
    aside = runs.new_folder(place / ".new", folder.name)
    for table in sorted(set(rows.table) - {""}):
        (aside / "tables").mkdir(exist_ok=True)
        shutil.copy(folder / "tables" / f"{table}.csv", aside / "tables")
    runs.write_table(aside / "verdicts.csv", rows.assign(figure=""))
    runs.write_run(aside, about)
    final = place / ("runs" if run.get("seeds_from") else run["profile"]) / folder.name
    runs.put(aside, final)
    aside.parent.rmdir()
    return final


def contributed():
    """All contributed verdicts: the columns of verdicts.csv with `machine` (its name), profile, commit and seeds_from.

    ValueError names what is not as it was written.
    """
    rows = []
    for path in sorted(home().glob("*/*/*/verdicts.csv")):
        run = runs.read_run(path.parent)
        if run is None or (wrong := runs.damaged(path.parent, run)):
            raise ValueError(f"{runs.shown(path.parent)}: {', '.join(wrong) if run else 'run.json'} is damaged")
        about = {"machine": path.parts[-4], "profile": run["profile"], "commit": run["commit"]}
        about |= {"seeds_from": run.get("seeds_from", 0)}
        rows += [row | about for row in claims.read_verdicts(path.parent).to_dict("records")]
    columns = [*claims.Verdict.model_fields, "machine", "profile", "commit", "seeds_from"]
    return pd.DataFrame(rows, columns=columns)


def timings():
    """The contributed verdicts of timings, replications aside."""
    table, ledger = contributed(), claims.ledger()
    return table[(table.seeds_from == 0) & table.id.map(lambda name: name in ledger and ledger[name].timing)]


def told(row):
    """A verdict with its effect, in words."""
    return f"{row.verdict} {numerals.effect_of(row)}".strip()


def elsewhere(claim, profile, table=None):
    """What the machines say of a timing in a profile, in words; "" where none does."""
    table = timings() if table is None else table
    mine = table[(table.id == claim) & (table.profile == profile)]
    said = "; ".join(f"{row.machine}: {told(row)}" for row in mine.itertuples())
    return ("machines differ: " if mine.verdict.nunique() > 1 else "by machine: ") + said if said else ""


def overview():
    """A Markdown table: a row a timing, a column a machine, those on which machines differ first and in bold."""
    table = timings()
    if table.empty:
        return "No machine has contributed yet."
    names = sorted(table.machine.unique())
    lines = [f"| timing | {' | '.join(names)} |", "| --- |" + " --- |" * len(names)]
    groups = [(group.verdict.nunique() < 2, profile, claim, group)
              for (profile, claim), group in table.groupby(["profile", "id"])]  # fmt: skip
    for agreed, profile, claim, group in sorted(groups, key=lambda each: each[:3]):
        cells = {row.machine: told(row) for row in group.itertuples()}
        said = f"{claim} ({profile})" if agreed else f"**{claim}** ({profile})"
        lines.append(f"| {said} | {' | '.join(cells.get(name, '') for name in names)} |")
    return "\n".join(lines)


def readme():
    """The text of results/README.md."""
    return f"""# Results

Written by `lab machines`. [quick](quick) and [full](full) hold the runs of a profile, [record](record) the recorded
trials, `machines/` what machines contributed, [benchmarks](benchmarks) the comparisons with other implementations.

## Timings

A timing's verdict belongs to the machine that gave it. `lab run`, then `lab machines add`, adds yours.

{overview()}
"""


def finished():
    """The folders of the finished runs on this machine, at quick and full, that judge timings."""
    timed = {c.exercise for c in claims.ledger().values() if c.timing}
    folders = [runs.place_of_run(profile, notebook.stem) for profile in ("quick", "full")
               for notebook in parameters.notebooks() if parameters.exercise_of(notebook) in timed]  # fmt: skip
    return [folder for folder in folders if runs.read_run(folder)]
