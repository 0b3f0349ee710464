"""What the finished runs of a profile add up to: all verdicts in one table, and an overview for people."""

import pandas as pd

from lab.engine import parameters, runs
from lab.language import in_language, tr, using
from lab.ledger import cards, claims, findings, openings
from lab.ledger.claims import read_verdicts

READMES = {"README.md": "en", "README.zh.md": "zh"}


def collect(*folders):
    """All verdicts of a profile's finished runs, with the rest of the ledger as pending. One row a claim.

    Of a notebook that has run in several of the folders, the last of these counts. A verdict on another comparison than
    today's is none: the claim is pending again.
    """
    found, ledger = {}, claims.ledger()
    for place in (folder / notebook.stem for folder in folders for notebook in parameters.notebooks()):
        run = runs.read_run(place)
        if run is not None and (place / "verdicts.csv").exists():
            verdicts = read_verdicts(place).to_dict("records")
            found |= {row["id"]: row for row in verdicts if _compares_the_same(row, ledger.get(row["id"]))}
    rows = [found.get(claim.id) or claim.unjudged.model_dump() for claim in ledger.values()]
    return pd.DataFrame(rows, columns=list(claims.Verdict.model_fields)).astype({"n": "Int64"})


def _compares_the_same(row, claim):
    """Whether a verdict answers what the ledger compares today; early runs do not say what they compared."""
    with using("en"):
        english = claim and claim.compared
    return claim is not None and row["threshold"] in ("", english, claim.compared)


def overview(folder, prefix="", older=()):
    """A Markdown table with a row for each finished exercise; `prefix` leads from the reader's folder to `folder`.

    `older` are the stems of the runs that older code made, or that read another text: their rows say so.
    """
    table = collect(folder)
    heads = [tr("exercise"), tr("figures"), tr("verdicts"), tr("minutes without the record")]
    lines = [f"| {' | '.join(heads)} |", "| --- | --- | --- | --- |"]
    for notebook in parameters.notebooks():
        if run := runs.read_run(folder / notebook.stem):
            place = f"{prefix}{notebook.stem}"
            figures = len(list((folder / notebook.stem / "figures").glob("*.png")))
            title = f"[{openings.title(notebook)}]({place}/notebook.ipynb)"
            counts = verdict_counts(table[table.exercise == parameters.exercise_of(notebook)])
            if notebook.stem in older:
                counts += "; *" + tr("by older code") + "*"
            lines.append(f"| {title} | [{figures}]({place}/figures) | {counts} | {run['core_seconds'] / 60:.1f} |")
    return "\n".join(lines)


def verdict_counts(table):
    """How many claims came to each verdict, and how many of these are not gated yet, in words."""
    words, bare = cards.words(), int((table.gates == claims.UNGATED).sum())
    told = ", ".join(f"{n} {words[verdict]}" for verdict, n in table.verdict.value_counts().items())
    return told + (f"; {bare} {tr('not yet gated')}" if bare else "")


def gallery_cards(folder, older=()):
    """Markdown: for each finished exercise its figure, question, finding, verdicts and minutes; see `overview`."""
    table, told = collect(folder), []
    for notebook in parameters.notebooks():
        if not (run := runs.read_run(folder / notebook.stem)):
            continue
        place, stem = notebook.stem, findings.hero(notebook, folder, table)
        counts = verdict_counts(table[table.exercise == parameters.exercise_of(notebook)])
        minutes = tr("{n:.1f} minutes without the record", n=run["core_seconds"] / 60)
        if place in older:
            minutes += " · *" + tr("by older code") + "*"
        told += [f"### [{openings.title(notebook)}]({place}/notebook.ipynb)", openings.question(notebook)]
        told += [f"**{found}**"] if (found := findings.finding_of(notebook, table)) else []
        told += (
            [f"[![{shown(folder / place, stem)}]({place}/figures/{stem}.png)]({place}/notebook.ipynb)"] if stem else []
        )
        figures, tables = tr("figures"), tr("tables")
        told += [f"{counts} · {minutes} · [{figures}]({place}/figures) · [{tables}]({place}/tables)"]
    return "\n\n".join(told)


def shown(folder, stem):
    """What a figure shows; its name in words where it does not say so."""
    from lab import figures

    said = " ".join(figures.captions_in(folder / "figures" / f"{stem}.png")[0].split())
    return said.translate(str.maketrans("[]", "()")) or stem.replace("_", " ")


