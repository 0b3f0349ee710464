"""The command where: the run and trials that a table, a figure or a verdict came from, and what has changed since."""

from typing import Annotated

import typer

from lab.commands.arguments import refuse
from lab.commands.record import data_hash, record_of, shortened, words_of

EARLY = "it ran before trials were recorded: rows are of the same trials, recorded since; its numbers are not theirs"


def where(
    name: Annotated[str, typer.Argument(help="NOTEBOOK/TABLE, /FIGURE or /CLAIM, such as 03/leak; a claim alone.")],
):
    """Say where a number came from: its run, its trials, and what has changed since; nothing runs."""
    from lab.engine import parameters

    try:
        typer.echo("\n  ".join(told(*asked(name))))
    except FileNotFoundError:
        refuse(parameters.ALONE)
    except ValueError as error:
        refuse(error)


def asked(name):
    """(notebook, what is asked of it) of NOTEBOOK/NAME, or of a claim alone; "" where a notebook stands alone."""
    from lab.engine import parameters
    from lab.ledger import claims

    place, slash, inside = name.rpartition("/")
    if slash or any(parameters.is_called(path, name) for path in parameters.notebooks()):
        return parameters.notebook_of(place or name), inside if slash else ""
    claim = claims.find(name)
    if claim.exercise == claims.BEYOND:
        raise parameters.Refused(f"no notebook judges {claim.id}")
    return parameters.notebook_of(claim.exercise), claim.id


def told(notebook, name):
    """Lines on a table, a figure or a claim of a notebook's last run. Refused lists what there is."""
    from lab.engine import parameters, runs
    from lab.ledger import cards, claims, rests

    folder = runs.latest("quick", notebook.stem)
    if (run := runs.read_run(folder)) is None:
        raise parameters.Refused(f"{notebook.stem} has not run at quick: `lab run {notebook.stem}` comes first")
    mine = [claim for claim in claims.known().values() if claim.exercise == parameters.exercise_of(notebook)]
    claim = next((claim for claim in mine if name in (claim.id, *claim.was)), None)
    files = {"table": f"tables/{name}.csv", "figure": f"figures/{name}.png"}
    files = {kind: file for kind, file in files.items() if file in run["files"]} or {"verdict": "verdicts.csv"}
    lines, table, cited = [], folder / "tables" / f"{name}.csv", True
    if "verdict" in files:
        if not claim:
            raise parameters.Refused(f"{notebook.stem} has {f'no {name!r}; it has ' * bool(name)}{names(run, mine)}")
        name, table, cited, verdicts = claim.id, None, claim.arms is None, claims.read_verdicts(folder)
        verdict = next(verdicts[verdicts.id == name].itertuples(), claim.unjudged)
        cites = [f"the {kind} {stem}" for kind in ("table", "figure") if (stem := getattr(verdict, kind))]
        lines = [cards.line(verdict)] + [f"cites {' and '.join(cites)}"] * bool(cites)
        if verdict.verdict in ("open", "pending"):
            return [f"{notebook.stem}/{name}: judged by no run", *filter(None, [claim.open])]
    lines += [f"{file} is not as the run left it" for file in runs.damaged(folder, run) if file in files.values()]
    executed = folder / "notebook.ipynb"
    known = rests.sweeps_behind(executed if executed.exists() else notebook, cited)
    behind = known.get(f"table {name}" if table else name)
    return [f"{notebook.stem}/{name}: {' and '.join(files)}", *lines, *origin(notebook, folder, run, behind, table)]


def names(run, claims):
    """The names of a run's tables and figures, and of the claims."""
    there = {kind: sorted(file.split("/")[1][:-4] for file in run["files"] if file.startswith(f"{kind}/"))
             for kind in ("tables", "figures")}  # fmt: skip
    there["claims"] = sorted(claim.id for claim in claims)
    return "; ".join(f"{kind} {', '.join(found) or 'none'}" for kind, found in there.items())


def origin(notebook, folder, run, behind, table):
    """Lines on a run and on the trials whose sweeps are behind a number, all where `behind` is None."""
    from dataclasses import replace

    from lab.engine import cells, runs, standing
    from lab.ledger import claims

    data, made, file = data_hash(), run.get("record", {}).get("trials"), drawn(notebook, run, behind)
    lines = ["no sweep: computed in the notebook's cells"] if behind == set() else []
    lines += [EARLY] if made is None and file.trials else []
    if behind is None:
        behind = {body["trial"] for body in file.trials} | set(made or ())
        lines += ["the cells do not tell which trials: all"]
    with standing.standings(notebook, file, data, behind & set(made or ())) as (_, found):
        now = standing.of_run(run, found, data, ledger=claims.ledger_hash(notebook), cells=cells.hash_of(notebook))
        standings = {each.trial: each for each in found}
        for name in sorted(behind):
            ran = len((made or {}).get(name, {}).get("keys", ()))
            lines += of_trial(name, standings.get(name), ran, name in now.changed, table, notebook.stem)
    kind = "published run" if folder == runs.published("quick", notebook.stem) else "run of this machine"
    by = words_of(replace(now, changed=())) + ("; with changes that no commit has" if run.get("changes") else "")
    return [f"{kind} {runs.shown(folder)}, {run['started'][:10]}, {run['machine']}, {by}", *lines]


