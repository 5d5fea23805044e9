"""Record -> all that the template needs, in plain values."""

from __future__ import annotations

from typing import Any

from markupsafe import Markup, escape

from repro.record.store import Record

from . import cells as page_cells
from . import checklist as page_checklist
from . import citation as page_citation
from . import curves as page_curves
from . import energy as page_energy
from . import head as page_head
from . import network as page_network
from . import phases as page_phases
from . import scaling as page_scaling
from . import setup as page_setup
from . import speedup as page_speedup
from . import survival as page_survival
from . import traffic as page_traffic
from . import trials as page_trials
from . import trust as page_trust
from . import verdicts as page_verdicts

LONG = 12
"""Rows beyond which a table scrolls in a frame of its own, and what a figure shows too is folded."""
PRINTED = 400
"""Evaluations beyond which their table is not unfolded for paper; the page says so there."""


def view(record: Record) -> dict[str, Any]:
    """Everything on the page; the same record gives the same values in the same order."""
    plan, environment = record.plan, record.environment
    known = page_cells.marks(record)
    cells, axis = page_cells.rows(record)
    trials = page_trials.trials(record)
    forest = page_speedup.forest(record)
    origin = page_cells.origins(list(known.values()))
    return {
        "long": LONG, "printed": PRINTED, "mixed": " and " in origin,
        "with_result": {item.trial_id for item in record.results},
        "suite": plan.suite, "plan": plan, "environment": environment,
        "title": plan.suite.title or plan.suite.suite, "progress": page_head.progress(record),
        "notices": page_head.notices(record), "parity": page_head.parity(record),
        "marks": list(known.values()), "origin": origin,
        "cells": cells, "cell_axis": axis, "cell_heading": page_cells.heading(record), "forest": forest,
        "verdicts": page_verdicts.verdicts(record, forest), "checklist": page_checklist.checklist(record),
        "panels": page_curves.panels(record),
        "survival": page_survival.survival(record), "trust": page_trust.trust(record),
        "energy": page_energy.energy(record),
        "phases": page_phases.phases(record),
        "traffic": page_traffic.traffic(record), "scaling": page_scaling.scaling(record),
        "networks": page_network.networks(record),
        "settings": page_setup.settings(record), "effective": page_setup.effective(record),
        "machine": page_setup.machine(record), "rank_settings": page_setup.rank_settings(record),
        "attempts": page_trials.attempts(record),
        "trials": trials, "trials_by_cell": page_trials.by_cell(list(known.values()), trials),
        "missing": page_trials.missing(record),
        "suite_text": Markup(escape(page_setup.suite_text(record))), "citation": page_citation.citation(record),
        "bibtex": page_citation.bibtex(record),
    }
