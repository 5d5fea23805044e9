"""Two cells of a run that somebody asks for: as the suite declares them, else exploratory (`compare --candidate`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from repro.compare.cells import select_cells
from repro.compare.comparing import ASKED_AFTERWARDS, explore
from repro.compare.figures import Comparison
from repro.compare.findings import findings
from repro.compare.runs.runs import Compared, check_metric, compared, judged_by, metric_refusal
from repro.compare.verdict.condition import VerdictCondition, parse
from repro.core.errors import UsageError, nearest
from repro.record.folder.store import Record, read_record
from repro.record.result.results import figure
from repro.suite.metrics import METRICS
from repro.suite.planning.cell import Cell


def compare_two(run: Path, candidate: str, baseline: str, metric: str | None, fail_if: Sequence[str]) -> Compared:
    """Compare two cells of a run; for arguments and errors see `compare_cells`.

    Args:
        fail_if: conditions on the comparison.

    Raises:
        UsageError: as `compare_cells`, or a condition is a verdict that two cells chosen afterwards never have: a gate
            that cannot fail.
    """
    record, conditions = read_record(run), [parse(text) for text in fail_if]
    found = compare_cells(record, candidate, baseline, metric)
    idle = next((item for item in conditions if isinstance(item, VerdictCondition) and not item.wanted), None)
    if idle is not None and found.because.startswith(ASKED_AFTERWARDS):
        raise UsageError(f"--fail-if {idle.text!r}: can never hold, because the suite does not declare this contrast "
                         "with this metric, so it has no verdict; declare it, or test an end of the interval, like "
                         "'ratio.low > 1'")
    return judged_by(compared([record], [found], METRICS[found.metric].name), conditions)


def compare_cells(
    record: Record, candidate: str | Mapping[str, Any], baseline: str | Mapping[str, Any],
    metric: str | None = None, margin: float | None = None,
) -> Comparison:
    """Compare two cells of a run: as declared if the suite declares it so, else exploratory.

    Args:
        candidate, baseline: label, id, pattern or factors of one cell each.
        metric: None: the suite's.
        margin: largest difference that counts as the same; None: the suite's.

    Raises:
        UsageError: one of the two means no cell or several, or the two have no pairs or no values of the metric.
    """
    cells = record.plan.cells
    ours, theirs = (_the_cell(select_cells(cells, wanted, what), wanted, what)
                    for wanted, what in ((candidate, "candidate"), (baseline, "baseline")))
    if ours is theirs:
        raise UsageError(f"candidate and baseline are one cell, {ours.label}: name two")
    suite = record.plan.suite
    chosen, asked = metric or suite.metric, suite.margin if margin is None else margin
    if chosen not in METRICS:
        raise UsageError(f"metric {chosen}: unknown{nearest(chosen, METRICS)}")
    if not 0 < asked < 1:
        raise UsageError(f"margin {asked:g}: is a share between 0 and 1; 0.05 is 5 %")
    check_metric(chosen, [record])
    if asked == suite.margin:
        for item in findings(record).comparisons:
            if (item.candidate, item.baseline, item.metric) == (ours.cell_id, theirs.cell_id, chosen):
                return _paired(item)
    for cell in (ours, theirs):
        results = record.of_cell(cell.cell_id)
        if not METRICS[chosen].to_target and results and all(figure(item, METRICS[chosen]) is None for item in results):
            have = [name for name, spec in METRICS.items()
                    if not metric_refusal(name, [record]) and any(figure(item, spec) is not None for item in results)]
            raise UsageError(f"metric {chosen}: no trial of {cell.label} has a value; it has {', '.join(have)}")
    return _paired(explore(record.plan, record.results, (ours.cell_id, theirs.cell_id), chosen, asked,
                           record.execution))


def _paired(found: Comparison) -> Comparison:
    if not found.pairs and found.refused:
        raise UsageError(f"{found.candidate_label} and {found.baseline_label} are no pairs: "
                         f"{found.because.removeprefix(ASKED_AFTERWARDS).removeprefix('; ')}; name two cells whose "
                         "trials of one seed have the same data and initial weights")
    return found


def _the_cell(found: Sequence[Cell], wanted: object, what: str) -> Cell:
    if len(found) > 1:
        raise UsageError(f"{what} {wanted}: matches {len(found)} cells, name one: "
                         f"{'; '.join(cell.label for cell in found[:8])}")
    return found[0]
