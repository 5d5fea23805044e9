"""DeepSpeed's configuration: that of one trial, its own settings over the user's fragment, and the keys of a fragment.

The table of keys is an allow-list. DeepSpeed also has keys that name a file, a folder, a host or a program. By them a
suite, or the record of a stranger, could write any file of the user. Those keys are refused. The tables are literal
because importing DeepSpeed takes seconds; a test compares them with the installed version.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from repro.core.devices import on_gpu
from repro.core.errors import nearest
from repro.seams.training import Job

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
    "zero_optimization.reduce_bucket_size": "the engine's `bucket_mib`",
    "zero_optimization.zero_hpz_partition_size": "the engine's `hpz`",
    "zero_optimization.zero_quantized_weights": "the engine's `quantized`",
    "zero_optimization.zero_quantized_gradients": "the engine's `quantized`",
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


def deepspeed_config(
    fragment: Mapping[str, Any], stage: int, job: Job, bucket_mib: float | None = None,
    offload: str = "none", hpz: int = 1, quantized: str = "none",
) -> dict[str, Any]:
    """Return the configuration for `deepspeed.initialize`."""
    trial: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": job.micro_batch,
        "gradient_accumulation_steps": job.accumulation,
        "train_batch_size": job.micro_batch * job.accumulation * job.world,
        "gradient_clipping": job.gradient_clip or 0.0,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "zero_optimization": _zero_optimization(stage, job, bucket_mib, offload, hpz, quantized),
        # 2^62: at every multiple DeepSpeed reads the rate and moments to report them.
        "steps_per_print": 1 << 62,
        # DeepSpeed's throughput timer synchronises the device twice a micro-batch unless disabled.
        "timers": {"throughput": {"enabled": False, "synchronized": False}},
        "wall_clock_breakdown": False,
        **_precision(job),
    }
    return merge(fragment, trial)


def _zero_optimization(
    stage: int, job: Job, bucket_mib: float | None, offload: str, hpz: int, quantized: str
) -> dict[str, Any]:
    found: dict[str, Any] = {"stage": stage}
    if bucket_mib is not None:
        # DeepSpeed counts elements, DDP bytes of the gradients' type.
        itemsize = 4 if job.precision.weights == "float32" else 2
        found["reduce_bucket_size"] = max(1, int(bucket_mib * (1 << 20)) // itemsize)
    if job.overlap is not None:
        found["overlap_comm"] = job.overlap
    on_host = {"none": (), "optimizer": ("offload_optimizer",),
               "optimizer+weights": ("offload_optimizer", "offload_param")}[offload]
    # Pinned memory is copied to a GPU while it computes.
    found |= {key: {"device": "cpu", "pin_memory": on_gpu(job.device)} for key in on_host}
    # ZeRO++ (Wang et al. 2023, arXiv:2306.10209): what differs from DeepSpeed's defaults.
    if hpz > 1:
        found["zero_hpz_partition_size"] = hpz
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
        scaling = precision.loss_scaling
        # DeepSpeed scales dynamically unless the scale is fixed; 0 means dynamic. Hysteresis 1 lowers the scale at the
        # first overflow, as torch does.
        scale = {"loss_scale": 0, "initial_scale_power": scaling.initial_scale_power,
                 "loss_scale_window": scaling.growth_interval, "hysteresis": 1} if scaling else {"loss_scale": 1.0}
        return {
            "communication_data_type": "fp16",
            "data_types": {"grad_accum_dtype": "fp16"},
            "fp16": {"enabled": True, "auto_cast": False, **scale},
        }
    # Compression: gradients are rounded for sending and added in the low type, as in torch's hooks.
    return {"communication_data_type": {"none": "fp32"}.get(job.compression, job.compression)}


def merge(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Return both trees in one; if both have a leaf, `over` wins."""
    merged = dict(under)
    for key, value in over.items():
        below = merged.get(key)
        nested = isinstance(below, Mapping) and isinstance(value, Mapping)
        merged[key] = merge(below, value) if nested else value  # type: ignore[arg-type]
    return merged


NAMES = "names"
"""Names of modules or classes of the model, which DeepSpeed compares with those of the model and never imports."""
Values = tuple[str, ...] | str | None
"""None: a number, a switch or null. A tuple: also one of its words, or a list of them. NAMES: names of modules."""
Keys = Mapping[str, "Keys | Values"]

