"""`systems/<name>.json` of a results repository -> PublishedSystem."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from repro.published.record import PublishedSystem
from repro.published.untrusted.files import parse_object, plain

MAX_BYTES = 1 << 20
MAX_OTHER = 200
NAMES = {
    "submitter": "submitter", "system_name": "system_name", "division": "division", "status": "availability",
    "accelerator_model_name": "accelerator", "host_processor_model_name": "processor", "framework": "framework",
}
COUNTS = {
    "number_of_nodes": "nodes", "accelerators_per_node": "accelerators_per_node",
    "host_processors_per_node": "processors_per_node",
}


def read_system(content: bytes, org: str, name: str, source: str) -> PublishedSystem:
    """Read a system description.

    Raises:
        DamagedInput: not a JSON object.
    """
    data = parse_object(content, "the system description is not a JSON object")
    fields: dict[str, Any] = {to: _text(data.get(of)) for of, to in NAMES.items()}
    fields |= {to: count(data.get(of)) for of, to in COUNTS.items()}
    return PublishedSystem(
        org=org, name=name, **fields, other=_other(data), source=source, sha256=hashlib.sha256(content).hexdigest(),
    )


def _text(value: Any) -> str | None:
    """Return the text of a value; None for the usual placeholders of empty fields."""
    if value is None or isinstance(value, dict | list):
        return None
    text = plain(value).strip()
    return None if text.lower() in ("", "-", "n/a", "na", "none") else text


def count(value: Any) -> int | None:
    """Return a count, also from text; None if it is not a count."""
    text = str(value).strip() if isinstance(value, str | int) and not isinstance(value, bool) else ""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 9 else None


def _other(data: Mapping[str, Any]) -> dict[str, str]:
    flat: dict[str, str] = {}
    for key, value in data.items():
        if key in NAMES:
            continue
        inner = value.items() if isinstance(value, dict) else [("", value)]
        for name, item in inner:
            text = _text(item) if not isinstance(item, dict | list) else plain(item)
            if text is not None and len(flat) < MAX_OTHER:
                flat[plain(f"{key}.{name}" if name else key, 100)] = text
    return flat
