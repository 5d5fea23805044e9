"""Writes a record of each kind that the gallery has not, as bundles in a folder named after this version:

    python -m tests.data.corpus.make

Later versions read, verify and report them (tests/unit/bundle/test_corpus.py); a folder that exists is never written
again.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import repro
from tests.flow.test_contest_run import PROGRAM
from tests.flow.test_contest_run import SUITE as CONTEST
from tests.flow.test_fixed_steps_run import EXACT
from tests.flow.test_tuning import SUITE as TUNED
from tests.plans import suite

ROOT = Path(__file__).parents[3]
COUNTED = suite("counted", """\
matrix: {parameters.mean: [3.27, 3.25]}
primary: {candidate: {parameters.mean: 3.25}, baseline: {parameters.mean: 3.27}, metric: samples}
""", seeds=6, workload=None, engine='{kind: program, run: [python, train.py, "{seed}", "{mean}"]}', batch="{global: 8}",
    optimizer=None, stop="{target: 3.58}", evaluate_every=None, parameters="{mean: 3.27}", timeout_seconds=60,
    evaluation="{pattern: 'step (?P<step>\\d+) loss (?P<value>\\S+)', metric: loss, direction: lower}")
TIMED = suite("timed", """\
matrix: {parameters.mean: [1.0, 2.0]}
primary: {candidate: {parameters.mean: 2.0}, baseline: {parameters.mean: 1.0}}
""", seeds=6, workload=None, engine='{kind: program, run: [python, train.py, "{seed}", "{mean}"]}', batch=None,
    optimizer=None, stop="{design: end}", evaluate_every=None, parameters="{mean: 1.0}", timeout_seconds=60)
MEASURED = (ROOT / "examples/allreduce/suite.yaml").read_text().replace("repeats: 20", "repeats: 5")
SUITES = {"contest": CONTEST, "fixed-steps": EXACT.replace("METRIC", "step_time"), "tuned": TUNED, "program": COUNTED,
          "times-only": TIMED, "measurement": MEASURED}


def main() -> None:
    """Run every suite and pack its record."""
    out = Path(__file__).parent / repro.__version__
    out.mkdir()
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    for name, text in SUITES.items():
        with tempfile.TemporaryDirectory() as place:
            Path(place, "suite.yaml").write_text(text)
            Path(place, "train.py").write_text(PROGRAM)
            Path(place, "allreduce.py").write_text((ROOT / "examples/allreduce/allreduce.py").read_text())
            for words in (("run", "suite.yaml", "--no-mlflow", "--out", "run"),
                          ("bundle", "run", "-o", str(out / f"{name}.zip"))):
                subprocess.run([sys.executable, "-m", "repro", *words], cwd=place, env=environment, check=True)


if __name__ == "__main__":
    main()
