"""Reader of MLPerf's log lines in three generations.

================  ======================================================================  ===========
generation        line                                                                    times
================  ======================================================================  ===========
v0.5              ``:::MLPv0.5.0 resnet 1541635716.1 (train.py:83) run_stop: {...}``      seconds
v0.6              ``:::MLL 1558420845.819 run_start: {"value": .., "metadata": {..}}``    seconds
v0.7 and later    ``:::MLLOG {"time_ms": .., "key": .., "value": .., "metadata": {..}}``  milliseconds
================  ======================================================================  ===========

Sources: `mlperf_logging/compliance_checker/mlp_parser` (v0.6 on) and the compliance checker of round v0.5.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from repro.published.untrusted.files import DamagedInput, number, parse, plain, read_lines

MAX_LINE = 1 << 20
"""Bytes of one event line."""
MAX_FILE = 256 << 20
"""Bytes of one log; hosts of results repositories accept at most 100 MB per file."""


Form = Literal["v0.5", "v0.6", "mllog"]
TOKEN = b":::ML"
MLLOG, V06, V05 = b":::MLLOG ", b":::MLL ", b":::MLPv"
V06_LINE = re.compile(rb":::MLL ([\d.]+) ([A-Za-z0-9_]+) ?:\s+(.+)\Z", re.DOTALL)
V05_LINE = re.compile(
    rb":::MLPv(\d{1,3}\.\d{1,3})[\d.]{0,9} ([A-Za-z0-9_]+) ([\d.]+) \([^()]*\) ([A-Za-z0-9_]+)(?: ?:\s+(.+))?\Z",
    re.DOTALL,
)
LATEST = 1e11
"""Seconds since 1970 (the year 5138); later times are invalid."""
V05_KEYS = {
    "preproc_num_train_examples": "train_samples", "run_set_random_seed": "seed", "num_train_examples": "train_samples",
    "num_eval_examples": "eval_samples",
}
"""Key in old rounds -> current key. `input_batch_size` of v0.5 is missing: some logged it per worker."""


@dataclass(frozen=True, slots=True)
class LogEvent:
    """One event line."""

    line: int
    key: str
    value: Any
    time: float
    """Time since 1970 in the unit of the log (`MlperfLog.per_second`). Convert to seconds after subtracting: at 1.7e9 s
    the last digit of a float is 2e-7 s."""
    metadata: dict[str, Any] = field(default_factory=dict)


class MlperfLog:
    """Iterates over the events of one log; the attributes are complete after the iteration."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.doubled = 0
        """Lines with several tokens, of which the last one counts, as in the reader of MLCommons."""
        self.form: Form | None = None
        self.version: str | None = None
        """Round in the token of the log (v0.5 only)."""
        self.benchmark: str | None = None
        """Benchmark in the lines of the log (v0.5 only)."""
        self._unended = False
        """The last event line has no line end."""
        self._digest = hashlib.sha256()

    @property
    def sha256(self) -> str:
        """Hash of the whole file."""
        return self._digest.hexdigest()

    @property
    def per_second(self) -> float:
        """Units of time per second."""
        return 1e3 if self.form == "mllog" else 1.0

    def __iter__(self) -> Iterator[LogEvent]:
        """Yield the events in the order of the file.

        Raises:
            DamagedInput: as `event_lines`; an unreadable event line; two generations in one file.
        """
        for line, text in self.event_lines():
            event = self._event(line, text.strip())
            if event is not None:
                yield event

    def event_lines(self) -> Iterator[tuple[int, bytes]]:
        """Yield (line number, bytes from the token to the end of the line).

        Raises:
            DamagedInput: the file cannot be read, is too large, holds NUL bytes, or an event line is too long.
        """
        for line, text in read_lines(self.path, MAX_FILE, MAX_LINE + 1, self._digest):
            last = text.rfind(TOKEN)
            if last < 0:
                continue
            if len(text) > MAX_LINE:
                raise DamagedInput(f"line {line}: an event line of more than {MAX_LINE >> 20} MiB")
            self._unended = not text.endswith((b"\n", b"\r"))
            self.doubled += text.find(TOKEN) < last
            yield line, text[last:].rstrip(b"\r\n")

    def _event(self, line: int, text: bytes) -> LogEvent | None:
        for form, token, read in (("mllog", MLLOG, _mllog), ("v0.6", V06, _v06), ("v0.5", V05, self._v05)):
            if not text.startswith(token):
                continue
            if self.form is not None and self.form != form:
                raise DamagedInput(f"line {line}: a line of form {form} in a log of form {self.form}")
            self.form = form  # type: ignore[assignment]
            try:
                return read(line, text)
            except DamagedInput as reason:
                cut = " (the file ends inside this line)" if self._unended else ""
                raise DamagedInput(f"line {line}: {reason}{cut}") from None
        return None  # a message of a tool that mentions the token

    def _v05(self, line: int, text: bytes) -> LogEvent:
        match = V05_LINE.match(text)
        if match is None:
            raise DamagedInput("not a line of the form `:::MLPv0.5.0 BENCHMARK TIME (FILE:LINE) KEY: VALUE`")
        version, benchmark, time, key_text, body = match.groups()
        self.version, self.benchmark = version.decode(), benchmark.decode()
        key = V05_KEYS.get(key_text.decode(), key_text.decode())
        value = _loose_value(body)
        data = value if isinstance(value, dict) else {}
        if key == "eval_accuracy" and "value" in data:
            return LogEvent(line, key, data["value"], _time(time), {"epoch_num": data.get("epoch")})
        if key == "run_stop" and "success" in data:
            status = "success" if data["success"] is True else "aborted"
            return LogEvent(line, key, None, _time(time), {"status": status})
        return LogEvent(line, key, value, _time(time))


