"""Facts about a plug-in that readers of a record need, stored with the record: only a run needs the plug-in itself."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field

from repro.core.frozen import Frozen
from repro.seams.loss_scaling import LossScaling
from repro.seams.plugin import Plugin
from repro.seams.training import Direction, TokenKind

Title = Annotated[str, Field(max_length=1000)]


def _finite(ranges: Any) -> Any:
    """Drop ranges without an end: JSON has no infinity, and a metric without a range accepts any target."""
    if not isinstance(ranges, Mapping):
        return ranges
    return {name: ends for name, ends in ranges.items() if all(map(math.isfinite, ends))}


class Facts(Frozen):
    """Facts of a plug-in of any seam; each is an attribute, a property or a method without arguments of its class."""

    model_config = ConfigDict(extra="ignore", allow_inf_nan=False)  # a later version may store more


class Titled(Facts):
    title: Title = ""


class WorkloadFacts(Titled):
    unit: Title = "samples"
    metrics: dict[str, Direction] = Field(default_factory=dict)
    ranges: Annotated[dict[str, tuple[float, float]], BeforeValidator(_finite)] = Field(default_factory=dict)
    synthetic: bool = False
    reads_samples: bool = True
    """True also for a record that does not say: its plan was accepted."""
    test_views: int | None = Field(None, ge=1)
    tokens_per_sample: int | None = Field(None, ge=1)
    token_losses: dict[str, TokenKind] = Field(default_factory=dict)
    reference_samples_per_second: float = Field(1.0, gt=0)
    train_samples: int = Field(0, ge=0)
    """0: unknown."""
    eval_samples: int = Field(0, ge=0)
    """0: unknown."""


class EngineFacts(Titled):
    needs_parts: bool = True
    checkpoints: bool = False
    zero_stage: int | None = Field(None, ge=0, le=3)


class CommFacts(Titled):
    own_algorithm: bool = True


class PrecisionFacts(Titled):
    autocast: Title | None = None
    weights: Title = "float32"
    master: bool = False
    loss_scaling: LossScaling | None = None
    tf32: bool = False


class PreconditionerFacts(Titled):
    active: bool = True


class LauncherFacts(Titled):
    origin: Literal["measured", "emulated", "simulated"] = "measured"


class MeasurementFacts(Titled):
    items: Title = "operations"
    origin: Literal["measured", "emulated", "simulated"] = "measured"


FACTS: dict[str, type[Facts]] = {
    "workload": WorkloadFacts, "engine": EngineFacts, "comm": CommFacts, "precision": PrecisionFacts,
    "optimizer": Facts, "launcher": LauncherFacts, "preconditioner": PreconditionerFacts,
    "measurement": MeasurementFacts,
}
"""Seam of a trial -> its facts."""


def facts_of(seam: str, plugin: Plugin) -> Facts:
    """Return the facts of a plug-in with its options.

    Raises:
        ValidationError: an attribute of its class is not of the type that the seam states.
    """
    found: dict[str, Any] = {}
    for name in FACTS[seam].model_fields:
        if hasattr(plugin, name):
            value = getattr(plugin, name)
            found[name] = value() if callable(value) else value
    return FACTS[seam].model_validate(found)
