"""The tuning of a record as tables: contenders with budget, cost and choice, settings tried, search spaces."""

from __future__ import annotations

import json
from collections.abc import Iterator

from repro.compare.findings import Findings, findings
from repro.record.folder.store import Record
from repro.record.tuning import TriedSetting, TunedContender
from repro.suite.metrics import METRICS
from repro.suite.tune import setting_text
from repro.tables.layout import NOTHING, Column, TextTable, count, figure, laid, sentence, words
from repro.tables.tables import Table
from repro.tables.values import Row, plain


def contenders(record: Record) -> Table:
    """Return one row per tuned contender: budget, cost, choice."""
    return Table("tuning", "One row per tuned contender", tuple(_contender_rows(findings(record))))


def _contender_rows(answers: Findings) -> Iterator[Row]:
    found = answers.tuning
    for place, item in enumerate(found.budgets if found else ()):
        assert found is not None
        contender = found.tuning.contenders[place] if found.tuning else None
        cost, best = (contender.cost, contender.chosen) if contender else (None, None)
        yield {
            "contender": plain(item.label), "origin": answers.origin, "search": found.tune.search,
            "metric": found.tune.metric, "settings": item.settings, "seeds": item.seeds, "trials": item.trials,
            "further_trials": item.further, "unequal": plain(item.space.unequal),
            "starts": cost.starts if cost else None, "abandoned": cost.abandoned if cost else None,
            "wall_seconds": cost.wall_seconds if cost else None,
            "processor_seconds": cost.processor_seconds if cost else None,
            "unknown_starts": cost.unknown if cost else None,
            "best_setting": plain(json.dumps(best.values, sort_keys=True)) if best else None,
            "best_figure": best.figure if best else None, "best_quality": best.quality if best else None,
            "tuning_seed": str(found.tuning_seed),
            "scored_seed": None if found.scored_seed is None else str(found.scored_seed),
            "problems": plain("; ".join(found.problems)),
        }


def settings(record: Record) -> Table:
    """Return one row per setting that was tried; none if the tuning is not in this record."""
    answers = findings(record)
    found = answers.tuning
    return Table("tuning_settings", "One row per setting that was tried", tuple({
        "contender": plain(contender.label), "origin": answers.origin,
        "number": item.number, "rank": item.rank, "setting": plain(json.dumps(item.values, sort_keys=True)),
        "metric": found.tune.metric, "figure": item.figure, "quality": item.quality,
        "statuses": ", ".join(f"{count} {name}" for name, count in sorted(item.statuses.items())),
        "cell_id": item.cell.cell_id if item.cell else None,
    } for contender in found.tuning.contenders for item in contender.settings) if found and found.tuning else ())


def spaces(record: Record) -> Table:
    """Return one row per contender and field of its space."""
    found = findings(record).tuning
    return Table("tuning_spaces", "One row per field of a contender's search space", tuple(
        {"contender": plain(item.label), "field": plain(field), "values": plain(axis.text()),
         "width": plain(axis.width), "declared_origin": plain(" ".join(item.space.origin.split()))}
        for item in (found.budgets if found else ()) for field, axis in sorted(item.space.space.items())))


def tuning_table(record: Record) -> TextTable | None:
    """Return one row a contender; None if nothing was tuned."""
    answers = findings(record)
    found = answers.tuning
    if found is None:
        return None
    rows = []
    for place, row in enumerate(_contender_rows(answers)):
        item = found.budgets[place]
        best = found.tuning.contenders[place].chosen if found.tuning else None
        cost = found.tuning.contenders[place].cost if found.tuning else None
        rows.append(row | {
            "run": cost.trials + item.further if cost else None,
            "best": setting_text(best.values) if best else "",
            "best_text": figure_text(best, found.tune.metric) if best else "",
            "space": "; ".join(f"{field} {axis.text()} ({axis.width})"
                               for field, axis in sorted(item.space.space.items())),
            "of_space": " ".join(item.space.origin.split()),
        })
    apart = "no scored seed was used" if not found.seed_problems else "UNFAIR: see above"
    return laid(f"Tuning before scoring: search {found.tune.search}, by {found.tune.metric}; {apart}", (
        words("Contender", "contender"), words("Figures", "origin"),
        Column("Settings x seeds", lambda row: f"{row['settings']} x {row['seeds']}"), count("Trials", "run"),
        count("Abandoned", "abandoned"), figure("Wall time (s)", "wall_seconds"),
        figure("Processor time (s)", "processor_seconds"), sentence("Best setting", "best"),
        Column("Its figure", lambda row: str(row["best_text"] or NOTHING)), sentence("Space", "space"),
        words("Origin of the space", "of_space")), rows)


def is_lower_better(contender: TunedContender, metric: str) -> bool:
    """Return whether a smaller figure ranks higher, as the choice ranks."""
    if METRICS[metric].path not in ("final", "best"):
        return METRICS[metric].better == "lower"
    return any(item.cell is not None and item.cell.choices.stop.direction == "lower" for item in contender.settings)


def end_of(item: TriedSetting) -> str:
    """Return how a setting without a figure ended: missed, abandoned, failed, skipped or not yet run."""
    if item.cell is None:
        return "skipped"
    if not item.results:
        return "not run"
    statuses = item.statuses
    return "abandoned" if "abandoned" in statuses else "missed" if "missed" in statuses else "failed"


def figure_text(item: TriedSetting, metric: str) -> str:
    """Return the figure of a setting with its unit, or how it ended."""
    if item.figure is not None:
        return f"{item.figure:,.4g} {METRICS[metric].unit}".rstrip()
    return end_of(item)