def drawn(notebook, run, names):
    """A record's `File` with the rows of these trials, or all, that a run may have drawn: by the code that it tells.

    Those that others recorded count too, but where the notebook's own are as many as it drew, or the run is an early
    one, which tells no code.
    """
    from lab.engine import store
    from lab.engine.record import File

    record, own, rows = run.get("record", {}), record_of(notebook), {}
    made, whole = record.get("trials"), File(own)
    wanted = sum(len(each["keys"]) for each in (made or {}).values()) + record.get("recorded", 0)
    for path in [own, *sorted(set(own.parent.glob("*.jsonl")) - {own})]:
        file = whole if path == own else File(path)
        into = {(each["accepted"], each["old"]["code"], each["new"]["code"]) for each in file.accepted}
        for body in file.trials:
            trial, code = body["trial"], (made or {}).get(body["trial"], {}).get("code")
            if made is None or code == body["code"] or (trial, body["code"], code) in into:
                rows.setdefault(store.canonical([trial, body["parameters"]]), body | {"home": path.stem})
        whole.runs, whole.codes = whole.runs | file.runs, whole.codes | file.codes
        whole.accepted = whole.accepted + [each for each in file.accepted if each not in whole.accepted]
        enough = len(rows) == wanted and {body["trial"] for body in rows.values()} == set(made or ())
        if path == own and (enough or made is None):
            break
    whole.trials = [body for body in rows.values() if names is None or body["trial"] in names]
    return whole


def of_trial(name, each, ran, older, table, stem):
    """Lines on the recorded rows of one trial, by its `Standing`, and how they stand to today's code."""
    from lab.engine import provenance

    bodies = [*each.fresh, *each.accepted, *each.stale] if each else []
    own = f"{name}: {ran} trials of the run's own machine, " if ran else f"{name}: "
    if not bodies and ran:
        return [f"{own}none recorded{', by older code' if older else ''}"]
    if not bodies:
        gone = "the rows that the run drew are no longer in the record"
        return [f"{name}: {gone if each else 'measured in the run itself, never recorded'}"]

    def among(label):
        return sorted({body["labels"].get(label) or "" for body in bodies} - {""})

    dates, rounding, homes = among("date"), len(among("arithmetic")), [body["home"] for body in bodies]
    counts = {home: homes.count(home) for home in sorted(set(homes), key=lambda home: (home != stem, home))}
    counts = [
        f"{n} recorded rows" if home == stem else f"up to {n} rows recorded for {home}" for home, n in counts.items()
    ]
    commits = [commit[:8] + ("" if provenance.is_here(commit) else " (not here)") for commit in among("commit")]
    said = [f"{own}{' and '.join(counts)}", with_values(bodies, table)]
    said += [" to ".join(dict.fromkeys(dates[:1] + dates[-1:])), "; ".join(among("machine"))]
    said += [f"{rounding} arithmetics" * (rounding > 1), f"by commit {' and '.join(commits)}" * bool(commits)]
    why = {change["why"] for body in each.accepted if (change := each.state.accepts(body, each.changes))}
    changed = shortened(each.changed(), most=12) if each.parts else "it is gone, or cannot be followed"
    today = {"fresh": "", "accepted": f" ({'; '.join(sorted(why))})", "stale": f" (changed: {changed})"}
    today = [f"{n} {kind}{more}" for kind, more in today.items() if (n := len(getattr(each, kind)))]
    return [", ".join(filter(None, said)), f"  by today's code {', '.join(today)}"]


def with_values(bodies, table):
    """How many of the rows may be behind a table's, by the parameters that are its columns; "" where all may."""
    from types import SimpleNamespace

    import pandas as pd

    from lab.ledger.rests import trials_in

    frame = pd.read_csv(table, float_precision="round_trip") if table else pd.DataFrame()
    columns = [column for column in frame if any(column in body["parameters"] for body in bodies)]
    used = [SimpleNamespace(trial=SimpleNamespace(__name__=body["trial"]), body=body) for body in bodies]
    some = trials_in(frame[columns].drop_duplicates().to_dict("records"), used) if columns else used
    return f"{len(some)} of them with values that the table has" if len(some) < len(used) else ""
