"""Checks of a fair comparison: same seeds, same data, effective switches, matched sizes."""

from math import inf

import pandas as pd


class UnfairComparison(ValueError):
    """Arms of a comparison differ in more, or less, than their treatment."""


def check_arms(
    table,
    arm,
    *,
    fingerprint="fingerprint",
    seed="seed",
    matched=(),
    tolerance=0.02,
    data="data_hash",
):
    """Check a long table of runs; returns one row per check, with columns check and finding.

    All arms must have the same seeds. At each seed every arm must have its own output fingerprint
    at initialisation (an equal one shows that a switch had no effect) and the same `data` hash.
    Each `matched` column (parameters, FLOPs) may differ by at most `tolerance`, largest over
    smallest minus 1, so call this for one size at a time. None for `fingerprint` or `data` skips
    that check, and its finding is "not checked".

    Raises UnfairComparison if a check fails, and ValueError for missing columns or cells and for
    fewer than two arms.
    """
    needed = [arm, seed, *matched, *(name for name in (fingerprint, data) if name is not None)]
    unusable = [name for name in needed if name not in table.columns or table[name].isna().any()]
    if unusable:
        raise ValueError(
            f"columns {unusable} are missing or have empty cells; "
            f"the table has {list(table.columns)}"
        )
    arms = sorted(table[arm].unique().tolist(), key=str)
    if len(arms) < 2:
        raise ValueError(f"a comparison needs two arms or more, column {arm!r} has {arms}")

    def same(column, group, where):
        seen = {name: set(rows) for name, rows in group.groupby(arm)[column]}
        if odd := [name for name in arms if seen.get(name) != seen.get(arms[0])]:
            raise UnfairComparison(f"arms {odd} have another {column} than {arms[0]!r}{where}")

    same(seed, table, ": they cannot be paired")
    findings = [("same seeds", f"{len(arms)} arms, {table[seed].nunique()} seeds each")]
    if fingerprint is not None:
        for (at, _), group in table.groupby([seed, fingerprint]):
            if len(twins := group[arm].unique().tolist()) > 1:
                raise UnfairComparison(
                    f"arms {twins} give the same output at seed {at}: a switch had no effect"
                )
    findings.append(
        ("distinct outputs", "all differ" if fingerprint is not None else "not checked")
    )
    if data is not None:
        for at, group in table.groupby(seed):
            same(data, group, f" at seed {at}")
    findings.append(("same data", "equal at every seed" if data is not None else "not checked"))
    for column in matched:
        low = table.groupby(arm)[column].min()
        high = table.groupby(arm)[column].max()
        excess = high.max() / low.min() - 1 if low.min() > 0 else inf
        if excess > tolerance:
            ends = f"arm {high.idxmax()} has {high.max():,}, arm {low.idxmin()} {low.min():,}"
            raise UnfairComparison(
                f"{column}: {ends}, {excess:.1%} apart (allowed {tolerance:.1%})"
            )
        findings.append((f"matched {column}", f"within {excess:.2%} (allowed {tolerance:.1%})"))
    return pd.DataFrame(findings, columns=["check", "finding"])
