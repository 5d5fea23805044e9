"""The tuning of a record as rows of plain values."""

from __future__ import annotations

import json
from collections.abc import Iterator

from repro.compare.ranking.tuning_check import width
from repro.compare.runs.findings import Findings
from repro.tables.values import Row, origins_of, plain


def tuning_rows(findings: Findings) -> Iterator[Row]:
    """Yield one row per tuned contender: budget, cost, choice."""
    found = findings.tuning
    for place, item in enumerate(found.budgets if found else ()):
        contender = found.tuning.contenders[place] if found and found.tuning else None
        cost, best = (contender.cost, contender.chosen) if contender else (None, None)
        yield {
            "contender": plain(item.label), "origin": " and ".join(origins_of(findings.record.plan.cells)),
            "search": found.tune.search if found else None, "metric": found.tune.metric if found else None,
            "settings": item.settings, "seeds": item.seeds, "trials": item.trials, "further_trials": item.further,
            "unequal": plain(item.space.unequal), "starts": cost.starts if cost else None,
            "abandoned": cost.abandoned if cost else None, "wall_seconds": cost.wall_seconds if cost else None,
            "processor_seconds": cost.processor_seconds if cost else None,
            "unknown_starts": cost.unknown if cost else None,
            "best_setting": plain(json.dumps(best.values, sort_keys=True)) if best else None,
            "best_figure": best.figure if best else None, "best_quality": best.quality if best else None,
            "tuning_seed": str(found.tuning_seed) if found else None,
            "scored_seed": str(found.scored_seed) if found and found.scored_seed is not None else None,
            "problems": plain("; ".join(found.problems)) if found else None,
        }


def setting_rows(findings: Findings) -> Iterator[Row]:
    """Yield one row per setting that was tried; none if the tuning is not in this record."""
    found = findings.tuning
    for contender in found.tuning.contenders if found and found.tuning else ():
        for item in contender.settings:
            yield {
                "contender": plain(contender.label), "origin": " and ".join(origins_of(findings.record.plan.cells)),
                "number": item.number, "rank": item.rank, "setting": plain(json.dumps(item.values, sort_keys=True)),
                "metric": found.tune.metric if found else None, "figure": item.figure, "quality": item.quality,
                "statuses": ", ".join(f"{count} {name}" for name, count in sorted(item.statuses.items())),
                "cell_id": item.cell.cell_id if item.cell else None,
            }


def space_rows(findings: Findings) -> Iterator[Row]:
    """Yield one row per contender and field of its space."""
    found = findings.tuning
    for item in found.budgets if found else ():
        for name, axis in sorted(item.space.space.items()):
            yield {"contender": plain(item.label), "field": plain(name), "values": plain(axis.text()),
                   "width": plain(width(axis)), "declared_origin": plain(" ".join(item.space.origin.split()))}
