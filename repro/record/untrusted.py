"""A folder that came from somewhere else is read and written inside only: its links and ids must not lead out of it."""

from __future__ import annotations

import os
from pathlib import Path

from repro.core.errors import OutputError
from repro.record.store import Record, read_record


def refuse_links(root: Path) -> None:
    """Look at every name below `root`; files are not opened.

    Raises:
        OutputError: a symbolic link leads out of it.
    """
    home = Path(os.path.realpath(root))
    for folder, folders, files in os.walk(root):
        for name in sorted((*folders, *files)):
            path = Path(folder) / name
            if path.is_symlink() and not Path(os.path.realpath(path)).is_relative_to(home):
                raise OutputError(f"{path}: a link that leads out of the folder; nothing outside it is read or "
                                  "written. Put what it stands for in its place")


def read_inside(root: Path) -> Record:
    """Read a run folder that anybody may have made.

    Raises:
        OutputError: it is none or damaged, a link leads out of it, or a result is of no trial of the plan (ids are
            names of folders: one that was changed could lead anywhere).
    """
    if (root / "plan.json").is_file():  # else it is none, and may be anything
        refuse_links(root)
    record = read_record(root)
    planned = {trial.trial_id: trial for trial in record.plan.trials()}
    for item in record.results:
        trial = planned.get(item.trial_id)
        if trial is None or (item.cell_id, item.repeat) != (trial.cell_id, trial.repeat):
            raise OutputError(f"{root}: a result says that it is of trial {item.trial_id[:80]!r}, cell "
                              f"{item.cell_id[:80]!r}, seed {item.repeat}; the plan has no such trial, so it was "
                              "changed")
    if len({item.trial_id for item in record.results}) < len(record.results):
        raise OutputError(f"{root}: two results say that they are of one trial; one was copied or changed")
    return record
