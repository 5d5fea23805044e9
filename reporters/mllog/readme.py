"""The README of an exported MLPerf package: what it is, what it is not, what was left out."""

from __future__ import annotations

from collections.abc import Sequence

from repro.record.store import Record

from ..paper.markdown import escaped
from ..tables.rows import about

TEXT = """\
# {suite}: logs in MLPerf's results layout

Figures: **{origin}**. Made by repro {version}; suite digest `{digest}`, method {method}.

This is **no MLPerf submission and no MLPerf result**: the name is MLCommons', and so are its rules. The layout and the
lines are theirs so that their tools read these logs:

    python -m mlperf_logging.package_checker . training 5.1.0
    repro import mlperf . --out imported

- `results/CELL/WORKLOAD/result_SEED.txt`: one run a file, a cell of the suite as a system. Every line is one of the
  trial's own log.
- Added, because the common rules ask for it: `samples_count` in the metadata of lines that lack it (taken from the
  evaluation after them, or before a block), the keys of precision and parallelism that round 6.1 wants disclosed, and
  `eval_accuracy` beside each `eval_error` (lower is better there). Whatever was added carries `x_added`.
- `systems/CELL.json`: what the record knows of the machine; an empty string is what it does not know.

## What MLCommons' checks say, and do not

- The parser takes every line. The common rules of round 5.1.0 (`training_5.1.0/common.yaml`) are fulfilled but for one:
  `submission_benchmark` must be one of that round's benchmarks, and these workloads are none. Round 6.1.0 also wants
  the precision in attention, which nobody looked at here.
- Rules of a benchmark (targets, hyper-parameters, number of runs, reference convergence points) do not apply: the
  package checker passes over workloads that it does not know, and says so.
- A score as MLPerf computes it needs the number of runs that a benchmark asks for. There is none here to ask.

## Left out

{left_out}
"""


def readme(record: Record, left_out: Sequence[tuple[str, str]]) -> str:
    """The file; `left_out`: trial and reason."""
    row = about(record)
    missing = [(trial.trial_id, "has not run") for trial in record.missing()]
    listed = "\n".join(f"- {escaped(trial)}: {escaped(why)}" for trial, why in (*left_out, *missing))
    return TEXT.format(
        suite=escaped(str(row["suite"])), origin=escaped(str(row["origin"])), digest=row["suite_digest"],
        version=escaped(str(row["repro_version"])), method=escaped(str(row["method"])),
        left_out=listed or "Nothing: every planned trial ran to its end.",
    )
