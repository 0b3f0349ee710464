"""The card of a judged claim: a line for each cell, the labels, the bar and the gates."""

import re

from pandas import isna

from lab.claims.claims import UNGATED, Line
from lab.claims.numerals import SHARES, effect_of, in_unit

BAR = re.compile(r"([<>=]) (\S+?)(?: ± (\S+))?$")


def card(claim, lines, own=""):
    """The card of a Claim as Markdown: a table of its lines, then labels, bar, gates and sizes.

    `own` names, in words, the parameters whose values are not the profile's.
    """
    head = [f"**{claim.claim}**"]
    if claim.sources:
        head.append("*" + "; ".join(claim.sources) + "*")
    if len(claim.parts) == 1:
        asked = part_in_words(claim.parts[0])
        head.append(f"Measured: {asked}" if asked.endswith("?") else f"Measured: {asked}.")
    below = [labels_in_words(claim, lines), bar_in_words(claim, lines), fixed(claim, lines)]
    below += gates_by_cell(lines)
    below += [holds_for(lines, own), figures(lines)]
    parts = ["<br>".join(head), table(claim, lines), "<br>".join(filter(None, below))]
    return "\n\n".join(parts)


def table(claim, lines):
    """The lines as a Markdown table; columns that would be empty are left out.

    The first row of a part shows its question, the others only its name.
    """
    parts = {part.name: part for part in claim.parts} if len(claim.parts) > 1 else {}
    asked, rows = set(), []
    for line in lines:
        part = parts.get(line.part)
        words = part.name if part and line.part in asked else part_in_words(part)
        asked.add(line.part)
        rows.append(
            {
                "part": words,
                "where": line.where,
                "effect": effect(line),
                "n": "" if isna(line.n) else str(line.n),
                "answer": answer_in_words(line),
            }
        )
    always = ("effect", "answer")
    names = [name for name in rows[0] if name in always or any(row[name] for row in rows)]
    made = [names, [":--"] * len(names)]
    made += [[cell_text(row[name]) for name in names] for row in rows]
    return "\n".join(f"| {' | '.join(row)} |" for row in made)


def part_in_words(part):
    if part is None:
        return ""
    return f"{part.name}: {part.question}" if part.name else part.question


def effect(line):
    """The effect with its interval and unit, in words; "" where nothing was measured."""
    if not (found := effect_of(line)):
        return ""
    return found if line.unit in SHARES else f"{found} {line.unit}".strip()


def measured(line):
    """The effect with its interval, unit and n, in words; "" where nothing was measured."""
    if not (found := effect(line)):
        return ""
    return found if isna(line.n) else f"{found}, n = {line.n}"


def answer_in_words(line):
    answer = f"**{line.answer}**"
    return f"{answer} ({line.note})" if line.note else answer


def label(line):
    """The label of a line's part with counts, such as "not everywhere: yes in 1, no in 2 of 4"."""
    if line.cells < 2 or not line.yes + line.no:
        return line.label
    counts = f"yes in {line.yes}, no in {line.no} of {line.cells}"
    return f"{line.label}: {counts}"


def labels_in_words(claim, lines):
    """The label of each part with its counts, on one line."""
    told = {}
    for line in lines:
        told[line.part] = f"{line.part}: **{label(line)}**" if line.part else f"**{label(line)}**"
    return " · ".join(told.values())


def bar_in_words(claim, lines):
    """The bar of each part in words, with its reason; "" where no part has a bar."""
    told = {}
    for part in claim.parts:
        line = next((line for line in lines if line.part == part.name), None)
        if line is None or not bar(line):
            continue
        said = f"Yes where the effect is {bar(line)}"
        reason = part.reason.rstrip(".")
        told[f"{said}: {reason}." if reason else f"{said}."] = None
    return " ".join(told)


def bar(line):
    """The bar of a line in its unit, such as "> +2 %"; "" where it has none."""
    if not (found := BAR.search(line.bar)):
        return ""
    sign, *numbers = found.groups(default="0")
    (value,), (room,) = (in_unit(float(number), unit=line.unit) for number in numbers)
    return f"{sign} {value}" + (f" ± {room.lstrip('+')}" if float(numbers[1]) else "")


def expected(claim, part):
    """The bar of a part in its unit, as `bar` returns it."""
    return bar(Line(answer="pending", **claim.row(part)))


def fixed(claim, lines):
    """Whether the comparison was fixed before its runs, in words; "" where nothing ran."""
    said = {
        "before": "The comparison was fixed before these runs.",
        "exploratory": "Exploratory: the comparison was not fixed before these runs.",
    }
    found = dict.fromkeys(said[line.fixed] for line in lines if line.fixed)
    if found:
        processes = "Intervals cover processes of this machine, not other machines or sizes."
        seeds = "Intervals cover seeds, not other texts or sizes."
        found[processes if claim.timing else seeds] = None
    return " ".join(found)


def gates_by_cell(lines):
    """The gate results of all cells, each once, with its cells in brackets unless all share it."""
    told = {}
    for line in lines:
        for gate in gates(line):
            told.setdefault(gate, []).append(line.where)
    found = []
    for gate, places in told.items():
        where = ", ".join(filter(None, dict.fromkeys(places)))
        found.append(gate if len(places) == len(lines) or not where else f"{gate} [{where}]")
    return found


def gates(line):
    """The results of a line's gates, a list of texts."""
    if not line.gates:
        return []
    if line.gates == UNGATED:
        return [UNGATED]
    return re.split("; (?=[✓✗])", line.gates)


def holds_for(lines, own):
    """The sizes at which the answers hold: each column with its values over all cells, in words."""
    columns = {}
    for line in lines:
        for told in filter(None, line.sizes.split(", ")):
            name, _, values = told.partition(" ")
            columns.setdefault(name, {}).update(dict.fromkeys(values.split(" ")))
    sizes = [" ".join([name, *values]).strip() for name, values in columns.items()]
    told = ", ".join([*sizes, *filter(None, [own])])
    return f"Holds for {told}." if told else ""


def figures(lines):
    found = dict.fromkeys(line.figure for line in lines if line.figure)
    return f"Figure: {', '.join(found)}." if found else ""


def in_a_line(line, was=""):
    """The result of a part in one line, such as "refuted: 0.1 [0.0, 0.2], n = 5; predicted > 0.5".

    `was` is an earlier label. A part with several cells shows no effect.
    """
    word = label(line)
    if was not in ("", line.label):
        word += f" (was {was})"
    found = measured(line) if line.cells < 2 else ""
    held = f"predicted {bar(line)}" if bar(line) else ""
    return "; ".join(filter(None, [": ".join(filter(None, [word, found])), held]))


def in_text(claim, first, was="", again=False):
    """A part as text for a terminal: its claim, then its result; `first` is its first line.

    `was` is an earlier label. With `again` the sentence of the claim is left out, since the part
    before it showed the sentence. Where the claim is not known (None), its id is shown instead.
    """
    parts = {part.name: part for part in claim.parts} if claim else {}
    asked = part_in_words(parts.get(first.part)) or first.part
    bare = first.gates if first.gates == UNGATED else ""
    note = first.note if first.label == "open" else ""
    told = [
        asked if first.part else "",
        in_one(in_a_line(first, was), first.id, bare, note),
    ]
    below = [f"{'':7}{line}" for line in filter(None, told)]
    if again:
        return "\n".join(below)
    return "\n".join([f"{first.exercise:6} {claim.claim if claim else first.id}", *below])


def in_one(*words):
    return " · ".join(filter(None, words))


def cell_text(text):
    return str(text).replace("|", "\\|").replace("\n", " ")
