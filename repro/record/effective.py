"""Requested against effective (method.md 3.6): what a trial must have read back to be the trial that was asked for."""

from __future__ import annotations

from collections.abc import Mapping

from repro.seams.training import Engine, Precision
from repro.suite.model import TrialConfig

UNKNOWN = "unknown"
"""What an engine says of what it could not see: shown, and not judged."""


def requested(choices: TrialConfig) -> dict[str, str]:
    """What was asked for, under the names and in the words in which engines read back; only what can be judged."""
    precision = choices.precision.get(Precision)
    asked = {
        "matmul_dtype": precision.autocast or precision.weights,
        "weight_dtype": precision.weights,
        "gradient_dtype": precision.weights,
        "master_dtype": "float32",
        "comm_dtype": _sent(choices, precision),
        "tf32": "on" if precision.tf32 else "off",
        "compression": choices.compression,
    }
    if choices.compression == "powersgd":
        asked["compression"] = f"powersgd rank {choices.compression_rank}"
    if choices.overlap is not None:
        asked["overlap"] = "on" if choices.overlap else "off"
    stage = getattr(choices.engine.plugin, "stage", None)
    return asked if stage is None else asked | {"zero_stage": str(stage)}


def _sent(choices: TrialConfig, precision: Precision) -> str:
    """PowerSGD's factors, and the gradients of its first steps, are as wide as the gradients."""
    return {"fp16": "float16", "bf16": "bfloat16"}.get(choices.compression, precision.weights)


def mismatches(choices: TrialConfig, effective: Mapping[str, str], settings: Mapping[str, str]) -> list[str]:
    """Everything that ran otherwise than asked, a phrase each; empty: the trial is what it is called.

    What an engine does not read back, or calls unknown, is not judged.

    Args:
        effective: what the engine read back.
        settings: the environment as the ranks saw it.
    """
    if not choices.engine.get(Engine).needs_parts:
        return []
    asked = requested(choices)
    if choices.device == "cpu":
        asked["threads"] = settings.get("OMP_NUM_THREADS", "1")
    found = [
        f"{name} {wanted} was asked for, {effective[name]} ran" for name, wanted in asked.items()
        if name in effective and effective[name] not in (wanted, UNKNOWN)
    ]
    return [*found, *_scaling(choices, effective), *_algorithm(choices, effective)]


def _scaling(choices: TrialConfig, effective: Mapping[str, str]) -> list[str]:
    wanted, scale = choices.precision.get(Precision).loss_scaling, effective.get("loss_scale", UNKNOWN)
    if scale == UNKNOWN or wanted == (scale != "none"):
        return []
    return [f"{'a' if wanted else 'no'} loss scale was asked for, {scale} ran"]


def _algorithm(choices: TrialConfig, effective: Mapping[str, str]) -> list[str]:
    """An algorithm is read back as `title: collectives it did; ...`, the backend by its name and version."""
    ran = effective.get("comm", UNKNOWN)
    if ran == UNKNOWN or choices.processes == 1:
        return []
    if choices.comm.kind == "backend":
        # A third party's process group may have any name; an algorithm of ours is not the backend's own.
        return [f"the backend's own collectives were asked for, {ran} ran"] if ":" in ran else []
    title = str(getattr(choices.comm.plugin, "title", choices.comm.kind))
    own, _, _ = ran.partition(";")
    if own.startswith(f"{title}: ") and not own.endswith(": nothing yet"):
        return []
    return [f"comm {choices.comm.label} was asked for, {ran} ran"]