def described(folder):
    """Lines of Markdown: what the figures of the finished runs show, of those that say so."""
    from lab import figures

    pictures = [path for path in sorted(folder.glob("*/figures/*.png")) if runs.read_run(path.parents[1])]
    said = {path.relative_to(folder).as_posix(): " ".join(figures.captions_in(path)[0].split()) for path in pictures}
    return [f"* [{path.replace('/figures/', '/')[:-4]}]({path}): {alt}" for path, alt in said.items() if alt]


def outdated(folder):
    """Whether a run or the ledger is newer than what `summarise` wrote."""
    written, read = folder / "claims.csv", [*claims.claims_folder().glob("*.yaml"), *folder.glob("*/run.json")]
    return not written.exists() or any(path.stat().st_mtime >= written.stat().st_mtime for path in read)


def summarise(folder, older=()):
    """Write claims.csv and README.md, README.zh.md of a profile from its finished runs; see `overview`."""
    write_claims(folder)
    for name, speak in READMES.items():
        with using(speak):
            runs.write_text(folder / name, page(folder, older))


def write_claims(folder):
    """Write claims.csv. Its exercises are notebooks, such as 10_ffn_sparsity: pandas would read 1.10 as 1.1."""
    stems = {parameters.exercise_of(path): path.stem for path in parameters.notebooks()}
    table = collect(folder)
    runs.write_table(folder / "claims.csv", table.assign(exercise=table.exercise.replace(stems)))


def page(folder, older=()):
    """The page of a profile: a card for each exercise, and what every figure shows; see `overview`."""
    finished = [run for notebook in parameters.notebooks() if (run := runs.read_run(folder / notebook.stem))]
    machines = sorted({f"{run['machine']}, torch {run['versions']['torch']}, {run['device']}" for run in finished})
    parts = [
        "# " + tr("Results of the {profile} profile", profile=folder.name),
        tr("Written by `lab run`. Every verdict with its interval is in {table}.", table="[claims.csv](claims.csv)")
        + f" · {in_language('[中文](README.zh.md)', '[English](README.md)')}",
        tr("Measured on {machines}.", machines="; ".join(machines) or tr("no machine yet")),
        gallery_cards(folder, older),
    ]
    if said := described(folder):
        parts += ["## " + tr("What the figures show"), "\n".join(said)]
    return "\n\n".join(filter(None, parts)) + "\n"


def ratios(path):
    """A Markdown table of results/benchmarks/summary.csv: what was measured beside what people use otherwise."""
    lines = ["| benchmark | measured | 95 % interval | target | met |", "| --- | --- | --- | --- | --- |"]
    for row in pd.read_csv(path).itertuples():
        case = f"{row.benchmark.replace('_', ' ')}: {row.case}"
        lines.append(f"| {case} | {row.measured:.3g} | {row.low:.3g} … {row.high:.3g} | {row.target} | {row.met} |")
    return "\n".join(lines)


def publish(older=()):
    """Write what the READMEs say of the results, between their markers, and the table of all benchmarks.

    Nothing runs: all of it comes from committed tables. `older` as in `overview`.
    """
    from lab.ledger import errata

    root = runs.project_root()
    summary = root / "results" / "benchmarks" / "summary.csv"
    for name, speak in READMES.items():
        text = (root / name).read_text("utf-8")
        with using(speak):
            for mark, table in made(root / "results" / "quick", older).items():
                before, _, rest = text.partition(f"<!-- {mark} -->")
                _, _, after = rest.partition("<!-- end -->")
                text = f"{before}<!-- {mark} -->\n\n{table}\n\n<!-- end -->{after}"
            runs.write_text(root / "results" / name.replace("README", "errata"), errata.page())
        runs.write_text(root / name, text)
    about = "What was measured beside what people use otherwise; `make bench` measures it anew."
    picture = "![A training step beside GPT-2 and x-transformers](training_step.png)"
    runs.write_text(summary.parent / "README.md", f"# Benchmarks\n\n{about}\n\n{ratios(summary)}\n\n{picture}\n")
    summarise(root / "results" / "quick", older)


def made(quick, older=()):
    """{marker: Markdown} of what stands in a README, in the reader's language."""
    from lab.ledger import errata

    table = collect(quick)
    wrong = sum(entry.struck is None for entry in errata.errata().values())
    return {
        "findings": findings.findings(table, "results/quick/"),
        "about": findings.about(table, wrong, quick),
        "overview": overview(quick, "results/quick/", older),
    }
