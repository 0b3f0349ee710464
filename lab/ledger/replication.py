"""Replications: the same comparison on seeds that no committed run has used, and which claims they confirm."""

from dataclasses import replace

from lab.engine import runs
from lab.engine.parameters import Refused
from lab.engine.record import File
from lab.ledger import claims, machines

BLOCK = 123_457  # seeds of one replication; no round number, since round ones draw what trials are tested on


def on_new_seeds(jobs, name=None):
    """The jobs as replications, each in results/runs and on a block of seeds of its own. Refused: the name is taken."""
    found = []
    for job in jobs:
        number = next_number(job.notebook.stem, job.results)
        own = "-".join(filter(None, (job.name, f"replication-{number}")))
        found.append(replace(job, name=name or own, seeds_from=number * BLOCK))
        if earlier := found[-1].conflict():
            raise Refused(f"{earlier}, which stays as it is: choose another --name")
    return found


def next_number(stem, results):
    """The first block of seeds that no recorded row, contributed replication or finished run of a notebook has used."""
    file = File(runs.project_root() / "results" / "record" / f"{stem}.jsonl")
    seeds = [body["parameters"].get("seed") for body in file.trials]
    taken = {seed // BLOCK for seed in seeds if isinstance(seed, int)}
    for folder in (*results.glob(f"runs/*/{stem}*"), *machines.home().glob(f"*/runs/{stem}*")):
        taken.add((runs.read_run(folder) or {}).get("seeds_from", 0) // BLOCK)
    return next(number for number in range(1, len(taken) + 2) if number not in taken)


def confirmed(claim, verdict, profile, contributed=None):
    """Whether replications agree with a verdict on a claim whose comparison was changed after a run, in a word.

    "confirmed": a contributed replication of this profile judged the same prediction, and all that did agree; "not
    confirmed": none did, or one differs; "": nothing was changed after a run, or nothing was judged.
    """
    if not (claim.prediction and claim.prediction.revised and verdict in claims.JUDGED):
        return ""
    table = machines.contributed() if contributed is None else contributed
    table = table[(table.seeds_from > 0) & (table.profile == profile) & (table.id == claim.id)]
    found = set(table[table.threshold == str(claim.prediction)].verdict)
    return "confirmed" if found == {verdict} else "not confirmed"
