"""DeepSpeed's configuration of one trial: the trial's own settings over the user's fragment."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from repro.seams.training import Job, LossScaling

_PRECISION = "the trial's `precision`"
_CLOCK = "the harness: only the step's own work is timed, and DeepSpeed prints nothing"

OWNED: dict[str, str] = {
    "train_batch_size": "the trial's `batch.global`",
    "train_micro_batch_size_per_gpu": "the trial's `batch.micro`",
    "gradient_accumulation_steps": "the trial's `batch.accumulation`",
    "managed_gradient_accumulation": "the trial's `batch.accumulation`",
    "data_parallel_size": "the trial's `processes`",
    "sequence_parallel_size": "the harness: every rank trains on separate samples",
    "gradient_clipping": "the trial's `gradient_clip`",
    "gradient_allreduce_op": "the harness: gradients are means over ranks in every engine",
    "optimizer": "the trial's `optimizer`",
    "zero_allow_untested_optimizer": "the trial's `optimizer`",
    "zero_force_ds_cpu_optimizer": "the trial's `optimizer`",
    "scheduler": "the trial's `schedule`",
    "bf16": _PRECISION,
    "bfloat16": _PRECISION,
    "fp16": _PRECISION,
    "amp": _PRECISION,
    "torch_autocast": _PRECISION,
    "data_types": _PRECISION,
    "communication_data_type": "the trial's `precision` and `compression`",
    "zero_optimization.stage": "the engine's `stage`",
    "zero_optimization.overlap_comm": "the trial's `overlap`",
    "steps_per_print": _CLOCK,
    "timers": _CLOCK,
    "wall_clock_breakdown": _CLOCK,
    "flops_profiler": _CLOCK,
    "tensorboard": _CLOCK,
    "wandb": _CLOCK,
    "csv_monitor": _CLOCK,
    "comet": _CLOCK,
    "comms_logger": _CLOCK,
}
"""Dotted keys of DeepSpeed's JSON that the user may not set -> what sets them."""


def owned_keys(fragment: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the dotted keys of `fragment` that it may not set, each with what sets it."""
    return [(key, OWNED[key]) for key in _dotted(fragment) if key in OWNED]


def _dotted(tree: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for key, value in tree.items():
        yield f"{prefix}{key}"
        if isinstance(value, Mapping):
            yield from _dotted(value, f"{prefix}{key}.")


def deepspeed_config(
    fragment: Mapping[str, Any], stage: int, job: Job, bucket_mib: float | None = None,
    offload: str = "none", plus_plus: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the configuration for `deepspeed.initialize`.

    Args:
        plus_plus: keys of ZeRO++, by `zero_plus_plus`.
    """
    trial: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": job.micro_batch,
        "gradient_accumulation_steps": job.accumulation,
        "train_batch_size": job.micro_batch * job.accumulation * job.world,
        "gradient_clipping": job.gradient_clip or 0.0,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "zero_optimization": {"stage": stage, **_reduction(job, bucket_mib), **_offload(job, offload),
                              **(plus_plus or {})},
        # 2^62: at every multiple DeepSpeed reads the rate and moments to report them.
        "steps_per_print": 1 << 62,
        # DeepSpeed's throughput timer synchronises the device twice a micro-batch unless disabled.
        "timers": {"throughput": {"enabled": False, "synchronized": False}},
        "wall_clock_breakdown": False,
        **_precision(job),
    }
    return merge(fragment, trial)


def zero_plus_plus(hpz: int, quantized: str) -> dict[str, Any]:
    """Return the keys of ZeRO++ (Wang et al. 2023, arXiv:2306.10209) that differ from DeepSpeed's defaults."""
    found: dict[str, Any] = {"zero_hpz_partition_size": hpz} if hpz > 1 else {}
    return found | {f"zero_quantized_{part}": True for part in quantized.split("+") if part != "none"}


def _precision(job: Job) -> dict[str, Any]:
    precision = job.precision
    if precision.autocast:
        return {
            "communication_data_type": "fp32",
            "torch_autocast": {
                "enabled": True,
                "dtype": precision.autocast,
                # DeepSpeed's default sends gradients of Linear and Conv in the low type; autocast requires float32.
                "lower_precision_safe_modules": [],
            },
        }
    if precision.weights == "bfloat16":
        return {
            "communication_data_type": "bf16",
            "data_types": {"grad_accum_dtype": "bf16"},
            # No engine scales a bfloat16 loss, so none skips a step: divergence stays visible.
            "bf16": {"enabled": True, "check_grad_overflow": False},
        }
    if precision.weights == "float16":
        return {
            "communication_data_type": "fp16",
            "data_types": {"grad_accum_dtype": "fp16"},
            "fp16": {"enabled": True, "auto_cast": False, **_loss_scaling(precision.loss_scaling)},
        }
    # Compression: gradients are rounded for sending and added in the low type, as in torch's hooks.
    return {"communication_data_type": {"none": "fp32"}.get(job.compression, job.compression)}


def _loss_scaling(scaling: LossScaling | None) -> dict[str, Any]:
    if scaling is None:
        return {"loss_scale": 1.0}  # DeepSpeed scales fp16 dynamically unless the scale is fixed
    # loss_scale 0 means dynamic; hysteresis 1 lowers the scale at the first overflow, as torch does.
    return {"loss_scale": 0, "initial_scale_power": scaling.initial_scale_power,
            "loss_scale_window": scaling.growth_interval, "hysteresis": 1}


def _reduction(job: Job, bucket_mib: float | None) -> dict[str, Any]:
    """Return the settings of fusion and overlap that the trial requests."""
    found: dict[str, Any] = {}
    if bucket_mib is not None:
        found["reduce_bucket_size"] = max(1, int(bucket_mib * (1 << 20)) // 4)
    if job.overlap is not None:
        found["overlap_comm"] = job.overlap
    return found


def _offload(job: Job, offload: str) -> dict[str, Any]:
    """Return where state lies; pinned memory is copied to a GPU while it computes."""
    place = {"device": "cpu", "pin_memory": job.device.startswith("cuda")}
    found = {"none": (), "optimizer": ("offload_optimizer",),
             "optimizer+weights": ("offload_optimizer", "offload_param")}[offload]
    return dict.fromkeys(found, place)


def merge(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Return both trees in one; if both have a leaf, `over` wins."""
    merged = dict(under)
    for key, value in over.items():
        below = merged.get(key)
        nested = isinstance(below, Mapping) and isinstance(value, Mapping)
        merged[key] = merge(below, value) if nested else value  # type: ignore[arg-type]
    return merged
