"""JSON Schema of a suite file, so that editors complete it and mark mistakes during typing."""

from __future__ import annotations

import json
from functools import reduce
from typing import Any

from repro.core import registry
from repro.core.errors import UsageError
from repro.suite.field_problem import SCHEDULES
from repro.suite.kinds.kinds import DEFAULT, KINDS, PROGRAM
from repro.suite.kinds.program import ProgramConfig
from repro.suite.kinds.trial_config import TrialConfig
from repro.suite.model import Suite

EXPONENT = r"^[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$"


def suite_schema() -> dict[str, Any]:
    """Return the schema of a whole suite, including the options of its plug-ins."""
    schema = Suite.model_json_schema(by_alias=True)
    definitions: dict[str, Any] = schema.pop("$defs", {})
    kinds = {name: _trial(kind, definitions) for name, kind in KINDS.items()}
    trial: dict[str, Any] = {"$ref": f"#/$defs/{DEFAULT}-trial"}
    for name, found in kinds.items():
        definitions[f"{name}-trial"] = {**found, "required": []}  # the template may leave out what the matrix sets
        says: dict[str, Any] = {"required": ["kind"], "properties": {"kind": {"const": name}}}
        if name == PROGRAM:
            says = {"anyOf": [says, {"required": ["engine"], "properties": {"engine": {"type": "object", **says}}}]}
        if name != DEFAULT:
            trial = {"if": says, "then": {"$ref": f"#/$defs/{name}-trial"}, "else": trial}
    schema["properties"]["trial"] = trial
    either = reduce(_either, (found["properties"] for found in kinds.values()))
    schema["properties"]["matrix"] = _matrix(schema["properties"]["matrix"], either)
    schema["$defs"] = definitions
    schema = _with_exponents(schema)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": "repro suite"}


def _trial(kind: type[TrialConfig], definitions: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a trial of one kind; its parts go into `definitions`."""
    found = kind.model_json_schema(by_alias=True)
    definitions |= {name: part for name, part in found.pop("$defs", {}).items() if name not in ("Choice", "Plugin")}
    fields = found["properties"]
    for seam in kind.plugin_fields:
        if f"{seam}-choice" not in definitions:
            definitions[f"{seam}-choice"] = _choice(seam, definitions)
        said = {key: fields[seam][key] for key in ("default", "description") if key in fields[seam]}
        fields[seam] = {"$ref": f"#/$defs/{seam}-choice", **said}
    if kind is ProgramConfig:
        fields["launcher"] = {"const": "inline"}
    if "schedule" in fields:
        fields["schedule"] = {"anyOf": [{"enum": list(SCHEDULES)}, fields["schedule"]]}
    return found


def _either(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of two kinds of trial; one that both have may be as in either."""
    both = first | second
    for name in first.keys() & second.keys():
        both[name] = first[name] if first[name] == second[name] else {"anyOf": [first[name], second[name]]}
    return both


def _matrix(matrix: dict[str, Any], fields: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of the matrix: its keys are fields of a trial, or dotted paths into one that has fields."""
    described = {key: value for key, value in matrix.items() if key in ("default", "description", "title", "type")}
    whole = {name: {"type": "array", "items": field, "minItems": 1} for name, field in fields.items()}
    deep = "|".join(name for name, field in fields.items()
                    if "$ref" in json.dumps(field) or name in ("schedule", "parameters"))
    return {**described, "properties": whole, "additionalProperties": False,
            "patternProperties": {rf"^({deep})\.[a-z_.]+$": {"type": "array", "minItems": 1}}}


def _with_exponents(schema: Any) -> Any:
    """Allow every number to be written as 1e-3 too: YAML 1.1, which editors read, parses that as a string."""
    if isinstance(schema, list):
        return [_with_exponents(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    inner = {key: _with_exponents(value) for key, value in schema.items()}
    if schema.get("type") != "number":
        return inner
    said = {key: inner.pop(key) for key in ("default", "description", "title") if key in inner}
    return {**said, "anyOf": [inner, {"type": "string", "pattern": EXPONENT}]}


def _choice(seam: str, definitions: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a plug-in: its name, or a mapping with `kind` and its options."""
    of_a_file = {"type": "string", "pattern": r"\.py:\w+$"}
    variants: list[dict[str, Any]] = [
        {"enum": registry.names(seam)}, of_a_file,
        {"type": "object", "properties": {"kind": of_a_file}, "required": ["kind"]},  # the options are the class's
    ]
    for name in registry.names(seam):
        try:
            options = registry.load(seam, name).model_json_schema()
        except UsageError:
            continue  # a third party's plug-in that cannot be imported; `repro list` shows why
        definitions |= options.pop("$defs", {})
        options["properties"] = {"kind": {"const": name}, **options.get("properties", {})}
        options["required"] = ["kind", *options.get("required", [])]
        variants.append(options)
    return {"anyOf": variants}