def _mllog(line: int, text: bytes) -> LogEvent:
    data = parse(text[len(MLLOG):])
    if not isinstance(data, dict):
        raise DamagedInput("no JSON object after the token")
    key, metadata = data.get("key"), data.get("metadata")
    milliseconds = number(data.get("time_ms"))
    if not isinstance(key, str) or not key:
        raise DamagedInput("an event without a key")
    if milliseconds is None:
        raise DamagedInput(f"time_ms is {plain(data.get('time_ms'), 40)!r}, not a finite number")
    return LogEvent(line, key, data.get("value"), _in_range(milliseconds, 1e3), _mapping(metadata))


def _v06(line: int, text: bytes) -> LogEvent:
    match = V06_LINE.match(text)
    if match is None:
        raise DamagedInput("not a line of the form `:::MLL TIME KEY: {...}`")
    time, key, body = match.groups()
    data = parse(body)
    if not isinstance(data, dict):
        raise DamagedInput("no JSON object after the key")
    name = V05_KEYS.get(key.decode(), key.decode())
    return LogEvent(line, name, data.get("value"), _time(time), _mapping(data.get("metadata")))


def _mapping(metadata: Any) -> dict[str, Any]:
    if metadata is None:
        return {}
    if not isinstance(metadata, dict):
        raise DamagedInput("metadata is not a JSON object")
    return metadata


def _time(text: bytes) -> float:
    try:
        return _in_range(float(text), 1.0)
    except ValueError:
        raise DamagedInput(f"{plain(text.decode(), 40)!r} is not a time in seconds") from None


def _in_range(time: float, per_second: float) -> float:
    if not 0 <= time <= LATEST * per_second:
        raise DamagedInput(f"{time / per_second:g} s since 1970 is not a valid time of a run")
    return time


def _loose_value(body: bytes | None) -> Any:
    """Parse JSON, or a bare word as in round v0.5."""
    if body is None:
        return None
    try:
        return parse(body)
    except DamagedInput:
        if body.lstrip()[:1] in (b"{", b"["):
            raise
        return plain(body.decode("utf-8", "backslashreplace"))
