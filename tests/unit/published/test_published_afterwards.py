"""Image generation evaluated after training has the official score; a log that breaks a rule of its round has none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from repro.published.mlperf.folder import import_folder
from repro.published.record import PublishedResult
from tests.unit.published.made_logs import log_lines, mllog, repository

START = 1_696_312_337_840
CHECKPOINTS = {3000: (1_696_313_979_373, 135.22, 0.1117), 2000: (1_696_313_432_763, 179.67, 0.0852),
               6000: (1_696_315_622_853, 72.96, 0.1837), 5000: (1_696_315_074_544, 82.006, 0.1746),
               4000: (1_696_314_526_224, 95.549, 0.1555), 1000: (1_696_312_886_476, 232.97, 0.0591)}
"""Step -> (time of the checkpoint, FID, CLIP), in the order in which a system of round v3.1 evaluated them."""


def line(key: str, value: object, time_ms: int, **metadata: object) -> str:
    return ":::MLLOG " + json.dumps({"time_ms": time_ms, "key": key, "value": value, "metadata": metadata}) + "\n"


def evaluated_afterwards(*, best: float = 82.006) -> str:
    """The form of round v3.1: every checkpoint seven hours later, then the passing one again at its own time."""
    lines = [line("submission_benchmark", "stable_diffusion", START), line("submission_division", "closed", START),
             line("global_batch_size", 512, START), line("init_start", None, START - 9000),
             line("init_stop", None, START), line("run_start", None, START)]
    late = START + 27_000_000
    for place, metric in enumerate(("FID", "CLIP")):
        for step, (taken, *values) in CHECKPOINTS.items():
            late += 12_345
            value = best if (step, metric) == (5000, "FID") else values[place]
            path = f"/logs/a--timestamp={taken}.0-step={step}-consumed_samples={step * 512}.0.ckpt"
            lines.append(line("eval_accuracy", value, late, step_num=step, metric=metric, path=path))
    stop = CHECKPOINTS[5000][0]
    lines += [line("eval_accuracy", 82.0058, stop, step_num=5000, metric="FID"),
              line("eval_accuracy", 0.1746, stop, step_num=5000, metric="CLIP")] if best < 90 else []
    return "".join([*lines, line("run_stop", None, stop, status="success")])


def one(tmp_path: Path, text: str, benchmark: str, round_name: str) -> PublishedResult:
    folder = repository(tmp_path, {"result_0.txt": text}, benchmark=benchmark, round_name=round_name)
    return import_folder(folder.parents[3]).results[0]


def test_the_score_is_the_time_of_the_first_checkpoint_at_which_both_qualities_hold(tmp_path: Path) -> None:
    found = one(tmp_path, evaluated_afterwards(), "stable_diffusion", "training_v3.1")
    assert found.status == "ok", found.reason
    assert found.seconds == pytest.approx(2736.704, abs=1e-9)
    assert found.samples_to_target == 5000 * 512
    assert found.bracket is not None
    assert (found.bracket.miss_samples, found.bracket.hit_samples) == (4000 * 512, 5000 * 512)
    assert (found.bracket.miss_seconds, found.bracket.hit_seconds) == pytest.approx((2188.384, 2736.704))
    seconds = [point.seconds for point in found.curve]
    assert seconds == sorted(seconds)


def test_no_checkpoint_before_the_stop_that_holds_is_no_score(tmp_path: Path) -> None:
    """Only a later checkpoint reaches both."""
    found = one(tmp_path, evaluated_afterwards(best=91.0), "stable_diffusion", "training_v3.1")
    assert (found.status, found.seconds) == ("invalid", None)


def test_checkpoints_evaluated_out_of_order_after_training_count_by_their_samples(tmp_path: Path) -> None:
    """The form of later rounds: samples_count, no time of the checkpoint."""
    lines = log_lines(benchmark="stable_diffusion", values=())
    stop = lines.pop()
    for place, (samples, fid, clip) in enumerate(((3072, 85, 0.16), (1024, 150, 0.1), (2048, 99, 0.14))):
        at = 5000 - 100 * place
        lines += [mllog("eval_accuracy", fid, at, samples_count=samples, metric="FID"),
                  mllog("eval_accuracy", clip, at + 7, samples_count=samples, metric="CLIP")]
    found = one(tmp_path, "".join([*lines, stop]), "stable_diffusion", "training_v4.1")
    assert (found.status, found.seconds, found.samples_to_target) == ("ok", 600.0, 3072)
    assert found.bracket is None


COMPLETE = [mllog("cache_clear", True, -30), mllog("eval_samples", 1000, -9),
            mllog("gradient_accumulation_steps", 1, -9), mllog("block_start", None, 1, samples_count=0),
            mllog("block_stop", None, 500, samples_count=9), mllog("eval_start", None, 501, samples_count=9),
            mllog("eval_stop", None, 502, samples_count=9)]


@pytest.mark.parametrize(("left_out", "more", "reason"), [
    ("", "", ""),
    ("eval_samples", "", "it has no eval_samples"),
    ("cache_clear", "", "it has no cache_clear"),
    ("block_stop", "", "it has no block_stop or epoch_stop"),
    ("", mllog("eval_samples", 7, -8), "eval_samples is logged with different values"),
    ("", mllog("init_start", None, -1810), "its initialisation took 1810 s, 1800 s or more"),
])
def test_a_log_that_fails_the_compliance_check_of_its_round_counts_as_not_converged(
    tmp_path: Path, left_out: str, more: str, reason: str
) -> None:
    lines = [text for text in COMPLETE if not left_out or f'"{left_out}"' not in text]
    text = "".join([more, *lines, *log_lines(benchmark="rgat", values=(0.5, 0.73))])
    found = one(tmp_path, text, "rgat", "training_v5.0")
    expected = f"it fails MLCommons' compliance check: {reason}" if reason else ""
    assert (found.status, found.reason) == ("invalid" if reason else "ok", expected)
    assert one(tmp_path / "older", text, "rgat", "training_v4.0").status == "ok"
