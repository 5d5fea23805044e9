"""Plants every defect of `defects` in one engine after the other and prints what found it: `make defects`."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
ENGINES = {
    "ddp": "{{kind: planted, defect: {defect}}}", "zero1": "{{kind: planted-zero, stage: 1, defect: {defect}}}",
    "zero3": "{{kind: planted-zero, stage: 3, defect: {defect}}}",
}
SUITE = """\
suite: planted
seeds: 1
master_seed: 20151102
trial:
  workload: {workload}
  processes: 2
  batch: {{global: 32, accumulation: 2}}
  optimizer: {{kind: sgd, lr: 0.05, momentum: 0.9, weight_decay: 0.01, decay: weights}}
  gradient_clip: 0.5
  schedule: {{kind: cosine}}
  precision: {precision}
  stop: {{{stop}, max_epochs: {epochs}, design: fixed_budget}}
  evaluate_every: 640
  device: cpu
  timeout_seconds: 120
matrix:
  engine:
{engines}
"""


@dataclass(frozen=True)
class Found:
    """What stopped one defect; `by` is empty if nothing did."""

    defect: str
    by: str
    check: str = ""
    step: int | None = None
    tensor: str = ""
    text: str = ""


def environment() -> dict[str, str]:
    path = os.pathsep.join([str(ROOT), str(ROOT / "tests" / "plugins")])
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu"}


def call(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "repro", *words], cwd=folder, env=environment(), capture_output=True,
                          text=True, timeout=3000, check=False)


SHORT, LONG = 3, 15
"""Passes over the data. What happens in every tenth step is seen where the harness repeats more than ten."""


def suite_text(engine: str, precision: str, workload: str, defects: Sequence[str], epochs: int = SHORT) -> str:
    from plant import WORKLOADS

    stop = "metric: loss, target: 0.01" if workload == "ragged" else "metric: top1, target: 0.99"
    engines = "".join(f"    - {ENGINES[engine].format(defect=name)}\n" for name in defects)
    return SUITE.format(workload=WORKLOADS[workload], stop=stop, precision=precision, engines=engines,
                        epochs=epochs)


def gate(engine: str, precision: str, workload: str, defects: Sequence[str]) -> dict[str, Found]:
    """Run the gate on several defects and return what it found about each."""
    with tempfile.TemporaryDirectory() as place:
        Path(place, "suite.yaml").write_text(suite_text(engine, precision, workload, defects))
        ended = call(Path(place), "gate", "suite.yaml", "--json")
    if ended.returncode not in (0, 1) or not ended.stdout.startswith("{"):
        raise RuntimeError(f"repro gate: {ended.stderr[-800:]}")
    rows = json.loads(ended.stdout)["rows"]
    return {name: _first(name, [row for row in rows if f"defect={name})" in row["candidate"]
                                or f"defect={name}," in row["candidate"]]) for name in defects}


def _first(name: str, rows: Sequence[dict[str, Any]]) -> Found:
    failed = [row for row in rows if not row["passed"]]
    if not failed:
        return Found(name, "")
    from repro.worker.gate.judge import ORDER

    order = (*ORDER, "start")
    row = min(failed, key=lambda row: (row["step"] or 0, order.index(row["check"])))
    return Found(name, "gate", row["check"], row["step"], row["tensor"], row["text"])


def trials(engine: str, precision: str, workload: str, defects: Sequence[str], epochs: int) -> dict[str, Found]:
    """Run one trial of each defect that nothing has found yet, in one run without a gate."""
    found: dict[str, Found] = {}
    with tempfile.TemporaryDirectory() as place:
        text = suite_text(engine, precision, workload, defects, epochs)
        Path(place, "suite.yaml").write_text(text.replace("trial:\n", "trial:\n  gate: {skip: it passed}\n"))
        ended = call(Path(place), "run", "suite.yaml", "--out", "run", "--no-mlflow")
        for path in Path(place).glob("run/trials/*"):
            stated = json.loads((path / "trial.json").read_text())["choices"]["engine"]["defect"]
            result = json.loads((path / "result.json").read_text())
            invalid = result["status"] == "invalid"
            by = "" if not invalid else "trial" if epochs == SHORT else "longer"
            found[stated] = Found(stated, by, text=f"{result['status']}: {result['reasons']}")
    if found.keys() != set(defects):
        raise RuntimeError(f"repro run: {ended.stderr[-800:]}")
    return found


def run(engine: str, precision: str, defects: Sequence[str]) -> list[Found]:
    """Plant `defects` in one engine, and return what found each."""
    from defects import DEFECTS
    from plant import WORKLOADS

    found: dict[str, Found] = {}
    for workload in WORKLOADS:
        here = [name for name in defects if DEFECTS[name].workload == workload]
        if not here:
            continue
        found |= gate(engine, precision, workload, here)
        for epochs in (SHORT, LONG):
            if passed := [name for name in here if not found[name].by]:
                found |= trials(engine, precision, workload, passed, epochs)
    return [found[name] for name in defects]


def main() -> None:
    """Print a table of every defect for the engines and formats that are asked for."""
    sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "plugins")]
    from defects import DEFECTS

    parser = argparse.ArgumentParser()
    parser.add_argument("--engine", nargs="*", default=list(ENGINES))
    parser.add_argument("--precision", nargs="*", default=["fp32", "bf16-autocast"])
    parser.add_argument("--defect", nargs="*", default=list(DEFECTS))
    options = parser.parse_args()
    missed = 0
    for engine in options.engine:
        for precision in options.precision:
            for item in run(engine, precision, options.defect):
                right = item.by in ("trial", "longer") or item.check in DEFECTS[item.defect].checks
                missed += not item.by
                print(f"{engine:5}  {precision:13}  {item.defect:30}  {item.by or 'MISSED':6}  "
                      f"{item.check}{'' if right else ' (?)'}  {item.text[:150]}", flush=True)
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
