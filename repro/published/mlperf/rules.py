"""The rules of MLPerf that turn logs into scores: number of runs, drop rule, targets, unit of epoch numbers.

Sources: `mlperf_logging.benchmark_meta` (runs), `mlperf_logging.result_summarizer` (score),
`mlperf_logging.compliance_checker` (targets, closed division), `mlperf_logging.rcp_checker` (units), package version
4.1.68. Tests compare runs, targets from round v0.7 on and the averaging with the installed package. Not
compared: ResNet's targets of rounds v0.5 and v0.6 (from the written rules) and the units (from the reference points).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from repro.published.record import PublishedReference, Score
from repro.published.untrusted.files import DamagedInput, number, parse, plain
from repro.stats.sample import positive

Version = tuple[int, int]
EpochUnit = Literal["epochs", "samples", "tokens", "iterations", "steps"]
RUNS: Mapping[str, int] = {
    "bert": 10, "dlrm": 5, "dlrm_dcnv2": 10, "gnmt": 10, "gpt3": 3, "maskrcnn": 5, "minigo": 10, "resnet": 5, "ssd": 5,
    "retinanet": 5, "stable_diffusion": 10, "transformer": 10, "ncf": 10, "rnnt": 10, "unet3d": 40, "gnn": 10,
    "rgat": 10, "llama2_70b_lora": 10, "llama31_405b": 3, "llama31_8b": 10, "flux1": 10, "gpt_oss_20b": 10,
    "deepseekv3_671b": 3, "qwen35_397b_grpo": 3, "dlrmv4": 10, "deepcam": 5, "cosmoflow": 10, "oc20": 5,
    "openfold": 10,
}
"""Required runs of a submission."""
ALIASES = {"mask": "maskrcnn"}
IMAGENET_TRAIN = 1_281_167


@dataclass(frozen=True, slots=True)
class Quality:
    """One quality that a run must reach; the far bound rejects percentages and invalid values."""

    direction: Literal["higher", "lower"]
    target: float
    bound: float
    metric: str = ""
    """Name of the quality; empty if it is the only one."""

    def reached(self, value: float | None) -> bool:
        if value is None:
            return False
        low, high = sorted((self.target, self.bound))
        return low <= value <= high


def _up(target: float, metric: str = "") -> Quality:
    return Quality("higher", target, 1.0, metric)


def _down(target: float, metric: str = "", bound: float = 0.0) -> Quality:
    return Quality("lower", target, bound, metric)


TARGETS: Mapping[str, Sequence[tuple[Version, tuple[Quality, ...]]]] = {
    "bert": [((1, 0), (_up(0.72),))],
    "dlrm": [((0, 7), (_up(0.8025),))],
    "dlrm_dcnv2": [((3, 0), (_up(0.80275),))],
    "gnmt": [((0, 7), (_up(0.24),))],
    "transformer": [((0, 7), (_up(0.25),))],
    "maskrcnn": [((0, 7), (_up(0.377, "BBOX"), _up(0.339, "SEGM")))],
    "minigo": [((0, 7), (_up(0.5),))],
    "resnet": [((0, 5), (_up(0.749),)), ((0, 6), (_up(0.759),))],
    "ssd": [((0, 7), (_up(0.23),)), ((2, 0), (_up(0.34),))],
    "retinanet": [((5, 0), (_up(0.34),))],
    "rnnt": [((1, 0), (_down(0.058),))],
    "unet3d": [((1, 0), (_up(0.908),))],
    "gpt3": [((3, 0), (_down(2.69, bound=2.6),))],
    "stable_diffusion": [((3, 1), (_down(90.0, "FID"), _up(0.15, "CLIP")))],
    "gnn": [((4, 0), (_up(0.72),))],
    "rgat": [((5, 0), (_up(0.72),))],
    "llama2_70b_lora": [((4, 0), (_down(0.925),))],
    "llama31_405b": [((5, 0), (_down(5.6),))],
    "llama31_8b": [((5, 1), (_down(3.3),))],
    "flux1": [((5, 1), (_down(0.586),))],
    "gpt_oss_20b": [((6, 0), (_down(3.34),))],
    "deepseekv3_671b": [((6, 0), (_down(3.6),))],
    "cosmoflow": [((1, 0), (_down(0.124),))],
    "deepcam": [((1, 0), (_up(0.82),))],
    "oc20": [((1, 0), (_down(0.036),))],
    "openfold": [((3, 0), (_up(0.8),))],
}
"""Benchmark -> (first round, qualities) in the order of rounds, closed division."""


def targets(benchmark: str, version: Version | None, division: str | None) -> tuple[Quality, ...]:
    """Return the qualities that a run must reach; empty if unknown here (open division, rounds not listed)."""
    if version is None or division != "closed":
        return ()
    found: tuple[Quality, ...] = ()
    for since, qualities in TARGETS.get(benchmark, ()):
        if version >= since:
            found = qualities
    return found


def epoch_unit(benchmark: str, version: Version | None) -> EpochUnit:
    """Return the unit of `epoch_num`: some benchmarks write samples, tokens or iterations.

    Image generation of round v3.1 counts by `step_num` instead (`rcp_checker`).
    """
    if benchmark == "stable_diffusion" and version == (3, 1):
        return "steps"
    if benchmark in ("bert", "llama31_405b", "llama31_8b", "stable_diffusion", "flux1"):
        return "samples"
    if benchmark == "unet3d" and (version or (0, 0)) >= (3, 1):
        return "samples"
    return {"gpt3": "tokens", "minigo": "iterations"}.get(benchmark, "epochs")  # type: ignore[return-value]


def score(benchmark: str, times: Sequence[float | None], scaling_factor: float = 1.0) -> Score:
    """Compute `olympic_mean` by the drop rule of a benchmark, multiplied by the factor of the review.

    Fewer runs than required still give minutes, as in the summarizer of MLCommons, but the score is not valid.

    Args:
        times: minutes from run_start to run_stop of every run; None: no time to target.
    """
    each = 4 if benchmark == "unet3d" else 1  # runs dropped as fastest, and also as slowest
    required, failed = RUNS.get(benchmark), sum(time is None for time in times)
    minutes, dropped = olympic_mean(times, each, scaling_factor)
    if failed > each:
        reason = f"{failed} of {len(times)} runs have no time to target; at most {each} allowed"
    elif minutes is None:
        reason = f"no run is left of {len(times)} without the fastest and the slowest"
    elif required is None:
        reason = f"the required number of runs of {benchmark} is unknown here"
    elif len(times) < required:
        reason = f"{len(times)} runs of {required} required"
    else:
        reason = ""
    return Score(
        minutes=minutes, valid=not reason, reason=reason, runs=len(times), required=required, failed=failed,
        dropped=tuple(time for time in dropped if time is not None), scaling_factor=scaling_factor,
    )


MAX_POINTS, MAX_RUNS = 500, 1000


def read_references(content: bytes, benchmark: str, round_name: str, version: Version | None, source: str
                    ) -> list[PublishedReference]:
    """Read the points of one file, smallest batch first.

    Raises:
        DamagedInput: not of that form, or its unit is neither epochs nor samples.
    """
    data = parse(content)
    if not isinstance(data, dict) or not data or len(data) > MAX_POINTS:
        raise DamagedInput("no reference convergence points: expected a JSON object of batch sizes")
    digest = hashlib.sha256(content).hexdigest()
    found = [PublishedReference(
        benchmark=benchmark, round=round_name, name=plain(key), source=source, sha256=digest,
        **_point(key, point, benchmark, version)) for key, point in data.items()]
    return sorted(found, key=lambda item: (item.global_batch_size, item.name))


def _point(key: str, point: Any, benchmark: str, version: Version | None) -> dict[str, Any]:
    fields = {name.lower(): value for name, value in point.items()} if isinstance(point, dict) else {}
    batch = number(fields.get("bs"))
    unit: Literal["epochs", "samples"] = "samples" if "samples to converge" in fields else "epochs"
    costs, each = fields.get(f"{unit} to converge"), 1.0
    if unit == "epochs" and (counted := epoch_unit(benchmark, version)) != "epochs":
        if counted not in ("samples", "steps"):
            raise DamagedInput(f"{plain(key, 40)!r} counts {counted}, which is not supported")
        unit, each = "samples", (batch or 0.0) if counted == "steps" else 1.0
    values = [number(value) for value in costs] if isinstance(costs, list) and len(costs) <= MAX_RUNS else []
    known = [value for value in values if value is not None and value > 0]
    if batch is None or not batch.is_integer() or not 0 < batch < 1 << 62 or not known or len(known) < len(values):
        raise DamagedInput(f"{plain(key, 40)!r} has no batch size (BS) or no list of costs")
    return {"global_batch_size": int(batch), "unit": unit, "costs": tuple(value * each for value in known)}


def olympic_mean(
    minutes: Sequence[float | None], drop: int = 1, scaling: float = 1.0
) -> tuple[float | None, tuple[float | None, ...]]:
    """Return the mean after dropping the `drop` fastest and the `drop` slowest runs, and the dropped ones, fastest
    first (MLPerf Training rules, section "Benchmark results"; `mlperf_logging.result_summarizer`,
    `_compute_olympic_average`). None: no run is left, or more missed than can be dropped.

    A run that missed counts as one of the dropped slowest.

    Args:
        minutes: one per run, None if it missed the target.
        drop: 1 for every benchmark but unet3d, which drops 4.
        scaling: factor of the reference convergence check, for submissions that need fewer epochs than the reference.
            The summarizer reads it from `scaling.json` next to the logs, which its first pass writes: the first pass
            over a folder gives the score without it, every later one with it.

    Raises:
        ValueError: a time or `scaling` is not positive and finite.
    """
    positive([scaling], "the scaling")
    reached = sorted(positive([value for value in minutes if value is not None], "minutes").tolist())
    missed = len(minutes) - len(reached)
    end = len(reached) - max(0, drop - missed)
    kept = reached[drop:end]
    if missed > drop or not kept:
        return None, ()
    return scaling * sum(kept) / len(kept), (*reached[:drop], *reached[end:], *[None] * missed)
