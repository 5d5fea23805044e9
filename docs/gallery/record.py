"""Record the runs of the gallery again: every suite of suites/ runs, one is killed and resumed, all are packed.

Run it on a quiet Linux machine in this project's environment: `python docs/gallery/record.py FOLDER`. The records of
the gallery are the bundles that it writes to FOLDER; the published ones come from `repro import` (index.md names them).
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent
PROGRAM = (sys.executable, "-m", "repro")
ONCE = ("same", "inconclusive", "missed", "factorial", "scaling")


def run(out: Path, suite: str, *options: str) -> None:
    """Run a suite; missed targets are no failure here."""
    done = subprocess.run([*PROGRAM, "run", suite, "--no-mlflow", "--out", str(out), *options], check=False)
    if done.returncode not in (0, 3):
        raise SystemExit(f"{suite}: exit code {done.returncode}")


def run_and_kill(out: Path, suite: str) -> None:
    """Kill the parent process in the middle of the run, then resume."""
    child = subprocess.Popen([*PROGRAM, "run", suite, "--no-mlflow", "--out", str(out)])
    while len(list(out.glob("trials/*/result.json"))) < 5:
        time.sleep(0.05)
    time.sleep(0.4)  # in the middle of a trial
    child.send_signal(signal.SIGKILL)
    child.wait()
    subprocess.run([*PROGRAM, "run", "--resume", str(out), "--no-mlflow"], check=True)


def main(folder: Path) -> None:
    folder.mkdir(parents=True)
    suites = HERE / "suites"
    run(folder / "settled", "quickstart")
    for name in ONCE:
        run(folder / name, str(suites / f"{name}.yaml"))
    for part in ("several-1", "several-2"):
        run(folder / part, str(suites / "several.yaml"))
    run_and_kill(folder / "resumed", str(suites / "resumed.yaml"))
    for record in sorted(path for path in folder.iterdir() if path.is_dir()):
        out = folder / f"{record.name}.zip"
        subprocess.run([*PROGRAM, "bundle", str(record), "--out", str(out), "--license", "Apache-2.0"], check=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
