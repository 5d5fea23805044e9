"""The block of a log that names its software and its GPUs, as `nvidia-smi` prints them."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import datetime

from repro.published.record import Setting
from repro.published.untrusted.text import plain

RUNNING = re.compile(rb"Running (Python|PyTorch|Triton)(?: version)? (\S+)", re.IGNORECASE)
DRIVER = re.compile(rb"Driver Version: *([\w.]+)")
GPU = re.compile(rb"\| +(\d{1,4}) +(\S.*?) +(?:On|Off) +\| +([0-9A-Fa-f]{8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.\d)")
CLOCK = re.compile(rb"[A-Z][a-z]{2} [A-Z][a-z]{2} +\d{1,2} \d{2}:\d{2}:\d{2} \d{4}")
MOST_GPUS = 1024


@dataclass(slots=True)
class Machine:
    """Statements of the block; empty: none."""

    versions: dict[str, str] = field(default_factory=dict)
    """By `python`, `pytorch`, `triton`."""
    driver: str = ""
    gpus: list[tuple[str, str]] = field(default_factory=list)
    """(name, address on the bus) in the order of the table."""
    started: str = ""
    """Local time of the machine, ISO 8601."""

    def read(self, line: bytes) -> None:
        """Take what one line of the block states."""
        if found := RUNNING.match(line):
            self.versions[found[1].decode().lower()] = plain(found[2].decode("utf-8", "replace"), 80)
        elif found := GPU.match(line):
            if len(self.gpus) < MOST_GPUS:
                self.gpus.append((plain(found[2].decode("utf-8", "replace"), 80), found[3].decode().lower()))
        elif found := DRIVER.search(line):
            self.driver = found[1].decode()
        elif found := CLOCK.match(line):
            self.started = _moment(found[0].decode())

    @property
    def name(self) -> str:
        """The machine as text that differs where the GPUs, their addresses or the driver differ; empty: unknown."""
        if not self.gpus:
            return ""
        names = ", ".join(dict.fromkeys(name for name, _ in self.gpus))
        places = " ".join(place.removeprefix("00000000:") for _, place in self.gpus)
        return plain(f"{len(self.gpus)} x {names}, driver {self.driver or 'unknown'}, at {places}", 2000)

    def settings(self) -> dict[str, Setting]:
        """Return what is known, for the record of a run."""
        found: dict[str, Setting] = dict(self.versions)
        found |= {"driver": self.driver, "machine": self.name, "started": self.started}
        return {name: value for name, value in found.items() if value}


def _moment(text: str) -> str:
    try:
        return datetime.strptime(" ".join(text.split()), "%a %b %d %H:%M:%S %Y").isoformat()
    except ValueError:
        return ""
