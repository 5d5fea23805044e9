"""Untrusted run folders: no link and no id may lead out of the folder."""

from __future__ import annotations

import os
from pathlib import Path

from repro.core.errors import OutputError
from repro.record.store import Record, read_record


def refuse_links(root: Path) -> None:
    """Check every name below `root` without opening a file.

    Raises:
        OutputError: a symbolic link leads out of it.
    """
    home = Path(os.path.realpath(root))
    for folder, folders, files in os.walk(root):
        for name in sorted((*folders, *files)):
            path = Path(folder) / name
            if path.is_symlink() and not Path(os.path.realpath(path)).is_relative_to(home):
                raise OutputError(f"{path}: a link that leads out of the folder; nothing outside of it is read or "
                                  "written. Replace the link by the file itself")


def read_inside(root: Path) -> Record:
    """Read a run folder of unknown origin.

    Raises:
        OutputError: the folder is no run or is damaged, a link leads out of it, or a result belongs to no trial of the
            plan (ids are names of folders: a modified one could lead anywhere).
    """
    if (root / "plan.json").is_file():  # otherwise it is no run folder, which read_record reports
        refuse_links(root)
    record = read_record(root)
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
