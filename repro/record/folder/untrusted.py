"""Untrusted run folders: no id may lead out of the folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from repro.core.errors import OutputError
from repro.record.folder.store import Record, read_record


def read_inside(root: Path, read: Mapping[Path, Any] | None = None) -> Record:
    """Read a run folder of unknown origin.

    Args:
        read: models of files of this folder that were read already.

    Raises:
        OutputError: the folder is no run or is damaged, holds a link, or a result belongs to no trial of the plan (ids
            are names of folders: a modified one could lead anywhere).
    """
    record = read_record(root, read)
    planned = {trial.trial_id: trial for trial in record.plan.trials()}
    for item in record.results:
        trial = planned.get(item.trial_id)
        if trial is None or (item.cell_id, item.repeat) != (trial.cell_id, trial.repeat):
            raise OutputError(f"{root}: a result names trial {item.trial_id[:80]!r}, cell "
                              f"{item.cell_id[:80]!r}, seed {item.repeat}, which is not in the plan; one of the "
                              "two was modified")
    if len({item.trial_id for item in record.results}) < len(record.results):
        raise OutputError(f"{root}: two results name the same trial; one was copied or modified")
    return record
