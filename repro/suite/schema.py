"""JSON Schema of a suite file, so that editors complete it and mark mistakes during typing."""

from __future__ import annotations

import json
from functools import reduce
from typing import Any

from repro.core import registry
from repro.core.errors import UsageError
from repro.suite.field_problem import SCHEDULES
from repro.suite.kinds.kinds import OF_PAPERS, PROGRAM
from repro.suite.kinds.program import ProgramConfig
from repro.suite.kinds.training import TrainingConfig
from repro.suite.kinds.trial_config import TrialConfig
from repro.suite.model import Suite

EXPONENT = r"^[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$"


def suite_schema() -> dict[str, Any]:
    """Return the schema of a whole suite, including the options of its plug-ins."""
    schema = Suite.model_json_schema(by_alias=True)
    trial = TrainingConfig.model_json_schema(by_alias=True)
    definitions: dict[str, Any] = {**schema.pop("$defs", {}), **trial.pop("$defs", {})}
    definitions.pop("Choice", None)
    definitions.pop("Plugin", None)
    for seam in TrainingConfig.plugin_fields:
        definitions[f"{seam}-choice"] = _choice(seam, definitions)
        described = trial["properties"][seam]
        trial["properties"][seam] = {"$ref": f"#/$defs/{seam}-choice", **_default(described)}
    trial["properties"]["batch"] = {"anyOf": [{"type": "integer", "minimum": 1}, trial["properties"]["batch"]]}
    _schedule_by_name(trial)
    program = _program(definitions)
    # The template may leave out what the matrix sets.
    of_papers = {kind: _of_paper(found, definitions) for kind, found in OF_PAPERS.items()}
    definitions["Training"], definitions["ProgramTrial"] = {**trial, "required": []}, {**program, "required": []}
    for kind, found in of_papers.items():
        definitions[f"{kind.capitalize()}Trial"] = {**found, "required": ["kind"]}
    says_program = {"anyOf": [
        {"required": ["kind"], "properties": {"kind": {"const": PROGRAM}}},
        {"required": ["engine"], "properties": {"engine": {
            "type": "object", "required": ["kind"], "properties": {"kind": {"const": PROGRAM}}}}}]}
    other: dict[str, Any] = {"$ref": "#/$defs/Training"}
    for kind in of_papers:
        other = {"if": {"required": ["kind"], "properties": {"kind": {"const": kind}}},
                 "then": {"$ref": f"#/$defs/{kind.capitalize()}Trial"}, "else": other}
    definitions["Trial"] = {"if": says_program, "then": {"$ref": "#/$defs/ProgramTrial"}, "else": other}
    schema["properties"]["trial"] = {"$ref": "#/$defs/Trial"}
    either = reduce(_either, (found["properties"] for found in (trial, program, *of_papers.values())))
    schema["properties"]["matrix"] = _matrix(schema["properties"]["matrix"], either)
    schema["$defs"] = definitions
    schema = _with_exponents(schema)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": "repro suite"}


def _program(definitions: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a trial of kind program; its parts go into `definitions`."""
    program = ProgramConfig.model_json_schema(by_alias=True)
    definitions |= {name: part for name, part in program.pop("$defs", {}).items() if name not in ("Choice", "Plugin")}
    program["properties"]["launcher"] = {"const": "inline"}
    program["properties"]["batch"] = {"anyOf": [{"type": "integer", "minimum": 1}, program["properties"]["batch"]]}
    return program


def _of_paper(kind: type[TrialConfig], definitions: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a trial of a paper's kind; its parts go into `definitions`."""
    found = kind.model_json_schema(by_alias=True)
    definitions |= {name: part for name, part in found.pop("$defs", {}).items() if name not in ("Choice", "Plugin")}
    for seam in kind.plugin_fields:
        definitions.setdefault(f"{seam}-choice", _choice(seam, definitions))
        found["properties"][seam] = {"$ref": f"#/$defs/{seam}-choice", **_default(found["properties"][seam])}
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


def _default(described: dict[str, Any]) -> dict[str, Any]:
    return {key: described[key] for key in ("default", "description") if key in described}


def _schedule_by_name(trial: dict[str, Any]) -> None:
    schedule = trial["properties"]["schedule"]
    trial["properties"]["schedule"] = {"anyOf": [{"enum": list(SCHEDULES)}, schedule]}


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
