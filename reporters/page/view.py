"""Record -> the values that the page template reads."""

from __future__ import annotations

from typing import Any

from markupsafe import Markup, escape

from repro.compare.findings import findings
from repro.core import registry
from repro.record.folder.store import Record
from repro.suite.kinds.program import ProgramConfig
from repro.suite.quality import common_noun

from .cells import heading, marks, origins, rows
from .charts.curves import panels
from .charts.scaling import scaling
from .charts.survival import survival
from .citation import bibtex, citation
from .first.copies import latex, sentence
from .first.first import first_screen
from .first.looks import looks
from .first.question import question
from .first.speedup import forest
from .first.verdicts import verdicts
from .notices import notices, parity, progress
from .operations import operations
from .sections.checklist import checklist
from .sections.claims import page_claims
from .sections.effects import page_effects
from .sections.energy import energy
from .sections.figures import figures
from .sections.network import networks
from .sections.phases import phases
from .sections.scores import page_scores
from .sections.settings import effective, machine, rank_settings, settings, suite_text
from .sections.trials import attempts, by_cell, missing, trials
from .sections.trust import trust
from .sections.tuning import page_tuning
from .traffic import traffic

LONG = 12
"""Rows above which a table scrolls in a frame, and a table that repeats a figure is folded."""
PRINTED = 400
"""Evaluations above which their table is folded on paper; the page says so there."""


def view(record: Record) -> dict[str, Any]:
    """Compute everything on the page; the same record gives the same values in the same order."""
    plan, environment, found = record.plan, record.environment, findings(record)
    known = list(marks(record).values())
    cells, axis = rows(found)
    of_trials, comparisons, scaled, claimed = trials(record), forest(found), scaling(record), page_claims(found)
    noun = common_noun(cell.choices.quality for cell in plan.cells)
    return {
        "noun": noun, "quality": "loss" if noun == "loss" else "quality",
        "measures": plan.measures, "operations": operations(record),
        "programs": all(isinstance(cell.choices, ProgramConfig) for cell in plan.cells),
        "long": LONG, "printed": PRINTED, "mixed": len({mark.origin for mark in known}) > 1,
        "with_result": {item.trial_id for item in record.results},
        "suite": plan.suite, "plan": plan, "environment": environment,
        "title": plan.suite.title or plan.suite.suite, "progress": progress(record),
        "notices": notices(found), "parity": parity(record), "marks": known, "origins": origins(known),
        "copies": {row.index: (sentence(row), latex(row)) for row in comparisons.rows},
        "first": first_screen(record, comparisons, cells, claimed.rows if claimed else ()),
        "asked": (asked := question(found, comparisons.primary, scaled)), "scaling_leads": asked.scaling,
        "cells": cells, "cell_axis": axis, "cell_heading": heading(record), "forest": comparisons,
        "effects": page_effects(found), "looks": looks(record),
        "claims": claimed, "scores": page_scores(found),
        "tuning": page_tuning(found),
        "until": "the end" if plan.design.is_contest else "target",
        "verdicts": verdicts(found, comparisons), "checklist": checklist(record), "panels": panels(record),
        "survival": survival(found), "training": figures(found),
        "trust": trust(record), "energy": energy(record), "phases": phases(found),
        "traffic": traffic(record), "scaling": scaled, "networks": networks(record),
        **{name: section(record, scaled) for name, section in registry.parts("section").items()},
        "settings": settings(record), "effective": effective(record), "machine": machine(record),
        "rank_settings": rank_settings(record), "attempts": attempts(record), "trials": of_trials,
        "trials_by_cell": by_cell(known, of_trials), "missing": missing(record),
        "suite_text": Markup(escape(suite_text(record))), "citation": citation(record), "bibtex": bibtex(record),
    }
