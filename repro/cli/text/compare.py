"""Comparisons as tables and sentences for a terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.table import Table

from repro.cli.console import Console, line, stdout
from repro.compare import METRICS, Comparison, Summary
from repro.compare.design.effect import FEW

from .amounts import amount_text, ends_text
from .colors import COLORS, p_text
from .contest import print_quality
from .effects import print_effects
from .figures import print_figures

if TYPE_CHECKING:
    from repro.compare.design.calibration import Calibration
    from repro.compare.runs.runs import Compared
    from repro.compare.verdict.convergence import Convergence


def print_compared(found: Compared, console: Console | None = None) -> None:
    """Print the cells, the comparisons and their reasons; colours only on a terminal."""
    console = console or stdout(200)
    console.print(line(f"{found.suite}, digest {found.digest[:16]}, method {found.method}: "
                       f"{METRICS[found.metric].noun}"), soft_wrap=True)
    console.print(_cells(found.summaries))
    print_figures(found.summaries, found.figures, found.notes_of_figures, console)
    print_quality(found.claims, console)
    leading = not any(item.primary for item in found.comparisons)
    if leading:
        print_effects(found.effects, console)
    if found.comparisons:
        console.print(_ratios(found.comparisons))
    short = bool(found.effects) and leading and len(found.comparisons) > FEW
    if short:
        console.print(line("the reasons of these contrasts of single cells: repro compare RUN --json, or the report"))
    else:
        _print_reasons(found.comparisons, console)
    if not leading:
        print_effects(found.effects, console)
    for text in dict.fromkeys(text for item in found.comparisons for text in item.cautions):
        console.print(line(f"caution: {text}{_where(found.comparisons, text)}"), soft_wrap=True)
    console.print(line(f"errors: {found.error_budget}"), soft_wrap=True)
    for text in found.notes:
        console.print(line(f"note: {text}"), soft_wrap=True)
    for text in found.warnings:
        console.print(line(f"warning: {text}"), soft_wrap=True)
    for text in _convergences(found.convergence, short=short):
        console.print(line(text), soft_wrap=True)
    console.print(line(calibration_text(found.calibration)), soft_wrap=True)
    for text in found.failures:
        console.print(line(f"failed: {text}"), soft_wrap=True)


def _print_reasons(found: Sequence[Comparison], console: Console) -> None:
    for number, item in enumerate(found, 1):
        settles = f"; {item.settles}" if item.settles else ""
        console.print(line(f"{number}. {item.verdict}: {item.because}{settles}"), soft_wrap=True)
        for detail in _details(item):
            console.print(line(f"   {detail}"), soft_wrap=True)


def calibration_text(found: Calibration | None) -> str:
    """Return the measured false-positive rate of these verdicts, or that it is unknown."""
    if found is None:
        return "not calibrated: the false-positive rate of these verdicts was not measured on this machine"
    return f"calibrated: {found.sentence()}"


def _cells(summaries: Sequence[Summary]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="")
    for name, right in (("cell", False), (ok_header(summaries), True), ("median", True), ("interval", True),
                        ("CV", True), ("other ends", False)):
        table.add_column(name, justify="right" if right else "left", overflow="fold")
    for item in summaries:
        ends = ", ".join(f"{count} {status}" for status, count in sorted(item.statuses.items()) if status != "ok")
        table.add_row(
            line(item.label), f"{item.ok}/{item.n}",
            _without(item) if item.median is None else amount_text(item.median, item.metric),
            ends_text(item.interval.low, item.interval.high, item.metric) if item.interval else "-",
            "-" if item.coefficient_of_variation is None else f"{item.coefficient_of_variation:.1%}".replace("%", " %"),
            "; ".join(part for part in (ends, f"{sum(item.outliers)} outlier(s)" if any(item.outliers) else "",
                                        f"{item.resumed} resumed" if item.resumed else "") if part),
        )
    return table


def ok_header(summaries: Sequence[Summary]) -> str:
    """Return the header of the column that counts the trials with a success."""
    if any(item.contest for item in summaries):
        return "at its end"
    return "reached" if all(item.has_target for item in summaries) else "ended well"


def _without(item: Summary) -> str:
    return "not reached" if METRICS[item.metric].to_target else "none"


def _ratios(found: Sequence[Comparison]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="")
    for name, right in (("", True), ("candidate", False), ("baseline", False), ("ratio", True), ("95 % interval", True),
                        ("n", True), ("p", True), ("p Holm", True), ("verdict", False)):
        table.add_column(name, justify="right" if right else "left", overflow="fold")
    for number, item in enumerate(found, 1):
        table.add_row(
            str(number), line(item.candidate_label), line(item.baseline_label),
            "no result" if item.refused and item.ratio is None else _ratio(item),
            f"{item.interval.low:.3f} to {item.interval.high:.3f}" if item.interval else "-", str(item.n),
            p_text(item.p), "primary" if item.primary else p_text(item.p_adjusted),
            line(item.verdict, style=COLORS.get(item.verdict, "")),
        )
    return table


def _ratio(item: Comparison) -> str:
    return "-" if item.ratio is None else f"{item.ratio:.3f}"


def _details(item: Comparison) -> list[str]:
    """Return the figures that accompany a ratio: its two factors, the unpaired ratio, P(less), equivalence."""
    found = [item.also] if item.also else []
    if item.split is not None:
        found.append(f"= samples to the target x {item.split.samples.value:.3f} / samples a second x "
                     f"{item.split.throughput.value:.3f}")
    if item.welch is not None and item.welch.interval is not None and item.paired:
        low, high = item.welch.interval.low, item.welch.interval.high
        found.append(f"unpaired (Welch on logs): {item.welch.value:.3f}, {low:.3f} to {high:.3f}")
    if item.probability_less is not None:
        limits = item.probability_less.interval
        found.append(f"P(candidate < baseline) = {item.probability_less.value:.2f}"
                     + (f", {limits.low:.2f} to {limits.high:.2f}" if limits else ""))
    if item.log_rank_p is not None:
        found.append(f"log-rank p = {item.log_rank_p:.3g}")
    if item.equivalence is not None and item.verdict != "same":
        test = item.equivalence
        found.append(f"same within {test.margin:.2g}: p = {test.p if test.p_adjusted is None else test.p_adjusted:.3g}")
    return found


def _convergences(rows: Sequence[Convergence], short: bool) -> list[str]:
    """Return a line for each, or one for all."""
    if not short or not rows:
        return [_convergence(row) for row in rows]
    counts = Counter(row.verdict for row in rows)
    return [f"convergence: {', '.join(f'{count} {verdict}' for verdict, count in counts.items())}; each: "
            "repro compare RUN --json"]


def _convergence(row: Convergence) -> str:
    """`convergence of A against B (digits, batch 64, fp32): equivalent, 1.002 x the samples; ...`."""
    size = "" if row.ratio is None else f", {row.ratio:.3f} x the samples"
    return (f"convergence of {row.candidate_label} against {row.baseline_label} ({row.workload}, batch "
            f"{row.global_batch}, {row.precision}): {row.verdict}{size}; {row.because}")


def _where(found: Sequence[Comparison], text: str) -> str:
    """Return the numbers of the comparisons that a caution applies to, unless it applies to all."""
    numbers = [str(number) for number, item in enumerate(found, 1) if text in item.cautions]
    return "" if len(numbers) == len(found) else f" ({', '.join(numbers)})"
