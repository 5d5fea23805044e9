"""Names of cells and trials: sha256 of their one canonical JSON text."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

METHOD = "2.0"
"""Version of the measuring method (docs/method.md); records compare only within one major.minor."""
FIRST_METHOD = "1.0"
"""Its digest holds the master seed, and its order follows from the master seed: all runs of a suite share both."""
METHODS = (FIRST_METHOD, METHOD)
"""Methods whose records this version can verify, each by its own rules."""
ADDED_LATER: dict[str, Any] = {"compression": "none", "compression_rank": 1, "overlap": None, "bucket_mib": None,
                               "nccl_algorithm": None, "stall_seconds": None, "broadcast_buffers": True,
                               "static_graph": False, "find_unused": False, "send": "bucketed",
                               "sufficient_factors": "none", "compile": False,
                               "activation_checkpointing": False, "channels_last": False, "cudnn_benchmark": False,
                               "offload": "none", "eval_batch": None, "gate": None, "preconditioner": {"kind": "none"},
                               "hpz": 1, "quantized": "none", "servers": "beside",
                               "input": {"workers": 0, "ahead": None, "order": "planned"}}
ADDED_TO_WORKLOADS: dict[str, dict[str, Any]] = {
    **{name: {"label_smoothing": 0.0, "planted": 0.0, "dedup": None, "selected": None, "sleep_ms": 0.0}
       for name in ("digits", "digits-mlp")},
    "mnist1d": {"label_smoothing": 0.0}, "cifar10": {"dedup": None, "selected": None}}
"""Choices that are newer than the first records, with the value that those records imply. They are part of the JSON
only with another value, so that a cell keeps its name."""


def rules_of(method: str) -> str:
    """Return major.minor of a method: what the rules depend on, 1.0 of 1.0.7."""
    return ".".join(method.split(".")[:2])


def canonical(model: BaseModel, exclude: set[str] | None = None) -> str:
    """Return the one JSON text of a model: keys sorted, no spaces."""
    data = model.model_dump(mode="json", by_alias=True, exclude=exclude)
    leave_out_added(data.get("choices", data))
    if data.get("side") == "":  # of a trial: only the second twin of a calibration has one
        del data["side"]
    return json.dumps(data, sort_keys=True, separators=(",", ":"))


def leave_out_added(choices: dict[str, Any]) -> None:
    """Remove choices that are newer than the first records and have the value that those imply."""
    for place in (choices, choices.get("engine"), choices.get("comm")):
        if isinstance(place, dict):
            _leave_out(place, ADDED_LATER)
    workload = choices.get("workload")
    if isinstance(workload, dict):
        _leave_out(workload, ADDED_TO_WORKLOADS.get(str(workload.get("kind")), {}))


def _leave_out(place: dict[str, Any], added: Mapping[str, Any]) -> None:
    for key in [key for key, value in added.items() if key in place and place[key] == value]:
        del place[key]


def digest(model: BaseModel, exclude: set[str] | None = None) -> str:
    """Return the sha256 of the canonical JSON, hex."""
    return hashlib.sha256(canonical(model, exclude).encode()).hexdigest()
