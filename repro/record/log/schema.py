"""Every event of a trial's log: its key, its fields, their units.

The worker, the supervisor of a program and the monitor write these models, and everything that reads a log reads them.
Keys are MLPerf's own if MLPerf has one (docs/method.md section 2); ours start with `x_`. Counts and hashes are of all
ranks together unless a docstring says otherwise; times are of rank 0's clock.
"""

from __future__ import annotations

from repro.record.log.beginning import *  # noqa: F403
from repro.record.log.course import *  # noqa: F403
from repro.record.log.event import LogEvent
from repro.record.log.final_report import *  # noqa: F403

KINDS: dict[str, type[LogEvent]] = {
    kind.key: kind for kind in list(globals().values())
    if isinstance(kind, type) and issubclass(kind, LogEvent) and "key" in vars(kind)}
"""Every event by its key."""
