"""What the finished runs of a profile add up to: all verdicts in one table, and an overview for people."""

import pandas as pd

from lab import claims, parameters, results


def collect(folder):
    """All verdicts of a profile's finished runs, with the rest of the ledger as pending. One row a claim."""
    found, numbers = {}, dict.fromkeys(("effect", "low", "high", "n"), [""])
    for path in sorted(folder.glob("*/verdicts.csv")):
        run = results.read_run(path.parent)
        if run is not None and path.name not in results.damaged(path.parent, run):
            exact = {"dtype": {"exercise": str, "n": "Int64"}, "float_precision": "round_trip"}
            table = pd.read_csv(path, keep_default_na=False, na_values=numbers, **exact)
            found |= {row["id"]: row for row in table.to_dict("records")}
    rows = [found.get(claim.id) or claim.unjudged.model_dump() for claim in claims.ledger().values()]
    return pd.DataFrame(rows, columns=list(claims.Verdict.model_fields)).astype({"n": "Int64"})


def overview(folder, prefix=""):
    """A Markdown table with a row for each finished exercise; `prefix` leads from the reader's folder to `folder`."""
    table = collect(folder)
    lines = ["| exercise | figures | verdicts | core minutes |", "| --- | --- | --- | --- |"]
    for notebook in parameters.notebooks():
        if run := results.read_run(folder / notebook.stem):
            place = f"{prefix}{notebook.stem}"
            figures = len(list((folder / notebook.stem / "figures").glob("*.png")))
            counts = table[table.exercise == parameters.exercise_of(notebook)].verdict.value_counts()
            verdicts = ", ".join(f"{n} {verdict}" for verdict, n in counts.items())
            title = f"[{parameters.title_of(notebook)}]({place}/notebook.ipynb)"
            lines.append(f"| {title} | [{figures}]({place}/figures) | {verdicts} | {run['core_seconds'] / 60:.1f} |")
    return "\n".join(lines)


def outdated(folder):
    """Whether a run or the ledger is newer than what `summarise` wrote."""
    written, ledger = folder / "claims.csv", results.project_root() / "experiments" / "claims.yaml"
    newest = max(path.stat().st_mtime for path in (ledger, *folder.glob("*/run.json")))
    return not written.exists() or written.stat().st_mtime <= newest


def summarise(folder):
    """Write claims.csv and README.md of a profile from its finished runs."""
    runs = [run for notebook in parameters.notebooks() if (run := results.read_run(folder / notebook.stem))]
    results.write_table(folder / "claims.csv", collect(folder))
    machines = sorted({f"{run['machine']}, torch {run['versions']['torch']}, {run['device']}" for run in runs})
    text = f"""# Results of the {folder.name} profile

Written by `lab run`. Every verdict with its interval is in [claims.csv](claims.csv).

{overview(folder)}

Measured on {"; ".join(machines) or "no machine yet"}.
"""
    results.write_text(folder / "README.md", text)


def publish():
    """Put the overview of results/quick into README.md and README.zh.md, between their two markers."""
    root = results.project_root()
    for name in ("README.md", "README.zh.md"):
        before, _, rest = (root / name).read_text("utf-8").partition("<!-- overview -->")
        _, _, after = rest.partition("<!-- end -->")
        table = overview(root / "results" / "quick", "results/quick/")
        results.write_text(root / name, f"{before}<!-- overview -->\n\n{table}\n\n<!-- end -->{after}")
