"""One rank's traffic of a trial: in total, and separately of its training steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

SECONDS = ("busy_seconds", "exposed_seconds", "overlapped_seconds")
COUNTS = ("collectives", "payload_bytes", "sent_bytes", "received_bytes")


class TrafficLog:
    """Adds up the readings of a rank's meter, in the meter's format (`Comm.traffic`)."""

    def __init__(self) -> None:
        self._lines: dict[tuple[str, str], dict[str, Any]] = {}
        self._seconds = dict.fromkeys(SECONDS, 0.0)
        self._training = dict.fromkeys(SECONDS, 0.0)
        self._counted = False

    def add(self, reading: Mapping[str, Any], training: bool = False) -> None:
        """Add a reading of the meter; `training`: it covers training steps only."""
        if not reading:
            return
        self._counted = True
        for line in reading["lines"]:
            self._add_line(line)
        for name in SECONDS:
            self._seconds[name] += reading[name]
            self._training[name] += reading[name] if training else 0.0

    def _add_line(self, line: Mapping[str, Any]) -> None:
        known = self._lines.setdefault((line["operation"], line["dtype"]), dict(line) | dict.fromkeys(COUNTS, 0))
        for name in COUNTS:
            # None means not counted; a sum with it is unknown too.
            known[name] = None if None in (known[name], line[name]) else known[name] + line[name]

    def restore(self, total: Mapping[str, Any]) -> None:
        """Continue from the return value of `total` in an earlier attempt."""
        if not total:
            return
        self._counted = True
        self._lines = {(line["operation"], line["dtype"]): dict(line) for line in total["lines"]}
        self._seconds = {name: float(total[name]) for name in SECONDS}
        self._training = dict(total["training"])

    def total(self) -> dict[str, Any]:
        """Return everything (JSON-like, `repro.record.result.results.RankTraffic`); empty if nothing was counted."""
        if not self._counted:
            return {}
        return {"lines": [self._lines[key] for key in sorted(self._lines)], **self._seconds,
                "training": dict(self._training)}
