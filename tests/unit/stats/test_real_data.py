"""Real results of others: MLPerf logs score as MLCommons' summarizer scores them."""

from __future__ import annotations

import csv
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from repro.published.mlperf.rules import olympic_mean

ROOT = Path(__file__).parents[3]
DATA = Path(os.environ.get("REPRO_SHARED_DATA") or ROOT.parent / "shared" / "data")
MLPERF = DATA / "mlperf"

pytestmark = pytest.mark.skipif(not MLPERF.is_dir(), reason=f"no data of others at {DATA}")


def minutes(log: Path) -> float | None:
    """run_start to run_stop with status success; None where there is no such stop."""
    start, stop = None, None
    for line in log.read_text(errors="replace").splitlines():
        if line.startswith(":::MLLOG "):
            event = json.loads(line[9:])
            key, time, metadata = event["key"], event["time_ms"], event["metadata"]
        elif line.startswith(":::MLL "):
            _, seconds, rest = line.split(" ", 2)
            key, _, payload = rest.partition(": ")
            time, metadata = 1000 * float(seconds), json.loads(payload)["metadata"]
        else:
            continue
        if key == "run_start":
            start = time
        elif key == "run_stop" and metadata.get("status") == "success":
            stop = time
    return None if start is None or stop is None else (stop - start) / 60_000  # subtract first: 13 digits


def scores(organization: Path) -> dict[tuple[str, str], list[float | None]]:
    """(system, benchmark) -> minutes of its runs."""
    return {(folder.parent.name, folder.name): [minutes(log) for log in sorted(folder.glob("result_*.txt"))]
            for folder in sorted(organization.glob("results/*/*"))}


def summarized(organization: Path, out: Path) -> dict[tuple[str, str], float]:
    """Output of MLCommons' summarizer for one organization. It also writes next to the logs, so it gets a copy."""
    subprocess.run([sys.executable, "-m", "mlperf_logging.result_summarizer", str(organization), "training", "4.0.0",
                    "-csv", str(out)], check=True, capture_output=True, cwd=out.parent)
    with out.open() as file:
        return {(Path(row["details_url"]).stem, benchmark): float(row[benchmark])
                for row in csv.DictReader(file) for benchmark in ("resnet", "llama2_70b_lora") if row[benchmark]}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["Dell", "NVIDIA", "tinycorp"])
def test_every_system_scores_as_in_mlcommons_summarizer(name: str, tmp_path: Path) -> None:
    source = MLPERF / "training_v4.0" / name
    folder = tmp_path / name
    shutil.copytree(source, folder, copy_function=shutil.copyfile)
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    found = scores(folder)
    first = summarized(folder, tmp_path / "first.csv")
    assert first.keys() == found.keys() and len(first) > 0
    for key, runs in found.items():
        assert olympic_mean(runs)[0] == pytest.approx(first[key], rel=1e-9)
    # The first pass leaves the reference check's factor next to the logs; the second one applies it.
    second = summarized(folder, tmp_path / "second.csv")
    scaled = 0
    for (system, benchmark), runs in found.items():
        factor_file = folder / "results" / system / benchmark / "scaling.json"
        factor = json.loads(factor_file.read_text())["scaling_factor"] if factor_file.is_file() else 1.0
        scaled += factor != 1
        assert olympic_mean(runs, scaling=factor)[0] == pytest.approx(second[system, benchmark], rel=1e-9)
    assert scaled == {"Dell": 1, "NVIDIA": 3, "tinycorp": 0}[name]


def test_a_run_without_its_stop_is_a_miss() -> None:
    green = scores(MLPERF / "training_v4.0" / "tinycorp")["tinybox_green", "resnet"]
    assert green.count(None) == 1
    assert olympic_mean(green)[1][-1] is None


def test_the_older_logs_score_by_mlcommons_own_rule() -> None:
    """Today's summarizer gives the four systems of round 0.6 no score (its checker refuses their logs), so only its
    rule is asked, on the times read here."""
    from mlperf_logging.result_summarizer.result_summarizer import _compute_olympic_average

    found = {**scores(MLPERF / "training_v0.6" / "Google"), **scores(MLPERF / "training_v0.6" / "NVIDIA")}
    assert len(found) == 4
    for runs in found.values():
        assert len(runs) == 5 and None not in runs
        assert olympic_mean(runs)[0] == pytest.approx(_compute_olympic_average([*runs], 0, 1), rel=1e-9)
    # By hand: the mean of the middle three.
    by_hand = {"dgx1_ngc19.05_mxnet": 115.22, "tpu-v3-32": 42.19, "tpu-v3-512": 3.85, "tpu-v3-2048": 1.28}
    for system, value in by_hand.items():
        assert olympic_mean(found[system, "resnet"])[0] == pytest.approx(value, abs=0.005)
