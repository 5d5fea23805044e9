"""Comparisons as tables and sentences for a terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from repro.cli.console import Console, line, stdout
from repro.cli.text.contest import quality_lines
from repro.cli.text.table import print_table
from repro.compare import METRICS, Comparison
from repro.compare.design.effect import FEW, HEADING, MainEffect
from repro.tables.cell_tables import group_tables, spread_table
from repro.tables.claims import claim_table
from repro.tables.effects import effect_table
from repro.tables.verdicts import FOOTNOTE, comparison_table

if TYPE_CHECKING:
    from repro.compare.design.calibration import Calibration
    from repro.compare.runs.runs import Compared
    from repro.compare.verdict.convergence import Convergence

DIGITS = 4
"""Of ratios."""


def print_compared(found: Compared, console: Console | None = None) -> None:
    """Print the cells, the comparisons and their reasons; colours only on a terminal."""
    console = console or stdout(200)

    def say(*texts: str) -> None:
        for text in texts:
            console.print(line(text), soft_wrap=True)

    say(f"{found.suite}, digest {found.digest[:16]}, method {found.method}: {METRICS[found.metric].noun}")
    print_table(spread_table(found.summaries, found.origins), console)
    for table in group_tables([item.label for item in found.summaries], found.figures):
        print_table(table, console)
    say(*(f"figures: {text}" for text in found.notes_of_figures if any(found.figures)))
    print_table(claim_table(found.claims, found.origins), console)
    say(*quality_lines(found.claims))
    leading = not any(item.primary for item in found.comparisons)
    if leading:
        print_effects(found.effects, found.origin, console)
    print_table(comparison_table(found.comparisons, found.origins, DIGITS), console, numbered=True)
    say(*([FOOTNOTE] if found.comparisons else []))
    short = bool(found.effects) and leading and len(found.comparisons) > FEW
    if short:
        say("the reasons of these contrasts of single cells: repro compare RUN --json, or the report")
    else:
        say(*_reasons(found.comparisons))
    if not leading:
        print_effects(found.effects, found.origin, console)
    say(*(f"caution: {text}{_where(found.comparisons, text)}"
          for text in dict.fromkeys(text for item in found.comparisons for text in item.cautions)),
        f"errors: {found.error_budget}", *(f"note: {text}" for text in found.notes),
        *(f"warning: {text}" for text in found.warnings), *_convergences(found.convergence, short=short),
        calibration_text(found.calibration), *(f"failed: {text}" for text in found.failures))


def print_effects(found: Sequence[MainEffect], origin: str, console: Console) -> None:
    """Print the main effects with their reasons and the factors that they depend on; nothing without any."""
    if not found:
        return
    console.print(line(f"{HEADING}: ratio of {METRICS[found[0].pooled.metric].noun}"), soft_wrap=True)
    print_table(effect_table(found, origin, DIGITS), console, numbered=True)
    for number, item in enumerate(found, 1):
        settles = f"; {item.pooled.settles}" if item.pooled.settles else ""
        first, *details = [f"{number}. {item.pooled.verdict}: {item.pooled.because}{settles}",
                           *([item.scope] if item.incomplete or item.failed else []),
                           *([item.pooled.also] if item.pooled.also else []),
                           *(f"caution: it {other.words}" for other in item.flagged)]
        for text in (first, *(f"   {text}" for text in details)):
            console.print(line(text), soft_wrap=True)
    for text in dict.fromkeys(text for item in found for text in item.pooled.cautions):
        console.print(line(f"caution: {text}"), soft_wrap=True)


def effect_lines(item: MainEffect) -> Iterator[str]:
    """Yield a main effect as one sentence, then what it depends on."""
    pooled = item.pooled
    size = "" if pooled.ratio is None else f"{pooled.ratio:.3f} x {METRICS[pooled.metric].times} "
    limits = f"(95 % interval {pooled.interval.low:.3f} to {pooled.interval.high:.3f}, {pooled.n} seeds) " \
        if pooled.interval else ""
    yield f"{item.level} against {item.reference} ({pooled.metric}): {pooled.verdict}, {size}{limits}{item.scope}" \
        if size else f"{item.level} against {item.reference} ({pooled.metric}): {pooled.verdict}; {pooled.because}"
    yield from (f"caution: it {other.words}" for other in item.flagged)


def _reasons(found: Sequence[Comparison]) -> Iterator[str]:
    for number, item in enumerate(found, 1):
        settles = f"; {item.settles}" if item.settles else ""
        yield f"{number}. {item.verdict}: {item.because}{settles}"
        yield from (f"   {detail}" for detail in _details(item))


def calibration_text(found: Calibration | None) -> str:
    """Return the measured false-positive rate of these verdicts, or that it is unknown."""
    if found is None:
        return "not calibrated: the false-positive rate of these verdicts was not measured on this machine"
    return f"calibrated: {found.sentence()}"


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
