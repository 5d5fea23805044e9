"""Requested against effective (method.md 3.6): what a trial must read back to be the trial that was requested."""

from __future__ import annotations

from collections.abc import Mapping

from repro.record.result.reasons import Unlike
from repro.seams.training import BACKEND, Comm, Engine, Precision, Preconditioner, Workload
from repro.suite.kinds import training_options as model_options
from repro.suite.kinds.training import TrainingConfig

UNKNOWN = "unknown"
"""Value that an engine reports for an unknown setting: shown, but not judged."""


def requested(choices: TrainingConfig) -> dict[str, str]:
    """Return what was requested, in the names and words in which engines read back; only what can be judged."""
    precision = choices.precision.get(Precision)
    wanted = {
        "matmul_dtype": precision.autocast or precision.weights,
        "weight_dtype": precision.weights,
        "gradient_dtype": precision.weights,
        "master_dtype": "float32",
        "comm_dtype": _sent(choices, precision),
        "tf32": "on" if precision.tf32 else "off",
        "compression": choices.compression,
        "preconditioner": choices.preconditioner.get(Preconditioner).title,
        **model_options.requested(choices.model_options),
    }
    wanted |= {"input_workers": str(choices.input.workers), "input_ahead": str(choices.input.depth),
               "input_order": choices.input.order}
    if chosen := choices.workload.get(Workload).selection_sha256:
        wanted["selection"] = chosen
    if choices.compression == "powersgd":
        wanted["compression"] = f"powersgd rank {choices.compression_rank}"
    if choices.overlap is not None:
        wanted["overlap"] = "on" if choices.overlap else "off"
    if choices.eval_batch is not None:
        wanted["eval_batch"] = str(choices.eval_batch_size)
    stage = choices.engine.get(Engine).zero_stage()
    return wanted if stage is None else wanted | {"zero_stage": str(stage)}


def _sent(choices: TrainingConfig, precision: Precision) -> str:
    """PowerSGD's factors, and the gradients of its first steps, are as wide as the gradients."""
    return {"fp16": "float16", "bf16": "bfloat16"}.get(choices.compression, precision.weights)


def mismatches(choices: TrainingConfig, effective: Mapping[str, str], settings: Mapping[str, str]) -> list[Unlike]:
    """Return everything that ran otherwise than requested; empty: the trial is what it is called.

    What an engine does not read back, or reports as unknown, is not judged.

    Args:
        effective: what the engine read back.
        settings: the environment as the ranks saw it.
    """
    if not choices.engine.get(Engine).needs_parts:
        return []
    wanted = requested(choices)
    if choices.device == "cpu":
        wanted["threads"] = settings.get("OMP_NUM_THREADS", "1")
    found = [Unlike(name=name, wanted=value, ran=effective[name]) for name, value in wanted.items()
             if name in effective and effective[name] not in (value, UNKNOWN)]
    return [*found, *_scaling(choices, effective), *_algorithm(choices, effective)]


def _scaling(choices: TrainingConfig, effective: Mapping[str, str]) -> list[Unlike]:
    wanted, scale = choices.precision.get(Precision).loss_scaling is not None, effective.get("loss_scale", UNKNOWN)
    if scale == UNKNOWN or wanted == (scale != "none"):
        return []
    return [Unlike(name="loss scale", wanted=wanted, ran=scale)]


def _algorithm(choices: TrainingConfig, effective: Mapping[str, str]) -> list[Unlike]:
    """Compare the algorithm that ran, if any ran, with the one requested."""
    shown, ran = effective.get("comm", UNKNOWN), effective.get("comm_algorithm", BACKEND)
    if shown == UNKNOWN or choices.processes == 1:
        return []
    comm = choices.comm.get(Comm)
    if not comm.own_algorithm:
        # A third party's process group may have any name; an algorithm of ours is not the backend's own.
        return [] if ran == BACKEND else [Unlike(name="comm", wanted=BACKEND, ran=ran)]
    if ran == (comm.title or choices.comm.kind) and effective.get("comm_collectives"):
        return []
    return [Unlike(name="comm", wanted=choices.comm.label, ran=ran)]
