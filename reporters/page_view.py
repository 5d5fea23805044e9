"""Record -> all that the template needs, in plain values."""

from __future__ import annotations

from typing import Any

from repro.store import Record

from . import (
    page_cells,
    page_curves,
    page_head,
    page_network,
    page_phases,
    page_scaling,
    page_setup,
    page_speedup,
    page_traffic,
    page_trials,
)

PHASE_NAMES = tuple(page_phases.WORDS.items())


def view(record: Record) -> dict[str, Any]:
    """Everything on the page; the same record gives the same values in the same order."""
    plan, environment = record.plan, record.environment
    known = page_cells.marks(record)
    cells, axis = page_cells.rows(record)
    return {
        "suite": plan.suite, "plan": plan, "environment": environment,
        "title": plan.suite.title or plan.suite.suite, "progress": page_head.progress(record),
        "notices": page_head.notices(record), "parity": page_head.parity(record),
        "marks": list(known.values()), "origin": page_cells.origins(list(known.values())),
        "cells": cells, "cell_axis": axis, "forest": page_speedup.forest(record),
        "panels": page_curves.panels(record), "phases": page_phases.phases(record), "phase_names": PHASE_NAMES,
        "traffic": page_traffic.traffic(record), "scaling": page_scaling.scaling(record),
        "networks": page_network.networks(record),
        "settings": page_setup.settings(record), "effective": page_setup.effective(record),
        "machine": page_setup.machine(record), "rank_settings": page_setup.rank_settings(record),
        "attempts": page_trials.attempts(record),
        "trials": page_trials.trials(record), "missing": page_trials.missing(record),
        "suite_text": page_setup.suite_text(record), "citation": page_setup.citation(record),
    }
