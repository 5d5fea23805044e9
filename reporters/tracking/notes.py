"""Descriptions of an experiment and of its runs in MLflow: the answer, a link to the report, what to know before use.

MLflow shows the first words of a description in the table of runs, so they are the answer, without markup. It folds a
description of more than a few lines and covers all but the first with a shade that takes the clicks: links come early.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pydantic import BaseModel, Field, ValidationError

from repro.compare import METRICS, Comparison, Summary
from repro.compare.findings import findings
from repro.core.markdown import escaped
from repro.record.folder.store import Record
from repro.record.result.results import Result, figure
from repro.record.result.status import meaning
from repro.runner.tracking_store import VIEW_TAG, run_place
from repro.suite.planning.cell import Cell
from repro.tables.cell_tables import missing_text
from repro.tables.layout import rounded
from repro.tables.text import limited, moment, plural, visible, without_paths
from repro.tables.verdicts import ratio_and_span

from .metric_points import ANSWER, column_of

LONGEST = 400
"""Most characters of one text of a record in a description."""
HOW_TO_READ = """One run a cell (a combination of settings) with its medians and its verdict; below it, one run a trial.

- To compare cells: group by parameter `Cell`, or select their runs and press *Compare*.
- The button *Views* has `repro`: a table with verdict, median, ratio and interval. A hidden column is in *Columns*.
- Metrics: `answer/` first; then `curve/` (of a trial, by step), `median/` and `interval/` (of a cell), details after
  them. A name ends with its unit; times without one (`tta_wall`) are seconds. NaN: not known (yet).
"""


@dataclass(frozen=True, slots=True)
class Links:
    """Addresses of a record's runs in MLflow; "": unknown yet."""

    experiment: str = ""
    report: str = ""
    """Run that has the report; "": unknown yet."""
    parent: str = ""
    """Run of a trial's cell."""


def experiment_note(record: Record, comparisons: Sequence[Comparison], links: Links) -> str:
    """Return the description of an experiment: the answer of the record, its report, how to read the runs.

    It has no answer before all trials have run, so that a run changes it only twice.
    """
    suite = record.plan.suite
    title = _text(suite.title or suite.suite)
    primary = next((item for item in comparisons if item.primary), None) if not record.missing() else None
    answer = f"{_text(primary.candidate_label)}: {_verdict(primary)}" if primary else ""
    began = f"Newest run: started {moment(record.environment.started_ms)}, {plural(len(record.plan.order), 'trial')} " \
            "planned."
    return "\n\n".join(filter(None, (
        _sentences(title, _report(record, links), answer), f"{began} {_text(suite.description)}".strip(), HOW_TO_READ)))


def cell_note(
    record: Record, cell: Cell, summary: Summary | None, comparisons: Sequence[Comparison], links: Links
) -> str:
    """Return the description of a cell's run."""
    figures = _figures(summary) if summary else ""
    first = next(iter(comparisons), None)
    head = _sentences(_capital(_verdict(first) if first else figures), _report(record, links))
    beside = [*(f"claim: {claim.statement}: {claim.verdict}, {claim.because}" for claim in findings(record).claims
                if claim.cell_id == cell.cell_id),
              *([first.also] if first and first.also else []),
              *(f"caution: {text}" for text in (first.cautions if first else ())),
              *(f"{item.word} of the run: {item.line}" for item in findings(record).warnings)]
    why = f"Why: {_text(first.because)}. This contrast was {'' if first.primary else 'not '}declared in the suite." \
        if first else ""
    return "\n\n".join(filter(None, (
        head, _sentences(_capital(figures)) if first else "", why,
        "\n".join(f"- {_capital(_text(text))}" for text in beside))))


def trial_note(record: Record, cell: Cell, result: Result | None, reason: str, links: Links) -> str:
    """Return the description of a trial's run; "" before it has ended."""
    head = ""
    if result is not None:
        spec, quality = METRICS[record.plan.suite.metric], cell.choices.quality
        words = meaning(result.status).words
        if meaning(result.status).reached and record.plan.design.judges != "trial":
            words = "ran to its end"
        value = figure(result, spec)
        shown = "" if value is None else f"{rounded(value)} {spec.unit}".rstrip()
        parts = [f"{words} in {shown}" if shown and (spec.to_target or spec.at_end) else
                 f"{words}; {spec.noun} {shown}" if shown else words]
        if result.final is not None:
            parts.append(f"final {_text(quality.metric or 'quality')} {rounded(result.final, 4)}")
        head = _capital("; ".join(parts))
    cause = f"Reason: {_text(reason)}" if reason else ""
    places = [f"[cell {_text(cell.label)}]({run_place(links.experiment, links.parent)})" if links.parent else "",
              f"the [report of all cells]({report_place(links)})" if links.report else ""]
    where = " and ".join(filter(None, places))
    warnings = "\n".join(f"- Warning: {_text(item.words)}" for item in (result.warnings if result else ()))
    see = f"See {where}" if where and (head or cause) else ""
    return "\n\n".join(filter(None, (_sentences(head, see), _sentences(cause), warnings)))


