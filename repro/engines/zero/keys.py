"""The keys that DeepSpeed reads in its configuration, so that a misspelt one is found before anything runs.

DeepSpeed ignores unknown top-level keys. The table is literal because importing DeepSpeed takes seconds; a test
compares it with the installed version.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from repro.core.errors import nearest

Keys = Mapping[str, "Keys | None"]

OFFLOAD = ("device", "nvme_path", "buffer_count", "pin_memory")
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
    "offload_param": dict.fromkeys((*OFFLOAD, "buffer_size", "max_in_cpu")),
    "offload_optimizer": dict.fromkeys((*OFFLOAD, "pipeline_read", "pipeline_write", "fast_init", "ratio",
                                        "super_offload", "cpuadam_cores_perc")),
    "zenflow": dict.fromkeys(("topk_ratio", "select_strategy", "select_interval", "update_interval", "overlap_step",
                              "offload", "auto_ratio", "full_warm_up_rounds", "pt_reserved_cores_perc",
                              "steps_per_epoch")),
    "leaf_module": dict.fromkeys(("classes", "names", "name_suffixes")),
}
OPEN: Keys = {
    "zero_optimization": ZERO,
    "activation_checkpointing": dict.fromkeys((
        "partition_activations", "number_checkpoints", "contiguous_memory_optimization",
        "synchronize_checkpoint_boundary", "profile", "cpu_checkpointing")),
    "aio": dict.fromkeys(("block_size", "queue_depth", "intra_op_parallelism", "single_submit", "overlap_events",
                          "use_gds")),
    "compile": dict.fromkeys((
        "deepcompile", "autoep_non_moe", "free_activation", "free_activation_threshold", "offload_activation",
        "offload_activation_pin_memory", "offload_opt_states", "double_buffer", "symmetric_memory", "debug_log",
        "offload_parameters", "sync_before_reduce", "sync_after_reduce", "sync_before_allgather",
        "sync_after_allgather", "keep_int_input_tensors", "keep_all_input_tensors", "passes")),
    **dict.fromkeys((
        "prescale_gradients", "gradient_predivide_factor", "seq_parallel_communication_data_type",
        "disable_allgather", "disable_python_gc", "dump_state", "memory_breakdown", "vocabulary_size", "pipeline",
        "use_data_before_expert_parallelism", "hybrid_engine", "checkpoint", "data_efficiency", "dataloader_drop_last",
        "log_level", "datastates_ckpt", "weight_quantization", "tensor_parallel", "expert_parallel", "autotuning",
    )),
}
"""Keys that a fragment may set; None: DeepSpeed checks everything below itself."""


def unknown_keys(
    fragment: Mapping[str, Any], elsewhere: Mapping[str, str]
) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield (path, "; did you mean ...") of every key that DeepSpeed would ignore or refuse.

    Args:
        elsewhere: dotted keys that exist and that the trial sets; they are not unknown.
    """
    yield from _unknown(fragment, OPEN, (), elsewhere)


def _unknown(
    tree: Mapping[str, Any], known: Keys, above: tuple[str, ...], elsewhere: Mapping[str, str]
) -> Iterator[tuple[tuple[str, ...], str]]:
    for key, value in tree.items():
        path = (*above, str(key))
        if ".".join(path) in elsewhere:
            continue
        below = known.get(str(key))
        if key not in known:
            yield path, nearest(str(key), known)
        elif below is not None and isinstance(value, Mapping):
            yield from _unknown(value, below, path, elsewhere)
