"""The tables of the book, cells as safe HTML: what a run or a user wrote is escaped."""

import html
import math
from pathlib import Path

import pandas as pd
from scipy.stats import t as student

from lab.ledger import claims, errata

VERDICT_ZH = {"supported": "支持", "refuted": "反驳", "inconclusive": "未定", "proved": "证实", "disproved": "证伪",
              "not run at these values": "此参数下未运行", "not reproduced here": "此处未能重现",
              "open": "开放", "pending": "待判", "not judged": "未判"}  # fmt: skip
ROWS_SHOWN = 120  # of a table; the CSV beside it has all


def scoreboard(runs):
    """One row for each claim and profile that judged it; claims that none judged once."""
    ledger = claims.ledger()
    rows = []
    for run in runs:
        about = {"profile": run.profile, "size": run.size, "device": run.record["device"], "stem": run.stem}
        judged = run.verdicts.to_dict("records")
        rows += [row | about for row in judged if row["id"] in ledger and row["verdict"] not in ("open", "pending")]
    seen = {row["id"] for row in rows}
    nowhere = {"profile": "", "size": "", "device": "", "stem": ""}
    rows += [c.unjudged.model_dump() | nowhere for c in ledger.values() if c.id not in seen]
    ordered = sorted(ledger.values(), key=lambda claim: (len(claim.exercise), claim.exercise))  # 1.2 before 1.12
    order = {claim.id: i for i, claim in enumerate(ordered)}
    return pd.DataFrame(rows).sort_values("id", key=lambda ids: ids.map(order), kind="stable")


def score_table(board, zh):
    """The scoreboard as people read it, cells as safe HTML."""
    ledger, up = claims.ledger(), "../" if zh else ""
    rows = []
    for row in board.itertuples():
        claim = ledger[row.id]
        effect = "" if row.effect != row.effect else f"{row.effect:.3g}"
        effect += "" if row.low != row.low else f" [{row.low:.3g}, {row.high:.3g}]"
        link = html.escape(row.id)
        if row.stem:
            link = f'<a href="{html.escape(place(row.stem, row.figure, up))}">{link}</a>'
        verdict = VERDICT_ZH[row.verdict] if zh else row.verdict
        note = "; ".join(text for text in (row.note, claim.prediction and claim.prediction.revised) if text)
        rows.append([
            claim.exercise,
            f'<span class="verdict {row.verdict.replace(" ", "-")}">{verdict}</span>',
            f"{html.escape(claim.claim_zh if zh else claim.claim)}<br>{link}",
            html.escape(f"{effect} {row.unit}"),
            f"{html.escape(row.threshold or claim.expected)}<br><em>{html.escape(note)}</em>",
            html.escape(", ".join(word for word in (row.profile, row.device, row.size) if word)),
            claim.priority,
            claim.kind,
        ])  # fmt: skip
    names = (
        ["练习", "判定", "论断", "效应 [区间]", "预测与备注", "规模与设备", "级别", "类型"] if zh else
        ["exercise", "verdict", "claim", "effect [interval]", "predicted, note", "profile, device, size", "priority",
         "kind"]
    )  # fmt: skip
    return pd.DataFrame(rows, columns=names)


def errata_table(runs, zh):
    stems = {run.stem: {path.stem for path in run.folder.glob("tables/*.csv")} for run in runs}
    rows = []
    for entry in errata.errata().values():
        says, right, struck = (
            (entry.says_zh, entry.right_zh, entry.struck_zh) if zh else (entry.says, entry.right, entry.struck)
        )
        evidence = "<br>".join(evidence_link(item, stems, "../" if zh else "") for item in entry.evidence)
        if struck:
            says, right = f"<s>{html.escape(says)}</s>", html.escape(struck)
        else:
            says, right = html.escape(says), html.escape(right)
        rows.append([entry.number, html.escape(f"{entry.source} {entry.where}"), says, right, evidence])
    names = ["编号", "出处", "原文（转述）", "更正", "证据"] if zh else ["no.", "where", "says", "right", "evidence"]
    return pd.DataFrame(rows, columns=names)