def _verdict(item: Comparison) -> str:
    """Return a verdict as `slower, 1.45 x the time of ddp (95 % interval 1.07 to 1.97), 10 pairs`."""
    pairs = plural(item.n, "pair") if item.paired else f"{item.n} a side, not paired"
    if item.ratio is None:
        return f"{item.spoken} against {_text(item.baseline_label)}, {pairs}"
    ratio, span = ratio_and_span(item.ratio, item.interval)
    limits = f" ({item.coverage} interval {span})" if span else ""
    return f"{item.spoken}, {ratio} x {METRICS[item.metric].times} of {_text(item.baseline_label)}" \
           f"{limits}, {pairs}"


def _figures(item: Summary) -> str:
    """Return a cell in figures: `median time to the target 1.62 s, 4 of 4 reached the target, final quality 0.954`."""
    spec = METRICS[item.metric]
    median = f"{rounded(item.median)} {spec.unit}".rstrip() if item.median is not None else missing_text(item)
    parts = [f"median {spec.noun} {median}", f"{item.ok} of {item.n} {item.done}"]
    parts += [f"final quality {rounded(item.median_final, 4)}"] if item.median_final is not None else []
    return ", ".join(parts)


def _report(record: Record, links: Links) -> str:
    """Return a link to the report; "" while there is none."""
    exists = links.report and (record.folder.reports / "report.html").is_file()
    return f"[Report of all cells]({report_place(links)})" if exists else ""


def report_place(links: Links) -> str:
    """Return the address of the report inside MLflow's pages."""
    return run_place(links.experiment, links.report, "report.html")


def _sentences(*texts: str) -> str:
    """Join those that are not empty, each with its stop."""
    return " ".join(text if text[-1] in ".?!" else f"{text}." for text in texts if text)


def _text(text: str) -> str:
    """Return a text of the record as one line without markup, hidden characters and folders of the machine."""
    return escaped(visible(without_paths(limited(text, LONGEST))))


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


NAME = "repro"
"""The name in the menu."""
NOTE = "mlflow.note.content"
KIND = {"mlflow.experimentKind": "custom_model_development"}
"""Keeps MLflow from guessing that an experiment is about language models."""
FACTORS = 4
"""Most factors with a column."""
LABEL_WIDTH, NOTE_WIDTH, LETTER_WIDTH, MARGIN_WIDTH = 290, 300, 7, 28
"""Pixels."""


class _Stored(BaseModel):
    """Fields of the tag that identify its writer; MLflow keeps fields that it does not know."""

    updated_ms: float = Field(0.0, alias="updatedAt")
    note_sha256: str = ""


def experiment_tags(record: Record, note: str, present: Mapping[str, str]) -> dict[str, str]:
    """Return the tags that describe an experiment, for the newest record in it; {} if it is described by a newer one.

    A description that a user wrote stays.

    Args:
        present: the tags that the experiment has.
    """
    try:
        stored = _Stored.model_validate_json(present.get(VIEW_TAG, "{}"))
    except ValidationError:
        return {}
    started = record.environment.started_ms
    if stored.updated_ms > started:
        return {}
    old = present.get(NOTE, "")
    own = old == "" or _sha256(old) == stored.note_sha256
    view = {"name": NAME, "createdAt": started, "updatedAt": started, "state": json.dumps(_state(record)),
            "note_sha256": _sha256(note if own else "")}
    return {VIEW_TAG: json.dumps(view), **KIND} | ({NOTE: note} if own else {})


def _state(record: Record) -> dict[str, object]:
    declared = column_of(record.plan.suite.metric)
    metrics = [f"median_{declared}", declared, "ratio", "quality",
               "reached" if record.plan.design.judges == "trial" else "ended_well"]
    factors = list(record.plan.cells[0].factors)[:FACTORS]
    columns = ["attributes.`Description`", "tags.`repro.verdict`", *(f"metrics.`{ANSWER}/{name}`" for name in metrics),
               *(f"params.`{name}`" for name in factors)]
    label = "attributes.`Run Name`"
    widths = {f"metrics.`{ANSWER}/{name}`": LETTER_WIDTH * len(f"{ANSWER}/{name}") + MARGIN_WIDTH for name in metrics}
    return {"selectedColumns": columns, "columnOrder": [label, *columns],
            "columnWidths": {label: LABEL_WIDTH, columns[0]: NOTE_WIDTH, **widths}}


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
