"""Names of cells and trials: sha256 of their one canonical JSON text."""

from __future__ import annotations

import hashlib
import json
from typing import Final

from pydantic import BaseModel

METHOD: Final = "2.0"
"""Version of the measuring method (docs/method.md). Records of another one are refused."""


def canonical(model: BaseModel, exclude: set[str] | None = None) -> str:
    """Return the one JSON text of a model: every field but those of `exclude`, keys sorted, no spaces."""
    data = model.model_dump(mode="json", by_alias=True, exclude=exclude)
    return json.dumps(data, sort_keys=True, separators=(",", ":"))


def digest(model: BaseModel) -> str:
    """Return the sha256 of the canonical JSON, hex."""
    return hashlib.sha256(canonical(model).encode()).hexdigest()
