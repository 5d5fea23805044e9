"""The event lines of a log, streamed; other lines need no memory and no parsing."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from repro.published.untrusted.files import open_plain
from repro.published.untrusted.text import DamagedInput

CHUNK = 1 << 20
MAX_LINE = 1 << 20
"""Bytes of one event line."""
MAX_FILE = 256 << 20
"""Bytes of one log; hosts of results repositories accept at most 100 MB per file."""


class EventLines:
    """Iterates over (line number, bytes from the token to the end of the line) of one log.

    A line ends at LF or CR, as in the reader of MLCommons: progress bars put many CRs before an event. If a token
    occurs twice on a line, the last one counts, also as there; `doubled` counts such lines.
    """

    def __init__(self, path: Path, token: bytes, max_file: int = MAX_FILE, chunk: int = CHUNK) -> None:
        self.path, self.token, self.max_file, self.chunk = path, token, max_file, chunk
        self.doubled = 0
        self.unended = False
        """The last event line has no line end."""
        self._digest = hashlib.sha256()

    @property
    def sha256(self) -> str:
        """Hash of the whole file; complete after the iteration."""
        return self._digest.hexdigest()

    def __iter__(self) -> Iterator[tuple[int, bytes]]:
        """Yield the event lines.

        Raises:
            DamagedInput: the file cannot be read, is too large, holds NUL bytes, or an event line is too long.
        """
        line, size, held = 1, 0, b""
        with open_plain(self.path, self.max_file) as stream:
            while True:
                piece = self._piece(stream)
                size += len(piece)
                if size > self.max_file:
                    raise DamagedInput(f"larger than {self.max_file >> 20} MiB")
                if b"\0" in piece:
                    at = line + held.count(b"\n") + piece.count(b"\n", 0, piece.index(0))
                    raise DamagedInput(f"line {at}: a NUL byte")
                buffer, counted, position = held + piece, 0, 0
                while (start := buffer.find(self.token, position)) >= 0:
                    end = _line_end(buffer, start)
                    if end < 0 and piece:
                        break
                    line += buffer.count(b"\n", counted, start)
                    counted = start
                    self.unended = end < 0
                    end = len(buffer) if end < 0 else end
                    yield line, self._last_event(buffer[start:end], line)
                    position = end
                if not piece:
                    return
                keep = start if start >= 0 else max(position, len(buffer) - len(self.token) + 1)
                line += buffer.count(b"\n", counted, keep)
                held = buffer[keep:]
                if len(held) > MAX_LINE:
                    raise DamagedInput(f"line {line}: an event line of more than {MAX_LINE >> 20} MiB")

    def _piece(self, stream: BinaryIO) -> bytes:
        try:
            piece = stream.read(self.chunk)
        except OSError as error:
            raise DamagedInput(f"cannot be read: {error.strerror}") from None
        self._digest.update(piece)
        return piece

    def _last_event(self, text: bytes, line: int) -> bytes:
        if len(text) > MAX_LINE:
            raise DamagedInput(f"line {line}: an event line of more than {MAX_LINE >> 20} MiB")
        last = text.rfind(self.token)
        self.doubled += last > 0
        return text[last:]


def _line_end(buffer: bytes, start: int) -> int:
    """Return the index of the LF or CR that ends the line; -1: not in the buffer."""
    feed = buffer.find(b"\n", start)
    back = buffer.find(b"\r", start, feed) if feed >= 0 else buffer.find(b"\r", start)
    return back if back >= 0 else feed
