"""One rank's traffic of a run, training steps apart from evaluations and barriers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

SECONDS = ("busy_seconds", "exposed_seconds", "overlapped_seconds")
COUNTS = ("collectives", "payload_bytes", "sent_bytes", "received_bytes")


class TrafficLog:
    """Adds up what the meter of a rank gave, in the form in which it gave it (`Comm.traffic`)."""

    def __init__(self) -> None:
        self._lines: dict[tuple[str, str], dict[str, Any]] = {}
        self._seconds = dict.fromkeys(SECONDS, 0.0)
        self._training = dict.fromkeys(SECONDS, 0.0)
        self._any = False

    def add(self, taken: Mapping[str, Any], training: bool = False) -> None:
        """What a meter counted since it was last asked; `training`: during steps."""
        if not taken:
            return
        self._any = True
        for line in taken["lines"]:
            self._add_line(line)
        for name in SECONDS:
            self._seconds[name] += taken[name]
            self._training[name] += taken[name] if training else 0.0

    def _add_line(self, line: Mapping[str, Any]) -> None:
        known = self._lines.setdefault((line["operation"], line["dtype"]), dict(line) | dict.fromkeys(COUNTS, 0))
        for name in COUNTS:
            # None: nobody counts it, and a sum with it is as unknown.
            known[name] = None if None in (known[name], line[name]) else known[name] + line[name]

    def restore(self, total: Mapping[str, Any]) -> None:
        """Go on from what `total` once said."""
        if not total:
            return
        self._any = True
        self._lines = {(line["operation"], line["dtype"]): dict(line) for line in total["lines"]}
        self._seconds = {name: float(total[name]) for name in SECONDS}
        self._training = dict(total["training"])

    def total(self) -> dict[str, Any]:
        """Everything (JSON-like, `repro.record.results.RankTraffic`); empty where nothing counts."""
        if not self._any:
            return {}
        return {"lines": [self._lines[key] for key in sorted(self._lines)], **self._seconds,
                "training": dict(self._training)}
