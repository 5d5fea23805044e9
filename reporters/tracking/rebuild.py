"""Tracking store -> run folder: the artifacts of a replay, restored to their places.

Paths from a server are not trusted: only trials of the plan and files with the names of a run folder are restored.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from repro.compare.design.calibration import FILE
from repro.core.errors import OutputError, TrackingError, UsageError
from repro.core.files import read_model
from repro.core.redact import redacted
from repro.record.folder.index import seal
from repro.record.folder.store import RunFolder
from repro.runner.tracking_store import configure_mlflow, require_store, search, store_uri, translated
from repro.suite.planning.plan import Plan
from repro.tables.text import limited, visible

OF_A_RUN = ("plan.json", "suite.yaml", "environment.json", "ledger.jsonl", "incidents.jsonl", "looks.jsonl",
            "launchers.json", "nodes.jsonl", "lanes.jsonl", "parity.json", FILE)
NEEDED = ("plan.json", "environment.json")
OF_A_TRIAL = re.compile(r"trial\.json|result\.json|(?:result|system)_\d{1,6}\.txt|rank\d{1,6}\.log")


def rebuild(uri: str | None, experiment: str, out: Path, timeout_seconds: float) -> None:
    """Make `out` the run folder of the newest record in `experiment` (its name, or `#` and its id).

    Raises:
        UsageError: no such experiment, or no record in it.
        OutputError: `out` is not empty or cannot be written.
        TrackingError: the store cannot be reached, or holds too little of the record.
    """
    configure_mlflow(timeout_seconds)
    name, place = repr(limited(experiment, 100)), uri or store_uri()
    require_store(place)
    with translated(place):
        from mlflow import MlflowClient

        client: Any = MlflowClient(place)
        found = client.get_experiment(experiment[1:]) if re.fullmatch(r"#\d+", experiment) else \
            client.get_experiment_by_name(experiment)
        if found is None:
            raise UsageError(f"{redacted(place)}: no experiment named {name}")
        runs = [run for run in search(client, found.experiment_id, "tags.`repro.level` != ''", "DESC")
                if {"repro.run", "repro.key", "repro.level"} <= run.data.tags.keys()]  # ours, the newest first
    if not runs:
        raise UsageError(f"{redacted(place)}: experiment {name} holds no run of this tool")
    folder, newest = RunFolder.create(out), runs[0].data.tags["repro.run"]
    try:
        with translated(place), tempfile.TemporaryDirectory() as aside:
            _fill(client, [run for run in runs if run.data.tags["repro.run"] == newest], folder, Path(aside))
        seal(folder)  # a store keeps no index: this one is of what it gave
    except OutputError as error:
        shutil.rmtree(out, ignore_errors=True)  # it was new or empty; a part would look like a complete record
        raise TrackingError(f"{redacted(place)}: the record in {name} is damaged: {error}") from error
    except BaseException:
        shutil.rmtree(out, ignore_errors=True)
        raise


def _fill(client: Any, runs: Sequence[Any], folder: RunFolder, aside: Path) -> None:
    cell = next((run for run in runs if run.data.tags["repro.level"] == "cell"), None)
    have = _fetch(client, cell, folder.root, re.compile("|".join(map(re.escape, OF_A_RUN))), aside) if cell else []
    missing = [name for name in NEEDED if name not in have]
    if missing:
        raise TrackingError(f"the store has no {' and '.join(missing)} of this record: its replay did not complete")
    known = {trial.trial_id for trial in read_model(folder.plan, Plan).trials()}
    trials = [run for run in runs if run.data.tags.get("repro.trial") in known]
    for run in sorted(trials, key=_attempt):  # a later attempt overwrites files, as in the run folder
        _fetch(client, run, folder.trial(run.data.tags["repro.trial"]), OF_A_TRIAL, aside)


def _attempt(run: Any) -> int:
    text = run.data.tags.get("repro.attempt", "")
    return int(text) if text.isdecimal() else 0


def _fetch(client: Any, run: Any, target: Path, wanted: re.Pattern[str], aside: Path) -> list[str]:
    """Fetch the top-level artifacts of a run with a wanted name; return their names."""
    names = [item.path for item in client.list_artifacts(run.info.run_id)
             if not item.is_dir and wanted.fullmatch(item.path)]
    listed = run.data.tags.get("repro.files", "").split(", ")
    lost = [name for name in listed if wanted.fullmatch(name) and name not in names]
    if lost:
        key = visible(limited(run.data.tags["repro.key"], 200))
        raise TrackingError(f"the store has no {', '.join(lost[:3])} of {key}: its replay did not complete, or it "
                            "lost files")
    for name in names:
        fetched = Path(client.download_artifacts(run.info.run_id, name, str(aside)))
        target.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(fetched, target / name)
        fetched.unlink()
    return names
