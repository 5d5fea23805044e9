"""JSON Schema of the files of a run folder, from the models that read them (docs/record.md)."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema

from repro.record.environment.environment import Environment
from repro.record.environment.nodes import Nodes
from repro.record.folder.ledger import Attempt, Incident, Look
from repro.record.folder.registration import Registration
from repro.record.folder.shards import Shard
from repro.record.folder.store import Gate
from repro.record.log.event import LogEvent, ValueEvent
from repro.record.log.schema import KINDS
from repro.record.result.results import Result
from repro.record.tuning import Declared
from repro.suite.model import Trial
from repro.suite.planning.plan import Plan

MODELS: dict[str, type[BaseModel]] = {
    "plan.json": Plan, "environment.json": Environment, "nodes.jsonl": Nodes, "launchers.json": Nodes,
    "parity.json": Gate,
    "declared.json": Declared, "ledger.jsonl": Attempt, "incidents.jsonl": Incident, "looks.jsonl": Look,
    "lanes.jsonl": Shard, "registration.json": Registration,
    "trials/*/trial.json": Trial, "trials/*/result.json": Result,
}
"""File of a run folder -> its model; of a .jsonl file that of one line."""
LOG = "trials/*/result_*.txt"
DRAFT = "https://json-schema.org/draft/2020-12/schema"


class AsWritten(GenerateJsonSchema):
    """Without the defaults that are written in another form than the class states them: names of plug-ins."""

    ignored_warning_kinds = {"non-serializable-default", "skipped-choice"}  # noqa: RUF012  # pydantic's own field


def record_schema() -> dict[str, Any]:
    """Return the schema of each file of `MODELS` by its name and, as `LOG`, by its key that of each event of a log."""
    return {**{name: {"$schema": DRAFT, **_schema(model)} for name, model in MODELS.items()},
            LOG: {key: {"$schema": DRAFT, **_line(key, kind)} for key, kind in KINDS.items()}}


def _schema(model: type[BaseModel]) -> dict[str, Any]:
    return model.model_json_schema(by_alias=True, mode="serialization", schema_generator=AsWritten)


def _line(key: str, kind: type[LogEvent]) -> dict[str, Any]:
    """Return the schema of a line with an event: its fields are the value, or `value` is and the others metadata."""
    found = _schema(kind)
    metadata: dict[str, Any] = {"type": "object"}
    if issubclass(kind, ValueEvent):
        fields = found.pop("properties", {})
        value = fields.pop("value", {"type": "null"})
        required = [name for name in found.get("required", ()) if name != "value"]
        metadata |= {"properties": fields, "required": required}
    else:
        value = {name: part for name, part in found.items() if name not in ("$defs", "title", "description")}
    return {"title": found["title"], "description": found.get("description", ""), "type": "object",
            "properties": {"key": {"const": key}, "event_type": {"const": kind.event_type}, "value": value,
                           "metadata": metadata},
            "required": ["key", "event_type", "value", "metadata"], "$defs": found.get("$defs", {})}
