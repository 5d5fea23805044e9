"""The lane of an agent: runs shards of a pool, each by its own command, and sends what they write."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path

from repro.core.orphans import name_owner, remove_orphaned
from repro.launchers.nodes.channel import Channel, State, file_state, send_files

PREFIX = "repro-lane-"
EARLY = ("plan.json", "suite.yaml", "environment.json", "nodes.jsonl", "ledger.jsonl", "incidents.jsonl")
"""Files of a shard that are sent while it runs: from them the run knows what a lost lane had begun."""
LATE = ("environment.json", "result.json", "sha256sums.txt")
"""Files that say that others are there, so that they are sent after these, in this order."""
EVERY_SECONDS = 2.0
END_SECONDS = 30.0
"""Longest time in which a shard that is stopped closes its folder."""
OUTPUT = "output.log"


class Lane:
    """The folder of this computer that takes the place of the run's, and the shard that runs in it."""

    def __init__(self, channel: Channel, stop: threading.Event) -> None:
        """
        Args:
            stop: ends the shard that runs.
        """
        remove_orphaned(tempfile.gettempdir(), PREFIX)
        self._channel, self._stop = channel, stop
        self.root = Path(tempfile.mkdtemp(prefix=PREFIX))
        name_owner(self.root)

    def close(self) -> None:
        shutil.rmtree(self.root, ignore_errors=True)

    def run(self, number: int, flags: Sequence[str]) -> None:
        """Run a shard whose files have arrived, and send its own; what is sent last tells that it has ended.

        Raises:
            LinkLost: the run is gone; the shard was ended.
        """
        place, sent = self.root / "shards" / str(number), State()
        with (place / OUTPUT).open("ab") as output:
            child = subprocess.Popen(
                [sys.executable, "-m", "repro", "lane", str(self.root), str(number), *flags, "--tied"],
                env={"REPRO_NODE": socket.gethostname(), **os.environ}, stdin=subprocess.DEVNULL, stdout=output,
                stderr=output, start_new_session=True)  # Ctrl-C reaches the agent, which ends it
        try:
            while child.poll() is None and not self._stop.is_set():
                sent = self._send(number, place, sent, EARLY)
                self._pause(child)
        finally:
            _end(child)
        self._send(number, place, sent)
        self._channel.send("shard ended", {"number": number})
        shutil.rmtree(place, ignore_errors=True)

    def _pause(self, child: subprocess.Popen[bytes]) -> None:
        """Wait for a while, or until the shard has ended or is to be stopped."""
        for _ in range(round(EVERY_SECONDS / 0.1)):
            if self._stop.wait(0.1) or child.poll() is not None:
                return

    def _send(self, number: int, place: Path, sent: State, only: Sequence[str] = ()) -> State:
        """Send the files of a shard that are other than those sent; return these."""
        now = file_state(place)
        names = sorted((name for name in sorted(now)
                        if now[name] != sent.get(name) and (not only or Path(name).name in only)),
                       key=lambda name: Path(name).name in LATE and 1 + LATE.index(Path(name).name))
        send_files(self._channel, number, place, names)
        return {**sent, **{name: now[name] for name in names}}


def _end(child: subprocess.Popen[bytes]) -> None:
    """End a shard that still runs; it closes its folder first."""
    if child.poll() is None:
        child.terminate()
    try:
        child.wait(END_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
