"""JSON Schema of the files of a run folder, from the models that read them (docs/record.md)."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema

from repro.record.environment.environment import Environment
from repro.record.environment.nodes import Nodes
from repro.record.folder.ledger import Attempt, Incident, Look
from repro.record.folder.store import Gate
from repro.record.result.results import Result
from repro.record.tuning import Declared
from repro.suite.model import Trial
from repro.suite.planning.plan import Plan

MODELS: dict[str, type[BaseModel]] = {
    "plan.json": Plan, "environment.json": Environment, "launchers.json": Nodes, "parity.json": Gate,
    "declared.json": Declared, "ledger.jsonl": Attempt, "incidents.jsonl": Incident, "looks.jsonl": Look,
    "trials/*/trial.json": Trial, "trials/*/result.json": Result,
}
"""File of a run folder -> its model; of a .jsonl file that of one line."""


class _AsWritten(GenerateJsonSchema):
    """Without the defaults that are written in another form than the class states them: names of plug-ins."""

    ignored_warning_kinds = {"non-serializable-default", "skipped-choice"}  # noqa: RUF012  # pydantic's own field


def record_schema() -> dict[str, Any]:
    """Return the schema of each file of `MODELS`, by its name."""
    return {name: {"$schema": "https://json-schema.org/draft/2020-12/schema",
                   **model.model_json_schema(by_alias=True, mode="serialization",
                                             schema_generator=_AsWritten)}
            for name, model in MODELS.items()}
