"""Claims of a contest about the quality of its cells as rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from repro.compare.figures import Claim

from .layout import NOTHING, Column, TextTable, count, decimals, figure, laid, name, words
from .values import Row, bounds, plain


def claim_rows(found: Sequence[Claim], origins: Mapping[str, str]) -> Iterator[Row]:
    """Yield one row a cell; none if the run is no contest."""
    for item in found:
        row: Row = {
            "cell_id": item.cell_id, "cell": plain(item.label), "origin": origins.get(item.cell_id),
            "quality": plain(item.metric), "direction": item.direction, "target": item.target, "alpha": item.alpha,
            "declared": item.declared, "n": item.n, "mean": item.mean, "deviation": item.deviation,
        }
        yield row | bounds("mean", item.interval) | {
            "p": item.p, "verdict": item.verdict, "because": plain(item.because),
            "cautions": plain("; ".join(item.cautions))}


def claim_table(found: Sequence[Claim], origins: Mapping[str, str]) -> TextTable:
    """Return one row a cell."""
    return laid(f"Claims of quality: {name(found[0].statement)}" if found else "", (
        words("Cell", "cell"), words("Figures", "origin"), count("Runs", "n", "declared"), decimals("Mean", "mean", 5),
        Column("Interval", _ends), decimals("Standard deviation", "deviation", 5), figure("p, one-sided", "p", 2),
        figure("alpha", "alpha", 2), Column("Claim", _claim, numeric=False)), claim_rows(found, origins))


def _ends(row: Row) -> str:
    if row["mean_low"] is None or row["mean_level"] is None:
        return NOTHING
    return f"{row['mean_low']:.5f} to {row['mean_high']:.5f} ({100 * float(row['mean_level']):.3g} %)"


def _claim(row: Row) -> str:
    return str(row["verdict"]) if row["verdict"] == "supported" else f"{row['verdict']}: {name(str(row['because']))}"
