"""Durations on the command line: 90s, 45m, 2h, 1h30m."""

from __future__ import annotations

import re

import click

SECONDS = {"h": 3600.0, "m": 60.0, "s": 1.0}
_FORM = re.compile(r"(?:(\d{1,6}(?:\.\d+)?)h)?(?:(\d{1,6}(?:\.\d+)?)m)?(?:(\d{1,6}(?:\.\d+)?)s)?")


class DurationParam(click.ParamType):  # type: ignore[type-arg]  # generic only from click 8.4 on
    """A positive duration; its value is in seconds."""

    name = "duration"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        found = _FORM.fullmatch(str(value).strip())
        seconds = sum(float(part) * unit for part, unit in zip(found.groups(), SECONDS.values(), strict=True) if part) \
            if found else 0.0
        if seconds <= 0:
            self.fail(f"{str(value)[:40]!r} is not a duration; write 2h, 45m, 90s or 1h30m", param, ctx)
        return seconds