def anchor(stem):
    """The id that Sphinx gives the heading of a figure's table."""
    return stem.replace("_", "-").lower()


def place(notebook, figure="", up=""):
    """The address of an exercise, or of one of its figures with the table behind it."""
    return f"{up}tables/{notebook}.html#{anchor(figure)}" if figure else f"{up}exercises/{notebook}.html"


def evidence_link(item, stems, up):
    """A link where the book has what is named; `stems` are the tables of each finished notebook."""
    notebook, _, part = item.partition("/")
    if notebook in stems and (not part or part in stems[notebook]):
        return f'<a href="{html.escape(place(notebook, part, up))}">{html.escape(item)}</a>'
    return html.escape(item) if item.startswith("literature") else f"<code>{html.escape(item)}</code>"


def searchable(table):
    """An HTML table that filters by column, searches and sorts in the browser, its script inside the page."""
    import itables
    from itables.javascript import generate_init_offline_itables_html

    bundle = Path(itables.__file__).parent / "html" / "dt_bundle.js"
    return generate_init_offline_itables_html(bundle) + itables.to_html_datatable(
        table, connected=False, allow_html=True, column_filters="header", paging=True, pageLength=50, maxBytes=0,
        lengthMenu=[25, 50, 100, 400], style="width:100%", classes="display compact", showIndex=False,
        autoWidth=False, maxRows=0,
    )  # fmt: skip


def plain_table(frame):
    """A table of numbers and words as HTML, escaped."""
    return frame.to_html(index=False, classes="lab", float_format="{:.4g}".format, na_rep="")


def matters(runs):
    """Judged comparisons by their distance from no effect in standard deviations of the runs, and what they cost."""
    kinds = claims.ledger()
    rows = []
    for run in runs:
        for row in run.verdicts.itertuples():
            spread = row.high - row.low
            if kinds[row.id].kind != "comparison" or not 0 < spread < math.inf or pd.isna(row.n) or row.n < 2:
                continue
            sd = spread / 2 / student.ppf(0.975, row.n - 1) * row.n**0.5
            null = row.unit == "ratio"  # no effect is one there, zero elsewhere
            apart = abs(row.effect - null) / sd
            rows.append([run.exercise, row.id, row.verdict, row.effect, row.unit, row.n, apart, run.minutes])
    names = ["exercise", "claim", "verdict", "effect", "unit", "n", "effect in sd", "core minutes of the exercise"]
    table = pd.DataFrame(rows, columns=names)
    table["sd per minute"] = table["effect in sd"] / table["core minutes of the exercise"]
    return table.sort_values("effect in sd", ascending=False)


def machines(runs):
    """Where each profile was measured."""
    about = [
        (run.profile, run.record["machine"], run.record["device"],
         ", ".join(f"{name} {version}" for name, version in run.record["versions"].items()))
        for run in runs
    ]  # fmt: skip
    table = pd.DataFrame(sorted(set(about)), columns=["profile", "machine", "device", "versions"])
    return plain_table(table)


def behind(run):
    """[(stem, has a figure, claims judged from it, HTML of its first rows, number of rows)]."""
    verdicts, found = run.verdicts, []
    others = sorted({path.stem for path in (run.folder / "tables").glob("*.csv")} - set(run.figures))
    for stem in [*run.figures, *others]:
        path = run.folder / "tables" / f"{stem}.csv"
        judged = verdicts[(verdicts.figure == stem) | (verdicts.table == stem)]
        frame = pd.read_csv(path) if path.exists() else pd.DataFrame()
        shown = plain_table(frame.head(ROWS_SHOWN))
        found.append((stem, stem in run.figures, judged.to_dict("records"), shown, len(frame)))
    return found
