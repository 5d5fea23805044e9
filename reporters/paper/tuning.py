"""The tuning in compact form, one table for a README or a paper."""

from __future__ import annotations

from repro.compare.ranking.tuning_check import Budget, width
from repro.tables.tuning_words import figure_text, setting_text
from repro.tables.values import origins_of
from repro.tables.words import NOTHING, TextTable, name, rounded

from .shown import Shown


def tuning_table(part: Shown) -> TextTable:
    """Return one row a contender; no row if nothing was tuned or a part is shown."""
    found = part.found.tuning if part.whole else None
    headers = ("Contender", "Figures", "Settings x seeds", "Trials", "Abandoned", "Wall time (s)", "Processor time (s)",
               "Best setting", "Its figure", "Space", "Origin of the space")
    numeric = (False, False, True, True, True, True, True, False, True, False, False)
    if found is None:
        return TextTable("", headers, numeric, ())
    rows, figures = [], " and ".join(origins_of(part.found.record.plan.cells))
    for place, item in enumerate(found.budgets):
        contender = found.tuning.contenders[place] if found.tuning else None
        cost, best = (contender.cost, contender.chosen) if contender else (None, None)
        rows.append((
            name(item.label), figures, f"{item.settings} x {item.seeds}",
            NOTHING if cost is None else str(cost.trials + item.further),
            NOTHING if cost is None else str(cost.abandoned), rounded(cost.wall_seconds if cost else None),
            rounded(cost.processor_seconds if cost else None), setting_text(best.values) if best else NOTHING,
            figure_text(best, found.tune.metric) if best else NOTHING, _space(item),
            name(" ".join(item.space.origin.split()))))
    apart = "no scored seed was used" if not found.seed_problems else "UNFAIR: see above"
    return TextTable(f"Tuning before scoring: search {found.tune.search}, by {found.tune.metric}; {apart}",
                     headers, numeric, tuple(rows))


def _space(item: Budget) -> str:
    return "; ".join(f"{field} {axis.text()} ({width(axis)})" for field, axis in sorted(item.space.space.items()))
