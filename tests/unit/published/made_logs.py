"""Small logs and folders in MLPerf's and DAWNBench's forms, made up for the tests."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from html import unescape
from pathlib import Path
from typing import Any

from repro.published.importing import import_results
from repro.published.store import Published, read_published

START_MS = 1_700_000_000_000


def mllog(key: str, value: Any = None, at: float = 0.0, **metadata: Any) -> str:
    """One `:::MLLOG` line, `at` seconds after the start."""
    body = {"namespace": "", "time_ms": START_MS + round(at * 1000), "event_type": "POINT_IN_TIME", "key": key,
            "value": value, "metadata": {"file": "train.py", "lineno": 1, **metadata}}
    return f":::MLLOG {json.dumps(body)}\n"


def log_lines(
    *, seconds: float = 600.0, values: Sequence[float] = (0.3, 0.6, 0.76), status: str = "success", batch: int = 256,
    benchmark: str = "resnet", org: str = "Acme", division: str = "closed", seed: int = 7,
) -> list[str]:
    """A complete log: evaluations evenly spread, the last a second before the stop."""
    lines = [
        mllog("submission_org", org, -20), mllog("submission_benchmark", benchmark, -20),
        mllog("submission_division", division, -20), mllog("submission_status", "onprem", -20),
        mllog("submission_platform", "box", -20), mllog("init_start", None, -10), mllog("seed", seed, -9),
        mllog("global_batch_size", batch, -9), mllog("opt_name", "lars", -9), mllog("train_samples", 1_281_167, -9),
        "[12:00:01] epoch 0  some other program's words\n", mllog("init_stop", None, 0), mllog("run_start", None, 0),
    ]
    for index, value in enumerate(values, 1):
        at = (seconds - 1) * index / len(values)
        lines.append(mllog("eval_accuracy", value, at, epoch_num=4 * index))
    lines.append(mllog("run_stop", None, seconds, status=status))
    return lines


def logs(seconds: tuple[float, ...], **kwargs: Any) -> dict[str, str]:
    """A log for each time, by the name of its file."""
    return {f"result_{index}.txt": "".join(log_lines(seconds=value, seed=index, **kwargs))
            for index, value in enumerate(seconds)}


def v06_log(seconds: float = 600.0) -> str:
    start = START_MS / 1000
    return "".join([
        ':::MLL 0.0 submission_org: {"value": "acme", "metadata": {"lineno": 0, "file": "N/A"}}\n',
        ':::MLL 0.0 submission_division: {"value": "closed", "metadata": {}}\n',
        f':::MLL {start:.3f} run_start: {{"value": null, "metadata": {{}}}}\n',
        f':::MLL {start + 1:.3f} num_train_examples: {{"value": 1000, "metadata": {{}}}}\n',
        f':::MLL {start + 1:.3f} global_batch_size: {{"value": 4096, "metadata": {{}}}}\n',
        f':::MLL {start + 9:.3f} eval_accuracy: {{"value": 0.5, "metadata": {{"epoch_num": 4}}}}\n',
        f':::MLL {start + seconds - 1:.3f} eval_accuracy: {{"value": 0.7591, "metadata": {{"epoch_num": 8}}}}\n',
        f':::MLL {start + seconds:.3f} run_stop: {{"value": null, "metadata": {{"status": "success"}}}}\n',
    ])


def v05_log(seconds: float = 600.0, success: str = "true") -> str:
    start, head = START_MS / 1000, "NCF_RAW_:::MLPv0.5.0 resnet"
    return "".join([
        f"{head} {start:.9f} (train.py:10) run_start\n",
        f"{head} {start:.9f} (train.py:11) run_set_random_seed: 42\n",
        f"{head} {start:.9f} (train.py:12) input_batch_size: 1024\n",
        f'{head} {start:.9f} (train.py:13) opt_name: "sgd"\n',
        f"{head} {start:.9f} (train.py:14) eval_target: 0.749\n",
        f'{head} {start + seconds - 1:.9f} (train.py:15) eval_accuracy: {{"epoch": 60, "value": 0.7492}}\n',
        f'{head} {start + seconds:.9f} (train.py:16) run_stop: {{"success": {success}}}\n',
        f"{head} {start + seconds:.9f} (train.py:17) run_final\n",
    ])


SYSTEM = {
    "submitter": "Acme", "division": "closed", "status": "onprem", "system_name": "box", "number_of_nodes": "2",
    "host_processors_per_node": "2", "host_processor_model_name": "CPU 9", "accelerators_per_node": "8",
    "accelerator_model_name": "Chip 1", "framework": "Frame 1.0", "other_software_stack": {"cuda": "12"},
    "hw_notes": "",
}


def repository(root: Path, logs: Mapping[str, str] | None = None, system: str = "box", org: str = "Acme",
               benchmark: str = "resnet", round_name: str = "training_v4.0") -> Path:
    """One organisation's folder; returns the folder of the logs."""
    home = root / round_name / org
    folder = home / "results" / system / benchmark
    folder.mkdir(parents=True, exist_ok=True)
    (home / "systems").mkdir(exist_ok=True)
    (home / "systems" / f"{system}.json").write_text(json.dumps(SYSTEM))
    if logs is None:
        logs = {f"result_{index}.txt": "".join(log_lines(seconds=600 + 60 * index, seed=index)) for index in range(5)}
    for name, text in logs.items():
        (folder / name).write_text(text)
    return folder


def entry(root: Path, name: str = "fast", benchmark: str = "ImageNet", tsv: str | None = None,
          description: str | None = None) -> Path:
    """One DAWNBench entry; returns its TSV."""
    folder = root / benchmark / "train"
    folder.mkdir(parents=True, exist_ok=True)
    column = "top5Accuracy" if benchmark == "ImageNet" else "top1Accuracy"
    rows = f"epoch\thours\t{column}\n1\t0.5\t80.0\n2\t1.0\t93.0\n3\t1.5\t94.5\n"
    (folder / f"{name}.tsv").write_text(rows if tsv is None else tsv)
    default = json.dumps({"version": "v1.0", "author": "A. Nother", "framework": "Frame", "model": "Net 9",
                          "hardware": "8 chips", "timestamp": "2019-01-01", "misc": {"batchSize": 128}})
    (folder / f"{name}.json").write_text(default if description is None else description)
    return folder / f"{name}.tsv"


def three_systems(root: Path) -> Published:
    """An import of two systems with a score, one of them with a refused log, and of one with too few runs."""
    repository(root / "in", logs((600, 612, 625, 590, 605)), system="slow")
    repository(root / "in", logs((500, 505, 498, 510, 507), batch=4096) | {"result_4.txt": "cut"}, system="quick")
    repository(root / "in", logs((400, 405, 398, 410)), system="few", round_name="training_v3.1")
    import_results("mlperf", root / "in", root / "out")
    return read_published(root / "out")


def figures(page: str) -> dict[str, Any]:
    """The figures of a page, by name."""
    return {name: json.loads(unescape(text)) for name, text in re.findall(
        r'<script type="application/json" id="([^"]+)">(.*?)</script>', page, flags=re.DOTALL)}


def row(page: str, cell_id: str) -> str:
    """The row of a cell on a page."""
    (found,) = re.findall(rf'<tr id="c-{cell_id}">.*?</tr>', page, flags=re.DOTALL)
    return str(found)
