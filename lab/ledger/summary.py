"""What the finished runs of a profile add up to: all verdicts in one table, and an overview for people."""

import pandas as pd

from lab.engine import parameters, runs
from lab.ledger import claims


def read_verdicts(folder):
    """verdicts.csv of a run as it was written; no rows where a run has none."""
    path, numbers = folder / "verdicts.csv", dict.fromkeys(("effect", "low", "high", "n"), [""])
    if not path.exists():
        return pd.DataFrame(columns=list(claims.Verdict.model_fields))
    exact = {"dtype": {"exercise": str, "n": "Int64"}, "float_precision": "round_trip"}
    return pd.read_csv(path, keep_default_na=False, na_values=numbers, **exact)


def collect(folder):
    """All verdicts of a profile's finished runs, with the rest of the ledger as pending. One row a claim."""
    found = {}
    for path in sorted(folder.glob("*/verdicts.csv")):
        run = runs.read_run(path.parent)
        if run is not None and path.name not in runs.damaged(path.parent, run):
            found |= {row["id"]: row for row in read_verdicts(path.parent).to_dict("records")}
    rows = [found.get(claim.id) or claim.unjudged.model_dump() for claim in claims.ledger().values()]
    return pd.DataFrame(rows, columns=list(claims.Verdict.model_fields)).astype({"n": "Int64"})


def overview(folder, prefix=""):
    """A Markdown table with a row for each finished exercise; `prefix` leads from the reader's folder to `folder`."""
    table = collect(folder)
    lines = ["| exercise | figures | verdicts | core minutes |", "| --- | --- | --- | --- |"]
    for notebook in parameters.notebooks():
        if run := runs.read_run(folder / notebook.stem):
            place = f"{prefix}{notebook.stem}"
            figures = len(list((folder / notebook.stem / "figures").glob("*.png")))
            counts = table[table.exercise == parameters.exercise_of(notebook)].verdict.value_counts()
            verdicts = ", ".join(f"{n} {verdict}" for verdict, n in counts.items())
            title = f"[{parameters.title_of(notebook)}]({place}/notebook.ipynb)"
            lines.append(f"| {title} | [{figures}]({place}/figures) | {verdicts} | {run['core_seconds'] / 60:.1f} |")
    return "\n".join(lines)


def outdated(folder):
    """Whether a run or the ledger is newer than what `summarise` wrote."""
    written, ledger = folder / "claims.csv", runs.project_root() / "experiments" / "claims.yaml"
    newest = max(path.stat().st_mtime for path in (ledger, *folder.glob("*/run.json")))
    return not written.exists() or written.stat().st_mtime <= newest


def summarise(folder):
    """Write claims.csv and README.md of a profile from its finished runs."""
    finished = [run for notebook in parameters.notebooks() if (run := runs.read_run(folder / notebook.stem))]
    runs.write_table(folder / "claims.csv", collect(folder))
    machines = sorted({f"{run['machine']}, torch {run['versions']['torch']}, {run['device']}" for run in finished})
    text = f"""# Results of the {folder.name} profile

Written by `lab run`. Every verdict with its interval is in [claims.csv](claims.csv).

{overview(folder)}

Measured on {"; ".join(machines) or "no machine yet"}.
"""
    runs.write_text(folder / "README.md", text)


def ratios(path):
    """A Markdown table of results/benchmarks/summary.csv: what was measured beside what people use otherwise."""
    lines = ["| benchmark | measured | 95 % interval | target | met |", "| --- | --- | --- | --- | --- |"]
    for row in pd.read_csv(path).itertuples():
        case = f"{row.benchmark.replace('_', ' ')}: {row.case}"
        lines.append(f"| {case} | {row.measured:.3g} | {row.low:.3g} … {row.high:.3g} | {row.target} | {row.met} |")
    return "\n".join(lines)


def publish():
    """Put the tables of results/quick and results/benchmarks into README.md and README.zh.md, between their markers."""
    root = runs.project_root()
    tables = {
        "overview": overview(root / "results" / "quick", "results/quick/"),
        "ratios": ratios(root / "results" / "benchmarks" / "summary.csv"),
    }
    for name in ("README.md", "README.zh.md"):
        text = (root / name).read_text("utf-8")
        for mark, table in tables.items():
            before, _, rest = text.partition(f"<!-- {mark} -->")
            _, _, after = rest.partition("<!-- end -->")
            text = f"{before}<!-- {mark} -->\n\n{table}\n\n<!-- end -->{after}"
        runs.write_text(root / name, text)
