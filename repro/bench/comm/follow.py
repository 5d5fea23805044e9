"""Follow a file of JSON lines while another process writes it."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any


class Following:
    """Passes every JSON line appended to a file to `tell` while the block runs."""

    def __init__(self, path: Path, tell: Callable[[dict[str, Any]], None]) -> None:
        self._path, self._tell, self._read = path, tell, 0
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="repro-bench-follow", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()
        self._look()

    def _follow(self) -> None:
        while not self._done.wait(0.5):
            self._look()

    def _look(self) -> None:
        if not self._path.exists():
            return
        with self._path.open("rb") as stream:
            stream.seek(self._read)
            for line in stream:
                if not line.endswith(b"\n"):
                    return
                self._read += len(line)
                self._tell(json.loads(line))
