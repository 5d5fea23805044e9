"""The HTML reporter: the record as one self-contained page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from markupsafe import Markup, escape

from repro.audit.rules import check, failing_first
from repro.compare import Comparison
from repro.compare.cell_figures import cell_checks, notes
from repro.compare.findings import Findings, findings
from repro.compare.runs.run_warnings import run_warnings
from repro.core import registry
from repro.core.files import write_text
from repro.record.folder.store import Record
from repro.record.result.result_warnings import OBSERVER_LIMIT
from repro.reporting import Reporter
from repro.suite.kinds.program import ProgramConfig
from repro.suite.metrics import METRICS
from repro.suite.quality import common_noun
from repro.tables.cell_tables import lane_rows

from .page.cells import marks, origins, rows
from .page.charts.curves import end_word as curve_end
from .page.charts.curves import panels
from .page.charts.scaling import scaling
from .page.charts.survival import survival
from .page.document import fragment, page_scripts, rendered
from .page.first_screen import first_screen, looks
from .page.notices import account, by_source, end_word, notices, parity, progress, trials
from .page.question import question
from .page.sections import settings
from .page.sections.clocks import CHECKS, LEVELS, pairing, phases, worst
from .page.sections.effects import page_effects
from .page.sections.figures import energy, figures, in_its_unit, measures
from .page.sections.lanes import by_lane
from .page.speedup import forest, quotation
from .page.traffic import megabits, networks, traffic
from .paper.latex_text import breakable_text

if TYPE_CHECKING:
    from repro.compare.runs.merge import Section


LONG = 12
"""Rows above which a table scrolls in a frame, and a table that repeats a figure is folded."""
PRINTED = 400
"""Evaluations above which their table is folded on paper; the page says so there."""


def first_view(found: Findings) -> dict[str, Any]:
    """Compute what the first screen and the table of cells show, on the page and in a notebook."""
    record, plan, mark_of = found.record, found.record.plan, marks(found.record)
    known = list(mark_of.values())
    cells, axis = rows(found)
    comparisons, scaled, rules = forest(found), scaling(record), check(record)
    noun = common_noun(cell.choices.quality for cell in plan.cells)
    first = first_screen(record, comparisons, cells, found.claims)
    doubts = [f"{item.title}: {item.text}" for item in run_warnings(record)
              if not item.is_note and item.about != "trials"]
    quoted = {row.index: quotation(row, first.machine, doubts) for row in comparisons.rows}
    copies = {index: (Markup(escape(text)), Markup(escape(breakable_text(text)))) for index, text in quoted.items()}
    return {
        "noun": noun, "quality": "loss" if noun == "loss" else "quality", "measures": plan.measures,
        "long": LONG, "mixed": len({mark.origin for mark in known}) > 1, "marks": known, "origins": origins(known),
        "mark_of": mark_of, "suite": plan.suite, "plan": plan, "bibtex": settings.bibtex(record),
        "copies": copies, "first": first,
        "scaling": scaled, "asked": (asked := question(found, comparisons.primary, scaled)),
        "scaling_leads": asked.scaling, "cells": cells, "cell_axis": axis, "scale": METRICS[plan.suite.metric],
        "forest": comparisons,
        "effects": page_effects(found), "looks": looks(record), "claims": found.claims,
        "until": "the end" if plan.design.is_contest else "target", "rules": failing_first(rules),
        "checklist": by_source(rules), "declared": True, "calibration": found.calibration,
        "error_budget": found.error_budget,
    }


def view(record: Record) -> dict[str, Any]:
    """Compute everything on the page; the same record gives the same values in the same order."""
    plan, environment, found = record.plan, record.environment, findings(record)
    seen = first_view(found)
    return {
        **seen, "operations": measures(record), "cell_checks": cell_checks,
        "programs": all(isinstance(cell.choices, ProgramConfig) for cell in plan.cells), "printed": PRINTED,
        "record": record, "end_word": partial(end_word, record=record), "account": account,
        "with_result": {item.trial_id for item in record.results},
        "starts": Counter(item.trial_id for item in record.attempts),
        "environment": environment,
        "title": plan.suite.title or plan.suite.suite, "progress": progress(record),
        "notices": notices(found), "parity": parity(record), "panels": panels(record), "curve_end": curve_end,
        "survival": survival(found), "found": found, "training": figures(found), "cell_notes": notes,
        "observer_limit": OBSERVER_LIMIT,
        "clock_checks": CHECKS, "worst": worst, "determinism": LEVELS, "pairing": pairing(record),
        "energy": energy(record), "phases": phases(found),
        "traffic": traffic(record), "networks": networks(record),
        **{name: section(record, seen["scaling"]) for name, section in registry.parts("section").items()},
        "settings": settings.settings(record), "effective": settings.effective(record),
        "machine": settings.machine(record), "rank_settings": settings.rank_settings(record),
        "wash_outs": record.wash_outs, "lanes": [*lane_rows(found)], "by_lane": by_lane(seen["forest"].rows),
        "attempts": sorted(record.attempts, key=lambda item: item.status == "ok"), "trials": trials(record),
        "suite_text": Markup(escape(settings.suite_text(record))), "citation": settings.citation(record),
        "class_files": settings.class_files(record),
    }


class HtmlPage(Reporter):
    """One page with verdicts, figures, tables and the ledger.

    The page works offline. Without JavaScript everything but the figures works.
    """

    title: ClassVar[str] = "HTML report, one file"

    def write(self, record: Record, out: Path) -> list[str]:
        """Write `report.html` into `out`."""
        path = out / "report.html"
        write_text(path, render(record, linked=out.absolute() == record.folder.reports.absolute()))
        return [str(path)]

    def write_sections(self, sections: Sequence[Section], out: Path) -> list[str]:
        """Write `report.html` into `out`: a short form of every section, with its figures."""
        from .page import several

        path = out / "report.html"
        write_text(path, several.render(sections))
        return [str(path)]


def display(record: Record, comparison: Comparison | None = None, caption: str = "") -> str:
    """Return the first screen of one comparison, or the table of cells, as a part of a notebook.

    Args:
        caption: a line above it.
    """
    found = Findings(record)
    shown = () if comparison is None else (comparison.model_copy(update={"primary": True}),)
    vars(found).update(comparisons=shown, effects=(), claims=())
    values = first_view(found)
    values |= {"declared": comparison is None or comparison.primary, "caption": caption, "error_budget": ""}
    return fragment("display.html.j2", values)


def render(record: Record, linked: bool = True) -> str:
    """Render the page.

    Args:
        linked: it is in <run>/report; the links to logs are relative.
    """
    values = view(record) | {"linked": linked}
    charts = [*(values[name].charts for name in ("scaling", "controller", "survival", "duplicates")),
              *(panel.charts for panel in values["panels"]),
              *(values[name].charts for name in ("scores", "tuning") if values[name])]
    return rendered("report.html.j2", values, page_scripts("report.js", any(charts)),
                    filters={"in_its_unit": in_its_unit, "megabits": megabits})
