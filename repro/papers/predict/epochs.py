"""A published table of epochs to a target by global batch (`repro predict --epochs`)."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, ValidationError, field_validator

from repro.core.errors import UsageError
from repro.core.frozen import Frozen
from repro.core.yaml_file import read_yaml


class EpochTable(Frozen):
    """Epochs to a target by global batch, as published."""

    source: str = Field(min_length=1, max_length=500)
    """Where they were published; every use is labelled with it."""
    samples: int | None = Field(None, ge=1)
    """Samples of an epoch; None: those of the workload."""
    epochs: dict[int, float]
    """Global batch -> epochs."""

    @field_validator("epochs")
    @classmethod
    def _are_positive(cls, value: dict[int, float]) -> dict[int, float]:
        if not value or any(batch < 1 or not 0 < epochs < 1e6 for batch, epochs in value.items()):
            raise ValueError("needs positive epochs by positive batches, for example {8192: 42}")
        return value


def read_epochs(path: Path) -> EpochTable:
    """Read a table.

    Raises:
        UsageError: it cannot be read, or is no such table.
    """
    try:
        data = read_yaml(path).data
        return EpochTable.model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"]))
        raise UsageError(f"{path}: {field}{': ' if field else ''}{first['msg']}; write source: TEXT and epochs: "
                         "{BATCH: EPOCHS}") from None