_NAME = re.compile(r"[A-Za-z_]\w*(\.\w+)*\Z")
ON_DISK = "it names a folder to write in"
ZERO: Keys = {
    **dict.fromkeys((
        "stage", "contiguous_gradients", "reduce_scatter", "reduce_bucket_size", "use_multi_rank_bucket_allreduce",
        "allgather_partitions", "allgather_bucket_size", "overlap_comm", "compute_grad_norm", "load_from_fp32_weights",
        "elastic_checkpoint", "sub_group_size", "cpu_offload_param", "cpu_offload_use_pin_memory", "cpu_offload",
        "prefetch_bucket_size", "stage3_prefetch_bucket_size", "param_persistence_threshold",
        "stage3_param_persistence_threshold", "model_persistence_threshold", "stage3_model_persistence_threshold",
        "max_live_parameters", "stage3_max_live_parameters", "max_reuse_distance", "stage3_max_reuse_distance",
        "gather_16bit_weights_on_model_save", "stage3_gather_16bit_weights_on_model_save",
        "module_granularity_threshold", "stage3_module_granularity_threshold", "use_all_reduce_for_fetch_params",
        "stage3_use_all_reduce_for_fetch_params", "allgather_sequential", "stage3_allgather_sequential",
        "stage3_gather_fp16_weights_on_model_save", "ignore_unused_parameters", "legacy_stage1",
        "round_robin_gradients", "parameter_alignment", "zero_hpz_partition_size", "zero_quantized_weights",
        "zero_quantized_nontrainable_weights", "zero_quantized_gradients", "memory_efficient_linear",
        "pipeline_loading_checkpoint", "override_module_apply", "log_trace_cache_warnings", "enable_sanity_checks",
        "save_muon_momentum_buffer_in_memory",
    )),
    "offload_param": {"device": ("none", "cpu"),
                      **dict.fromkeys(("buffer_count", "pin_memory", "buffer_size", "max_in_cpu"))},
    "offload_optimizer": {"device": ("none", "cpu"),
                          **dict.fromkeys(("buffer_count", "pin_memory", "pipeline_read", "pipeline_write",
                                           "fast_init", "ratio", "super_offload", "cpuadam_cores_perc"))},
    "zenflow": {"select_strategy": ("auto", "step", "epoch"), "select_interval": ("auto",),
                "update_interval": ("auto",),
                **dict.fromkeys(("topk_ratio", "overlap_step", "offload", "auto_ratio", "full_warm_up_rounds",
                                 "pt_reserved_cores_perc", "steps_per_epoch"))},
    "leaf_module": dict.fromkeys(("classes", "names", "name_suffixes"), NAMES),
}
OPEN: Keys = {
    "zero_optimization": ZERO,
    "activation_checkpointing": dict.fromkeys((
        "partition_activations", "number_checkpoints", "contiguous_memory_optimization",
        "synchronize_checkpoint_boundary", "profile", "cpu_checkpointing")),
    "aio": dict.fromkeys(("block_size", "queue_depth", "intra_op_parallelism", "single_submit", "overlap_events",
                          "use_gds")),
    "compile": {"passes": ("z1", "z3", "autosp", "autotp"), **dict.fromkeys((
        "deepcompile", "autoep_non_moe", "free_activation", "free_activation_threshold", "offload_activation",
        "offload_activation_pin_memory", "offload_opt_states", "double_buffer", "symmetric_memory", "debug_log",
        "offload_parameters", "sync_before_reduce", "sync_after_reduce", "sync_before_allgather",
        "sync_after_allgather", "keep_int_input_tensors", "keep_all_input_tensors"))},
    "hybrid_engine": dict.fromkeys(("enabled", "max_out_tokens", "inference_tp_size", "release_inference_cache",
                                    "pin_parameters", "tp_gather_partition_size", "enable_cuda_graph")),
    "seq_parallel_communication_data_type": ("fp32", "fp16", "bf16"),
    "log_level": ("debug", "info", "warning", "error", "critical"),
    **dict.fromkeys((
        "prescale_gradients", "gradient_predivide_factor", "disable_allgather", "disable_python_gc", "dump_state",
        "memory_breakdown", "vocabulary_size", "use_data_before_expert_parallelism", "dataloader_drop_last",
    )),
}
"""Keys that a fragment may set."""

REFUSED: Mapping[str, str] = {
    "autotuning": "it writes its results to files, and starts programs, that it names",
    "checkpoint": "the harness keeps its own checkpoints, in the run folder",
    "compression_training": "it is no part of a training comparison",
    "curriculum_learning": "the harness decides which samples are trained on",
    "data_efficiency": "it reads and writes files that it names, and the harness decides which samples are trained on",
    "datastates_ckpt": "it names files to write",
    "elasticity": "it changes the batch size and the number of processes",
    "expert_parallel": "it loads modules that it names",
    "nebula": ON_DISK,
    "pipeline": "the harness trains without pipelines",
    "sparse_attention": "it is no part of a training comparison",
    "tensor_parallel": "it loads modules that it names",
    "weight_quantization": "it is no part of a training comparison",
    "zero_optimization.offload_param.nvme_path": ON_DISK,
    "zero_optimization.offload_optimizer.nvme_path": ON_DISK,
}
"""Dotted keys that DeepSpeed has and a fragment may not set -> why."""


def misplaced_keys(
    tree: Mapping[str, Any], known: Keys = OPEN, above: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield (path, problem) of every key that a fragment may not hold, and of every value that a key does not take.

    Args:
        known: the keys that the part `tree` of the fragment may have.
        above: path of that part.
    """
    for key, value in tree.items():
        path = (*above, str(key))
        name = ".".join(path)
        if name in OWNED:
            yield path, f"key {name!r} is decided by {OWNED[name]}"
        elif name in REFUSED:
            place = f" below {'.'.join(above)}" if above else ""
            yield path, (f"key {name!r} of DeepSpeed is not allowed: {REFUSED[name]}; allowed{place}: "
                         f"{', '.join(known)}")
        elif key not in known:
            yield path, f"DeepSpeed has no key {name!r}{nearest(str(key), known)}"
        elif isinstance(below := known[key], Mapping):
            if isinstance(value, Mapping):
                yield from misplaced_keys(value, below, path)
            elif value is not None and not isinstance(value, bool):
                yield path, f"key {name!r} of DeepSpeed takes a mapping, not {_shown(value)}"
        elif wanted := _unfit(value, below):
            yield path, f"key {name!r} of DeepSpeed takes {wanted}, not {_shown(value)}"


def _unfit(value: Any, values: Values) -> str:
    """Return what a key takes if it does not take `value`, else ""."""
    if values is None:
        return "" if value is None or isinstance(value, bool | int | float) else "a number, true or false"
    each = value if isinstance(value, list) else [value]
    if values == NAMES:
        fits = all(isinstance(item, str) and _NAME.match(item) for item in each)
        return "" if fits else "names of modules or classes of the model"
    if all(item is None or isinstance(item, bool | int | float) or item in values for item in each):
        return ""
    return f"one of {', '.join(values)}"


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
