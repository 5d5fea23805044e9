"""Further differences between two cells: settings read back from the ranks, beyond the factors that were varied."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from repro.compare.cells import by_cell, factors_of
from repro.compare.figures import Difference
from repro.core import pattern
from repro.record.derive.effective import UNKNOWN
from repro.record.result.results import Result
from repro.suite.kinds.program import ProgramConfig, placeholders
from repro.suite.planning.plan import Plan

BUCKETED = ("engine.bucket_mib", "engine.wrap", "engine.send", "engine.sufficient_factors")
FOLLOWS: dict[str, tuple[str, ...]] = {
    "comm": ("comm", "launcher", "engine.sufficient_factors"), "comm_algorithm": ("comm",),
    "comm_collectives": ("comm", "engine.sufficient_factors"),
    "comm_dtype": ("precision", "compression", "engine.sufficient_factors"),
    "matmul_dtype": ("precision",), "weight_dtype": ("precision",),
    "gradient_dtype": ("precision",), "master_dtype": ("precision",), "tf32": ("precision",),
    "loss_scale": ("precision",), "autocast": ("precision",), "optimizer": ("optimizer.kind",),
    "compression": ("compression", "compression_rank"), "overlap": ("overlap", "engine.send"),
    "threads": ("processes",),
    "OMP_NUM_THREADS": ("processes",), "buckets": BUCKETED,
    "bucket_bytes": BUCKETED,
    "broadcast_buffers": ("engine.broadcast_buffers",), "static_graph": ("engine.static_graph",),
    "find_unused": ("engine.find_unused",), "send": ("engine.send",),
    "factor_layers": ("engine.sufficient_factors",),
    "zero_stage": ("engine.kind", "engine.stage", "engine.wrap", "engine.reshard_after_forward"),
    "reshard_after_forward": ("engine.kind", "engine.wrap", "engine.reshard_after_forward"),
    "GLOO_SOCKET_IFNAME": ("launcher",), "NCCL_SOCKET_IFNAME": ("launcher",), "NCCL_ALGO": ("comm", "nccl_algorithm"),
    **dict.fromkeys(("preconditioner", "preconditioned_layers", "preconditioned_parameters", "preconditioner_inverse",
                     "preconditioner_placement", "preconditioner_periods"), ("preconditioner",)),
    # The options of another rule are others; of one rule they are compared, but for those that were varied.
    "optimizer_options": ("optimizer.kind", *(f"optimizer.{name}" for name in (
        "adapt", "adamw_lr", "adjust", "alpha", "basis_every", "betas", "decay", "eps", "hidden", "largest_dimension",
        "matrix_eps", "momentum", "nesterov", "newton_schulz_steps", "rho", "roots_every", "trust", "weight_decay"))),
    **dict.fromkeys(("server_mode", "server_group", "server_shards", "server_processes"), (
        "engine.kind", "engine.mode", "engine.group", "engine.staleness", "engine.shards", "engine.servers")),
    "learning_rate": ("optimizer.lr",), "eval_batch": ("eval_batch",),
    "selection": ("workload.dedup", *(f"workload.dedup.{name}" for name in ("hash", "size", "threshold", "leave_out")),
                  "workload.planted"),
}
"""Setting -> the fields of a trial that it follows from: with one of them varied, the difference is a declared one."""
ENVIRONMENT = "engine.environment"
"""Variables that a suite sets for a program."""
OF_MEASUREMENTS = ("measurement", "processes")
"""The same for what only a measurement's own plug-in reads back, such as the shapes of its tensors."""
NOT_SETTINGS = ("deepspeed_config", "wrapper", "gated", "gated_against", "gated_limits")
"""In one engine's own words, where what differs in effect has an entry of its own; and what a gate compared."""
NAMES = {"bucket_bytes": "bucket size", "comm_dtype": "type sent"}
SEVERAL = " or "


class ReadBack:
    """The settings of every cell, as its trials read them back."""

    def __init__(self, plan: Plan, results: Iterable[Result]) -> None:
        self._cells = {cell.cell_id: cell for cell in plan.cells}
        self._written = {*_written(plan.suite.matrix), *(key for item in plan.suite.settings for key in item.values)}
        self._measures = plan.measures
        self._trials = by_cell(results)
        self._known: dict[str, dict[str, str]] = {}
        self._flat: dict[str, dict[str, object]] = {}

    def differences(self, candidate: str, baseline: str) -> tuple[Difference, ...]:
        """Return the settings that both cells read back, that differ, and that no varied field explains."""
        ours, theirs = self._settings(candidate), self._settings(baseline)
        unlike = [name for name, value in ours.items() if theirs.get(name, value) != value]
        if not unlike:
            return ()
        one, other = self._fields(candidate), self._fields(baseline)
        # The fields that the suite gave other values; options that differ by default are not among them.
        varied = [f"{name}." for name in one.keys() | other.keys() if one.get(name) != other.get(name)
                  and ("." not in name or name.endswith(".kind") or name in self._written)]
        return tuple(Difference(name=NAMES.get(name, name.replace("_", " ")), candidate=_shown(name, ours[name]),
                                baseline=_shown(name, theirs[name]))
                     for name in unlike if UNKNOWN not in (ours[name], theirs[name])
                     and not any(part.startswith(f"{field}.") for field in self._followed(name, candidate)
                                 for part in varied))

    def _followed(self, name: str, cell_id: str) -> tuple[str, ...]:
        """Return the fields of a trial that a setting follows from."""
        own = self._measures and any(name in result.effective for result in self._trials[cell_id])
        choices = self._cells[cell_id].choices
        text = choices.engine.environment.get(name) if isinstance(choices, ProgramConfig) else None
        stated = () if text is None else (
            f"{ENVIRONMENT}.{name}", *(f"parameters.{each}" for each in placeholders(text)))
        return (*FOLLOWS.get(name, OF_MEASUREMENTS if own else ()), *stated)

    def _settings(self, cell_id: str) -> Mapping[str, str]:
        if cell_id not in self._known:
            found: dict[str, list[str]] = {
                name: [value] for name, value in self._cells[cell_id].choices.settings.items()}
            for result in self._trials[cell_id]:
                for name, value in {**result.effective, **result.settings}.items():
                    if name not in NOT_SETTINGS:
                        found.setdefault(name, []).append(value)
            self._known[cell_id] = {name: SEVERAL.join(sorted(set(values))) for name, values in found.items()}
        return self._known[cell_id]

    def _fields(self, cell_id: str) -> Mapping[str, object]:
        if cell_id not in self._flat:
            self._flat[cell_id] = pattern.flat(factors_of(self._cells[cell_id]))
        return self._flat[cell_id]


def _written(matrix: Mapping[str, Sequence[object]]) -> Iterable[str]:
    """Yield the fields that the levels of the factors name."""
    for factor, levels in matrix.items():
        yield factor
        for level in levels:
            if isinstance(level, Mapping):
                yield from (f"{factor}.{name}" for name in pattern.flat(level))


def _shown(name: str, value: str) -> str:
    """Return a value for readers: bytes with their unit, of several buckets the largest."""
    parts = [part for text in value.split(SEVERAL) for part in text.split(",")]
    if not name.endswith("_bytes") or not all(part.isdecimal() for part in parts):
        return value if len(value) <= 60 else f"{value[:57]}..."
    most = max(map(int, parts))
    size = next((f"{most / unit:.3g} {word}" for unit, word in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")) if most >= unit),
                f"{most} B")
    return size if len(parts) == 1 else f"up to {size}"
