"""Imported results as a table for a terminal; comparisons of published results as tables and sentences."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from repro.cli.console import Console, line, stdout
from repro.compare import METRICS
from repro.published.comparison.compare import PublishedCompared
from repro.published.comparison.contrast import Entry, PublishedContrast
from repro.published.importing import count_statuses
from repro.published.record import PublishedCell, PublishedResult
from repro.published.speedrun.claims import ArmClaim, Claims, judge_claims
from repro.published.store import RECORD, REFUSED, Published

SHOWN_REFUSALS = 8


def print_import(published: Published) -> None:
    """Print one row per cell, the refused files, and the counts."""
    console = stdout(150)
    if published.record.contest is None:
        console.print(_table(published))
    else:
        print_claims(judge_claims(published), console)
    for item in published.refused[:SHOWN_REFUSALS]:
        console.print(line(f"refused  {item.source}: {item.reason}"))
    if len(published.refused) > SHOWN_REFUSALS:
        console.print(line(f"refused  {len(published.refused) - SHOWN_REFUSALS} more: "
                           f"{published.folder / REFUSED}"))
    counts = ", ".join(f"{count} {status}" for status, count in count_statuses(published).items())
    console.print(line(f"{len(published.results)} results ({counts}), {len(published.refused)} files refused; "
                       f"{published.folder / RECORD}"))


def _table(published: Published) -> Table:
    table = Table(title="published results: minutes to target, as scored by their program", title_justify="left")
    for name in ("round", "benchmark", "org", "system"):
        table.add_column(name, overflow="fold")
    for name in ("accelerators", "batch", "runs", "without time", "minutes", "epochs to it"):
        table.add_column(name, justify="right")
    table.add_column("note", overflow="fold")
    reached: dict[str, list[PublishedResult]] = {}
    for item in published.results:
        if item.status == "ok":
            reached.setdefault(item.cell_id, []).append(item)
    for cell in published.record.cells:
        table.add_row(*(line(text) for text in _row(cell, reached.get(cell.cell_id, []))))
    return table


def _row(cell: PublishedCell, reached: list[PublishedResult]) -> tuple[str, ...]:
    of = cell.factors
    minutes = "" if cell.score.minutes is None else f"{cell.score.minutes:.3f}"
    epochs = _spread([item.epochs_to_target for item in reached])
    return (
        of["round"], of["benchmark"], of["org"], of["system"], of.get("accelerators", ""), of.get("batch.global", ""),
        str(cell.score.runs), str(cell.score.failed), minutes,
        epochs or _spread([item.samples_to_target for item in reached], " samples"), cell.score.reason,
    )


def _spread(values: Sequence[float | None], unit: str = "") -> str:
    known = [value for value in values if value is not None]
    if not known:
        return ""
    low, high = min(known), max(known)
    return (f"{low:,g}" if low == high else f"{low:,g}-{high:,g}") + unit


def print_claims(claims: Claims, console: Console) -> None:
    """Print a row for each arm, then each claim that its logs do not support, with its figures."""
    rules = claims.rules
    table = Table(title=f"published claims: mean loss at most the target (one-sided t, alpha {rules.alpha:g}), time of "
                  f"the program's clock (95 % intervals; the same: within {100 * rules.margin:g} %)",
                  title_justify="left")
    for name in ("record", "arm"):
        table.add_column(name, overflow="fold")
    for name in ("runs", "mean loss", "p", "mean seconds"):
        table.add_column(name, justify="right")
    for name in ("quality", "time against the other arm"):
        table.add_column(name, overflow="fold")
    for item in claims.arms:
        table.add_row(*(line(text) for text in _claim_row(item)))
    console.print(table)
    for item in claims.arms:
        if item.quality.verdict != "supported":
            console.print(line(f"{item.quality.verdict}  {item.record}, {item.arm}: {item.quality.because}"))
        for text in item.time.cautions:
            console.print(line(f"caution  {item.record}, {item.arm}: {text}"))
    for stated in claims.stated:
        console.print(line(f"not given by the logs  {stated.because}"))
    for text in rules.notes:
        console.print(line(f"note  {text}"))


def _claim_row(item: ArmClaim) -> tuple[str, ...]:
    quality, time = item.quality, item.time
    spread = item.seconds_interval
    seconds = "" if item.seconds is None else f"{item.seconds:.3f}"
    ratio = "" if time.ratio is None else f" {time.ratio:.4f}"
    bounds = "" if time.interval is None else f" ({time.interval[0]:.4f} to {time.interval[1]:.4f})"
    return (
        item.record, item.arm, str(item.runs), "" if quality.mean is None else f"{quality.mean:.5f}",
        "" if quality.p is None else f"{quality.p:.2g}",
        seconds + (f" ({spread[0]:.3f} to {spread[1]:.3f})" if spread else ""), quality.verdict,
        f"{time.verdict}{ratio}{bounds}",
    )


def print_published(found: PublishedCompared, console: Console | None = None) -> None:
    """Print the scores, the ratios, the verdicts and their reasons."""
    console = console or stdout(200)
    console.print(line(f"published results: {', '.join(found.folders)}; {METRICS[found.metric].noun}"), soft_wrap=True)
    console.print(_scores(found.entries))
    console.print(_ratios(found.contrasts))
    for number, item in enumerate(found.contrasts, 1):
        settles = f"; {item.comparison.settles}" if item.comparison.settles else ""
        console.print(line(f"{number}. {item.comparison.verdict}: {item.comparison.because}{settles}"), soft_wrap=True)
        if item.score_because and item.score_because not in item.comparison.because:
            console.print(line(f"   no ratio of scores: {item.score_because}"), soft_wrap=True)
    for text, where in _cautions(found.contrasts):
        console.print(line(f"caution: {text}{where}"), soft_wrap=True)
    for text in found.failures:
        console.print(line(f"failed: {text}"), soft_wrap=True)


def _scores(cells: Sequence[Entry]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="")
    for name, right in (("cell", False), ("division", False), ("accelerators", True), ("runs", True),
                        ("without time", True), ("score, min", True), ("note", False)):
        table.add_column(name, justify="right" if right else "left", overflow="fold")
    for item in cells:
        score = item.cell.score
        table.add_row(*(line(text) for text in (
            item.label, item.factor("division") or "-", item.factor("accelerators") or "-", str(score.runs),
            str(score.failed), "-" if score.minutes is None else f"{score.minutes:.3f}", score.reason)))
    return table


def _ratios(found: Sequence[PublishedContrast]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="")
    for name, right in (("", True), ("candidate", False), ("baseline", False), ("score ratio", True),
                        ("Welch ratio", True), ("95 % interval", True), ("runs", True), ("p", True), ("p Holm", True),
                        ("verdict", False)):
        table.add_column(name, justify="right" if right else "left", overflow="fold")
    for number, item in enumerate(found, 1):
        of = item.comparison
        table.add_row(*(line(text) for text in (
            str(number), of.candidate_label, of.baseline_label, _figure(item.score_ratio), _figure(of.ratio),
            f"{of.interval.low:.3f} to {of.interval.high:.3f}" if of.interval else "-",
            f"{item.candidate_score.runs}, {item.baseline_score.runs}",
            "-" if of.p is None else f"{of.p:.3g}", "-" if of.p_adjusted is None else f"{of.p_adjusted:.3g}",
            of.verdict)))
    return table


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _cautions(found: Sequence[PublishedContrast]) -> list[tuple[str, str]]:
    """Return (caution, numbers of the contrasts it applies to unless it applies to all)."""
    where: dict[str, list[int]] = {}
    for number, item in enumerate(found, 1):
        for text in item.comparison.cautions:
            where.setdefault(text, []).append(number)
    return [(text, "" if len(numbers) == len(found) else f" ({', '.join(map(str, numbers))})")
            for text, numbers in where.items()]
