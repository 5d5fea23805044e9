"""The table of an experiment's runs as MLflow should show it: columns that answer, in the order of use.

MLflow 3.17 keeps a shared view in a tag of the experiment and lists it in the menu Views; other versions ignore what
they do not know. A view is written by the newest record of the experiment, or not at all.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

from pydantic import BaseModel, Field, ValidationError

from repro.record.folder.store import Record
from repro.runner.mlflow_ui import VIEW_TAG

from .metric_names import ANSWER, column_of

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
    metrics = [f"median_{declared}", declared, "ratio", "ratio_low", "ratio_high", "pairs", "quality",
               "reached" if record.plan.design.judges == "trial" else "ended_well"]
    factors = list(record.plan.cells[0].factors)[:FACTORS]
    columns = ["attributes.`Description`", *(f"metrics.`{ANSWER}/{name}`" for name in metrics),
               *(f"params.`{name}`" for name in factors)]
    label = "attributes.`Run Name`"
    widths = {f"metrics.`{ANSWER}/{name}`": LETTER_WIDTH * len(f"{ANSWER}/{name}") + MARGIN_WIDTH for name in metrics}
    return {"selectedColumns": columns, "columnOrder": [label, *columns],
            "columnWidths": {label: LABEL_WIDTH, columns[0]: NOTE_WIDTH, **widths}}


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
