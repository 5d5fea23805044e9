"""What records and gates show, as tables and sentences for a terminal; a comparison also as a comment in Markdown."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from repro.cli.terminal import Console, command, line, stdout, table_of
from repro.compare import METRICS, Comparison
from repro.compare.design.effect import FEW, HEADING, MainEffect
from repro.compare.figures import DECIDED, Claim
from repro.core.errors import visible
from repro.core.markdown import escaped
from repro.core.numbers import ratio_texts
from repro.core.redact import Scrubber
from repro.tables.cell_tables import group_tables, spread_table
from repro.tables.layout import NOTHING, TextTable, as_markdown, compact
from repro.tables.text import trimmed
from repro.tables.verdicts import (
    ALONE,
    FOOTNOTE,
    claim_table,
    comparison_sentence,
    comparison_table,
    effect_table,
    ratio_and_span,
)

if TYPE_CHECKING:
    from repro.audit.audit import Audit
    from repro.compare.design.calibration import Calibration
    from repro.compare.runs.runs import Compared
    from repro.compare.verdict.convergence import Convergence


COLORS = {"faster": "green", "slower": "red", "same": "cyan",
          "fail": "red", "cannot tell": "yellow", "pass": "green", "not applicable": "dim"}
"""Words of a cell that have a colour: verdicts."""


def print_table(table: TextTable, console: Console, numbered: bool = False) -> None:
    """Print a table under its title, in which stands what every row repeats; nothing without rows.

    Args:
        numbered: the first column counts the rows.
    """
    if not table.rows:
        return
    short, said = compact(table)
    title = f"{short.title}. {said}" if short.title and said else short.title or said
    console.lines(*([title] if title else []))
    shown = table_of(*(("", True),) * numbered, *zip(short.headers, short.numeric, strict=True))
    for number, row in enumerate(short.rows, 1):
        shown.add_row(*([str(number)] if numbered else []), *(line(text, style=COLORS.get(text, "")) for text in row))
    console.print(shown)


def print_compared(found: Compared) -> None:
    """Print the cells, the comparisons and their reasons; colours only on a terminal."""
    console = stdout(200)
    say = console.lines
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
    print_table(comparison_table(found.comparisons, found.origins), console, numbered=True)
    say(*([FOOTNOTE] if found.comparisons else []))
    short = bool(found.effects) and leading and len(found.comparisons) > FEW
    if short:
        say("the reasons of these contrasts of single cells: repro compare RUN --json, or the report")
    else:
        for number, item in enumerate(found.comparisons, 1):
            settles = f"; {item.settles}" if item.settles else ""
            say(f"{number}. {item.spoken}: {item.because}{settles}", *(f"   {detail}" for detail in _details(item)))
    if not leading:
        print_effects(found.effects, found.origin, console)
    say(*cautions_of(found.comparisons), f"errors: {found.error_budget}", *(f"note: {text}" for text in found.notes),
        *(f"warning: {text}" for text in found.warnings), *_convergences(found.convergence, short=short),
        calibration_text(found.calibration), *(f"failed: {text}" for text in found.failures))


def print_effects(found: Sequence[MainEffect], origin: str, console: Console) -> None:
    """Print the main effects with their reasons and the factors that they depend on; nothing without any."""
    if not found:
        return
    console.lines(f"{HEADING}: ratio of {METRICS[found[0].pooled.metric].noun}")
    print_table(effect_table(found, origin), console, numbered=True)
    for number, item in enumerate(found, 1):
        settles = f"; {item.pooled.settles}" if item.pooled.settles else ""
        first, *details = [f"{number}. {item.pooled.spoken}: {item.pooled.because}{settles}",
                           *([item.scope] if item.incomplete or item.failed else []),
                           *([item.pooled.also] if item.pooled.also else []),
                           *(f"caution: it {other.words}" for other in item.flagged)]
        console.lines(first, *(f"   {text}" for text in details))
    console.lines(*dict.fromkeys(f"caution: {text}" for item in found for text in item.pooled.cautions))


def effect_lines(item: MainEffect) -> Iterator[str]:
    """Yield a main effect as one sentence, then what it depends on."""
    pooled = item.pooled
    ratio, span = ratio_and_span(pooled.ratio, pooled.interval)
    size = f"{ratio} x {METRICS[pooled.metric].times} " if ratio else ""
    limits = f"(95 % interval {span}, {pooled.n} seeds) " if span else ""
    yield f"{item.level} against {item.reference} ({pooled.metric}): {pooled.spoken}, {size}{limits}{item.scope}" \
        if size else f"{item.level} against {item.reference} ({pooled.metric}): {pooled.spoken}; {pooled.because}"
    yield from (f"caution: it {other.words}" for other in item.flagged)


def calibration_text(found: Calibration | None) -> str:
    """Return the measured false-positive rate of these verdicts, or that it is unknown."""
    if found is None:
        return ("not calibrated: the false-positive rate of these verdicts was not measured on this machine; to "
                f"measure it: {command('calibrate')} SUITE")
    return f"{found.word}: {found.sentence()}"


def _details(item: Comparison) -> list[str]:
    """Return the figures that accompany a ratio: its two factors, the unpaired ratio, P(less), equivalence."""
    found = [item.also] if item.also else []
    for words, also in (("median-unbiased, corrected for the stop", item.unbiased),
                        ("unpaired (Welch on logs)", item.welch if item.paired else None)):
        if also is not None and also.interval is not None:
            found.append(f"{words}: {', '.join(ratio_and_span(also.value, also.interval))}")
    if item.levels is not None:
        ours, theirs, unit = item.levels.candidate_p90, item.levels.baseline_p90, METRICS[item.metric].unit
        p90 = "" if ours is None or theirs is None else \
            f"; P90 {trimmed(ours, 4)} {unit} against {trimmed(theirs, 4)} {unit}"
        found.append(f"ratio of arithmetic means: {ratio_texts([item.levels.mean_ratio])[0]}{p90}")
    if item.by_node is not None:
        found.append(item.by_node.words)
    if item.by_load is not None:
        found.append(item.by_load.words)
    if item.split is not None:
        samples, speed = (ratio_texts([part.value])[0] for part in (item.split.samples, item.split.throughput))
        found.append(f"= samples to the target x {samples} / samples a second x {speed}")
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
    if short and rows:
        counts = Counter(row.verdict for row in rows)
        return [f"convergence: {', '.join(f'{count} {verdict}' for verdict, count in counts.items())}; each: "
                "repro compare RUN --json"]
    found = []
    for row in rows:
        size = "" if row.ratio is None else f", {ratio_texts([row.ratio])[0]} x the samples"
        found.append(f"convergence of {row.candidate_label} against {row.baseline_label} ({row.workload}, batch "
                     f"{row.global_batch}, {row.precision}): {row.verdict}{size}; {row.because}")
    return found


def cautions_of(found: Sequence[Comparison]) -> list[str]:
    """Return each caution once, with the numbers of the comparisons that it applies to unless it applies to all."""
    where: dict[str, list[str]] = {}
    for number, item in enumerate(found, 1):
        for text in item.cautions:
            where.setdefault(text, []).append(str(number))
    return [f"caution: {text}" + ("" if len(numbers) == len(found) else f" ({', '.join(numbers)})")
            for text, numbers in where.items()]


def quality_lines(claims: Sequence[Claim]) -> list[str]:
    """Return a line for each claim with its figures, and its cautions."""
    return [text for item in claims
            for text in (f"quality of {item.sentence}", *(f"caution: {item.label}: {note}" for note in item.cautions))]


ORIGINS = {"record": "a run of this harness", "mlperf": "MLPerf results", "dawnbench": "DAWNBench entries",
           "speedrun": "records of a speed-run", "mlflow": "an MLflow experiment"}


def print_audit(found: Audit) -> None:
    """Print every rule with its verdict and evidence; colours only on a terminal."""
    console = stdout(160)
    heads = ("Verdict", "Rule", "", "Title", "Evidence")
    print_table(TextTable(
        f"{found.title}: {ORIGINS[found.origin]}, {found.cells} cells, {found.runs} runs", heads, (False,) * len(heads),
        tuple((item.verdict, item.id, "required" if item.required else "", item.title, item.evidence)
              for item in found.findings)), console)
    counts = ", ".join(f"{number} {verdict}" for verdict, number in found.counts.items())
    unmet = ", ".join(found.required_failed)
    console.lines(f"{len(found.findings)} rules: {counts}", *([f"required and not met: {unmet}"] if unmet else []))


REQUESTS = ("optimizer",)
"""Checks of what was requested. They run last, but what they find explains differences from the first step on."""


def print_gate(rows: Sequence[Mapping[str, Any]], console: Console) -> None:
    """Print a table with a line for each check, and the failures in words below it, causes before symptoms."""
    heads = ("Candidate", "Group", "Check", "Result", "Step", "Tensor", "Difference", "Tolerance")
    print_table(TextTable("", heads, (False,) * 4 + (True, False, True, True), tuple(
        (row["candidate"], row["group"], row["check"], "pass" if row["passed"] else "fail",
         *(NOTHING if row[key] in (None, "") else f"{row[key]:.3g}" if isinstance(row[key], float) else str(row[key])
           for key in ("step", "tensor", "size", "tolerance"))) for row in rows)), console)
    compared = list(dict.fromkeys((row["candidate"], row["group"]) for row in rows))
    failed = sorted((row for row in rows if not row["passed"]), key=lambda row: (
        compared.index((row["candidate"], row["group"])), row["check"] not in REQUESTS, row["step"] or 0))
    console.lines(*([f"{row['candidate']}: {row['text']}" for row in failed] or ["all checks passed"]),
                  *(f"{row['candidate']}: {row['text']}" for row in rows if row["passed"] and row["text"]))


ROWS, NOTES, SENTENCES = 6, 6, 3
"""Most rows of each table, most cautions, and most verdicts in full."""
LONGEST = 700
"""Most characters of one sentence."""


def comment(found: Compared, conditions: Sequence[str] = ()) -> str:
    """Return the document: whether it passes, the verdicts, tables of ratios and cells, cautions.

    Args:
        conditions: those of --fail-if that `found.failures` were judged by.
    """
    scrubber = Scrubber.here(os.environ, {})

    def safe(text: str) -> str:
        text = visible(scrubber.text(text))
        return escaped(text if len(text) <= LONGEST else f"{text[:LONGEST]}...")

    lines = [f"### {safe(found.suite)}: {safe(_headline(found, conditions))}", ""]
    lines += [f"- **failed** {safe(text)}" for text in found.failures[:SENTENCES]]
    in_full = ([item for item in found.comparisons if item.primary]
               or [item for item in found.comparisons if item.verdict in DECIDED] or found.comparisons)
    lines += [f"- {safe(comparison_sentence(item))}" for item in in_full[:SENTENCES]]
    lines += [f"- {safe(text)}" for text in quality_lines(found.claims)[:ROWS]]
    ratios = comparison_table(found.comparisons, found.origins).without((ALONE,))
    cells = spread_table(found.summaries, found.origins).without(("CV", "Other ends"))
    lines += [*_table(ratios, safe), *_table(cells, safe)]
    cautions = dict.fromkeys(text for item in found.comparisons for text in item.cautions)
    notes = [*dict.fromkeys(item.also for item in found.comparisons if item.also),
             *(f"caution: {text}" for text in cautions), *(f"warning: {text}" for text in found.warnings),
             *(f"note: {text}" for text in found.notes)]
    lines += ["", *(f"- {safe(text)}" for text in (
        FOOTNOTE, *notes[:NOTES], *_left_out("note", len(notes) - NOTES), f"errors: {found.error_budget}",
        calibration_text(found.calibration)))]
    lines += ["", f"suite digest {found.digest[:16]}, method {safe(found.method)}, {safe(METRICS[found.metric].noun)}"]
    return "\n".join(lines) + "\n"


def _headline(found: Compared, conditions: Sequence[str]) -> str:
    if conditions:
        return f"{'failed' if found.failures else 'passed'} (fail if {', '.join(conditions)})"
    words = [item.spoken for item in found.comparisons if item.primary] or [item.spoken for item in found.comparisons]
    return ", ".join(f"{words.count(word)} {word}" for word in dict.fromkeys(words)) if len(words) > 1 else words[0]


def _table(table: TextTable, safe: Callable[[str], str]) -> Iterator[str]:
    short, said = compact(table)
    yield from ("", safe(f"{short.title}. {said}".rstrip()), "", as_markdown(short.first(ROWS), safe))
    if left := _left_out("row", len(table.rows) - ROWS):
        yield from ("", *left)


def _left_out(noun: str, number: int) -> list[str]:
    return [f"{number} more {noun}{'s' if number > 1 else ''} by repro compare"] if number > 0 else []
