"""Record -> the few columns and sentences that fit a README or a paper, as plain text; each format escapes it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from repro.compare import METRICS, Comparison, Summary
from repro.compare.design.effect import FEW, MainEffect
from repro.compare.evidence.time_split import in_words
from repro.compare.ranking.tuning_check import check_tuning
from repro.compare.runs.run_warnings import run_warnings
from repro.record.folder.store import Record

from ..tables.rows import Row, about, comparisons, effects, errors, origins_of, pair_origin, plain, summaries
from ..tables.score_rows import scores_of
from ..text import plural
from .claims import claims_table
from .effects import effect_sentence, effects_table
from .operations import checks_table, operations_table
from .scores import score_times_table, scores_table
from .shown import Shown, shown_of
from .training import training_table
from .tuning import tuning_table
from .words import TextTable, VerdictText, interval, name, rounded


@dataclass(frozen=True, slots=True)
class Brief:
    """The content of a short report."""

    title: str
    origins: tuple[str, ...]
    facts: tuple[tuple[str, str], ...]
    doubts: tuple[str, ...]
    verdicts: tuple[VerdictText, ...]
    errors: str
    """Spending of the 5 % for wrong verdicts; "" without a verdict."""
    cells: TextTable
    training: TextTable
    """Speed and memory; no row for records of versions that had no such figures."""
    effects: TextTable
    comparisons: TextTable
    factors: TextTable
    """Every ratio of times to the target as samples over samples a second; no row without one."""
    claims: TextTable
    """Of a contest: that of each cell; no row otherwise."""
    tuning: TextTable
    """Budget, cost and choice of every contender; no row if nothing was tuned."""
    scores: tuple[TextTable, ...]
    """Of contenders over workloads; no rows without a ranking."""
    operations: tuple[TextTable, ...]
    """Figures and checks of measurements; no rows of other kinds of trial."""

    @property
    def tables(self) -> tuple[TextTable, ...]:
        """The tables that have rows, main effects first."""
        return tuple(table for _, table in self.named_tables)

    @property
    def named_tables(self) -> tuple[tuple[str, TextTable], ...]:
        """(name of a file, table) of those that have rows."""
        (scores, times), (operations, checks) = self.scores, self.operations
        found = (("effects", self.effects), ("claims", self.claims), ("scores", scores), ("score-times", times),
                 ("tuning", self.tuning), ("cells", self.cells), ("operations", operations), ("checks", checks),
                 ("training", self.training), ("comparisons", self.comparisons), ("convergence", self.factors))
        return tuple((key, table) for key, table in found if table.rows)


def brief(record: Record, shown: Shown | None = None) -> Brief:
    """Summarize a record, or the part of it that is `shown`.

    Every figure comes from `repro.reporters.tables.rows`, rounded. Doubts, facts and error budget are the record's.
    """
    row, part = about(record), shown or shown_of(record)
    found, of_factors = part.comparisons, part.effects
    ranked = scores_of(record) if part.whole else None
    spent = errors(record, found, of_factors) if part.whole else errors(record, comparisons(record), effects(record))
    return Brief(
        title=name(str(row["title"] or row["suite"])), origins=origins_of(record.plan.cells),
        facts=tuple(_facts(record, row)), doubts=tuple(_doubts(record, row)),
        verdicts=tuple(_verdicts(found, of_factors)), errors=spent, cells=_cells(record, part),
        training=training_table(record, part.cells),
        effects=effects_table(record, of_factors), comparisons=_comparisons(record, found),
        factors=_factors(record, found), claims=claims_table(record, part.cells),
        tuning=tuning_table(record, part.whole), scores=(scores_table(ranked), score_times_table(ranked)),
        operations=(operations_table(record, part.cells), checks_table(record, part.cells)),
    )


def _facts(record: Record, row: Row) -> Iterator[tuple[str, str]]:
    yield "suite", f"{name(str(row['suite']))}, digest {str(row['suite_digest'])[:16]}, method {row['method']}"
    most = "at most " if record.plan.design.looks else ""
    yield "trials", f"{row['trials']} of {row['planned']}, {most}{plural(int(row['seeds'] or 0), 'seed')} per cell, " \
                    f"{plural(int(row['attempts'] or 0), 'attempt')} in total"
    yield "machine", name(str(row["machine"]))
    yield "repro", f"{row['repro_version']}" + (f", commit {str(row['commit'])[:12]}" if row["commit"] else "")
    yield "false-positive rate", str(row["false_positive_rate"])


def _doubts(record: Record, row: Row) -> Iterator[str]:
    """Yield the warnings that apply before the figures are used."""
    if row["parity_passed"] is False:
        yield "the parity gate failed: the engines do not train alike, so their times cannot be compared"
    if row["parity_needed"] is None:
        yield "no outcome of a parity gate is recorded: it is unknown whether the engines train alike"
    if row["trials"] != row["planned"]:
        yield f"only {row['trials']} of {row['planned']} trials have run; all figures can still change"
    failed = sorted({item.status for item in record.results} - {"ok"})
    for status in failed:
        count = sum(item.status == status for item in record.results)
        yield f"{plural(count, 'trial')} ended as {status.replace('_', ' ')}"
    again = len(record.attempts) - len({item.trial_id for item in record.attempts})
    if again:
        yield f"{plural(again, 'further attempt')} of trials that ran before"
    tuned = check_tuning(record)
    yield from (f"unfair tuning: {plain(text)}" for text in (tuned.problems if tuned else ()))
    yield from (" ".join(plain(note).split())[:1000] for note in record.plan.notes)
    yield from (" ".join(plain(item.line).split())[:1000] for item in run_warnings(record))
    origins = origins_of(record.plan.cells)
    if "simulated" in origins:
        yield "simulated figures come from an engine that trains nothing"
    if "emulated" in origins:
        yield "emulated figures come from a cluster of network namespaces on one machine"
    for data in record.environment.data:
        if data.synthetic:
            yield f"{name(data.name)} is synthetic: a result on it says nothing about real data"
    if row["dirty"]:
        yield "the code had uncommitted changes"


def _verdicts(found: Sequence[Comparison], of_factors: Sequence[MainEffect]) -> Iterator[VerdictText]:
    """Yield the declared contrast, the main effects, and the other contrasts unless they are many besides effects."""
    primary, others = ([item for item in found if item.primary is wanted] for wanted in (True, False))
    yield from map(_sentence, primary)
    yield from map(effect_sentence, of_factors)
    if not of_factors or len(others) <= FEW:
        yield from map(_sentence, others)


def _sentence(item: Comparison) -> VerdictText:
    kind = "declared contrast" if item.primary else "further contrast"
    scale, estimate = METRICS[item.metric], ""
    if item.ratio is not None:
        estimate = f"{rounded(item.ratio)} x {scale.times}"
        estimate += f", {interval(item.interval)}" if item.interval else ", no interval"
    also = f" It {plain(item.also)}." if item.also else ""
    ending = f" Next: {plain(item.settles)}." if item.settles else ""
    cautions = "".join(f" Caution: {plain(text)}." for text in item.cautions)
    pairs = plural(item.n, "pair") if item.paired else f"{item.n} per side, unpaired"
    return VerdictText(
        verdict=item.verdict,
        contrast=f"{name(item.candidate_label)} against {name(item.baseline_label)} ({kind}, {scale.noun})",
        why=f"{f'{estimate}, ' if estimate else ''}{pairs}; {plain(item.because)}.{also}{ending}{cautions}",
    )


def _cells(record: Record, part: Shown) -> TextTable:
    metric = record.plan.suite.metric
    scale = METRICS[metric]
    unit = f" ({scale.unit})" if scale.unit else ""
    found = [item for item in summaries(record, metric) if part.has(item.cell_id)]
    reached = "At its end" if record.plan.design.is_contest else "Reached"
    return TextTable(
        title=f"Cells: {scale.noun}",
        headers=("Cell", "Figures", reached, f"Median {scale.noun}{unit}", "Interval", "Epochs", "Samples/s",
                 "Final quality"),
        numeric=(False, False, True, True, True, True, True, True),
        rows=tuple(_cell(record, item) for item in found),
    ) if record.plan.design.has_target else TextTable(
        title=f"Cells: {scale.noun}" if record.plan.measures else
        f"Cells: {scale.noun} over a fixed number of steps; no accuracy was requested",
        headers=("Cell", "Figures", "Ended well", f"Median {scale.noun}{unit}", "Interval"),
        numeric=(False, False, True, True, True),
        rows=tuple(_cell(record, item)[:5] for item in found),
    )


def _cell(record: Record, item: Summary) -> tuple[str, ...]:
    return (
        name(item.label), record.cell(item.cell_id).choices.origin, f"{item.ok}/{item.n}",
        rounded(item.median) if item.median is not None else "not run" if not item.n else
        "not reached" if item.has_target and not item.contest else "none",
        interval(item.interval), rounded(item.median_epochs), rounded(item.median_samples_per_second),
        rounded(item.median_final, 4),
    )


def _comparisons(record: Record, found: Sequence[Comparison]) -> TextTable:
    return TextTable(
        title="Comparisons: candidate / baseline",
        headers=("Candidate", "Baseline", "Figures", "Ratio of", "Ratio", "Interval", "n", "p", "Verdict"),
        numeric=(False, False, False, False, True, True, True, True, False),
        rows=tuple((
            name(item.candidate_label), name(item.baseline_label), pair_origin(record, item),
            METRICS[item.metric].noun + (" *" if item.primary else ""), rounded(item.ratio), interval(item.interval),
            str(item.n), rounded(item.p if item.p_adjusted is None else item.p_adjusted, 2), item.verdict,
        ) for item in found),
    )


def _factors(record: Record, found: Sequence[Comparison]) -> TextTable:
    """Three ratios of a contrast side by side: a protocol that is faster and worse, or slower and better, shows."""
    return TextTable(
        title="Convergence and speed: time to the target = samples to the target / samples a second",
        headers=("Candidate", "Baseline", "Figures", "Samples, ratio", "Interval", "Samples a second, ratio",
                 "Interval", "Time, ratio", "Interval", "Factors, exploratory"),
        numeric=(False, False, False, True, True, True, True, True, True, False),
        rows=tuple((
            name(item.candidate_label), name(item.baseline_label), pair_origin(record, item),
            rounded(item.split.samples.value), interval(item.split.samples.interval),
            rounded(item.split.throughput.value), interval(item.split.throughput.interval),
            rounded(item.ratio), interval(item.interval), in_words(item.split),
        ) for item in found if item.split is not None),
    )


FOOTNOTE = ("* declared contrast, tested alone; every other p is corrected by Holm over all shown. A ratio below 1 "
            "means less time, fewer samples, lower throughput or lower quality.")
