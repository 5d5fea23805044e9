"""Record -> the values that the page template reads."""

from __future__ import annotations

from typing import Any

from markupsafe import Markup, escape

from repro.record.store import Record
from repro.suite.program import ProgramConfig
from repro.suite.quality import common_noun

from .cells import heading, marks, origins, rows
from .checklist import checklist
from .citation import bibtex, citation
from .claims import page_claims
from .controller import controller
from .copies import latex, sentence
from .curves import panels
from .duplicates import duplicates
from .effects import page_effects
from .energy import energy
from .figures import figures
from .first import first_screen
from .gradient_plan import layer_rows
from .looks import looks
from .network import networks
from .notices import notices, parity, progress
from .operations import operations
from .phases import phases
from .question import question
from .scaling import scaling
from .scores import page_scores
from .servers import servers
from .settings import effective, machine, rank_settings, settings, suite_text
from .speedup import forest
from .survival import survival
from .traffic import traffic
from .trials import attempts, by_cell, missing, trials
from .trust import trust
from .tuning import page_tuning
from .verdicts import verdicts

LONG = 12
"""Rows above which a table scrolls in a frame, and a table that repeats a figure is folded."""
PRINTED = 400
"""Evaluations above which their table is folded on paper; the page says so there."""


def view(record: Record) -> dict[str, Any]:
    """Compute everything on the page; the same record gives the same values in the same order."""
    plan, environment = record.plan, record.environment
    known = list(marks(record).values())
    cells, axis = rows(record)
    of_trials, comparisons, scaled, claimed = trials(record), forest(record), scaling(record), page_claims(record)
    noun = common_noun(cell.choices.quality for cell in plan.cells)
    return {
        "noun": noun, "quality": "loss" if noun == "loss" else "quality",
        "measures": plan.measures, "operations": operations(record),
        "programs": all(isinstance(cell.choices, ProgramConfig) for cell in plan.cells),
        "long": LONG, "printed": PRINTED, "mixed": len({mark.origin for mark in known}) > 1,
        "with_result": {item.trial_id for item in record.results},
        "suite": plan.suite, "plan": plan, "environment": environment,
        "title": plan.suite.title or plan.suite.suite, "progress": progress(record),
        "notices": notices(record), "parity": parity(record), "marks": known, "origins": origins(known),
        "copies": {row.index: (sentence(row), latex(row)) for row in comparisons.rows},
        "first": first_screen(record, comparisons, cells, claimed.rows if claimed else ()),
        "asked": (asked := question(record, comparisons.primary, scaled)), "scaling_leads": asked.scaling,
        "cells": cells, "cell_axis": axis, "cell_heading": heading(record), "forest": comparisons,
        "effects": page_effects(record), "looks": looks(record),
        "claims": claimed, "scores": page_scores(record),
        "tuning": page_tuning(record),
        "until": "the end" if plan.is_contest else "target",
        "verdicts": verdicts(record, comparisons), "checklist": checklist(record), "panels": panels(record),
        "survival": survival(record), "training": figures(record),
        "trust": trust(record), "energy": energy(record), "phases": phases(record),
        "traffic": traffic(record), "layers": layer_rows(record), "servers": servers(record),
        "scaling": scaled, "controller": controller(record, scaled), "networks": networks(record),
        "duplicates": duplicates(record),
        "settings": settings(record), "effective": effective(record), "machine": machine(record),
        "rank_settings": rank_settings(record), "attempts": attempts(record), "trials": of_trials,
        "trials_by_cell": by_cell(known, of_trials), "missing": missing(record),
        "suite_text": Markup(escape(suite_text(record))), "citation": citation(record), "bibtex": bibtex(record),
    }
