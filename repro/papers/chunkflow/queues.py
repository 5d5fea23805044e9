"""Queues by their addresses, `sqlite:FILE` and `redis://HOST:PORT/DB#STREAM`, and the queue in a SQLite file."""

from __future__ import annotations

import sqlite3
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from repro.core.errors import UsageError
from repro.papers.chunkflow.task_queue import Counts, Message, TaskQueue

BUSY_SECONDS = 60.0
TABLE = """\
CREATE TABLE IF NOT EXISTS tasks (
  id INTEGER PRIMARY KEY, body TEXT NOT NULL, visible_at REAL NOT NULL DEFAULT 0, receives INTEGER NOT NULL DEFAULT 0,
  receipt TEXT NOT NULL DEFAULT '', dead INTEGER NOT NULL DEFAULT 0)"""
INDEX = "CREATE INDEX IF NOT EXISTS received ON tasks (receives)"
NEXT = "SELECT id, body, receives FROM tasks WHERE NOT dead AND visible_at <= ? ORDER BY id LIMIT 1"
TAKE = "UPDATE tasks SET visible_at = ?, receives = ?, receipt = ? WHERE id = ?"
DELETE = "DELETE FROM tasks WHERE id = ? AND receipt = ? AND NOT dead"
BURY = "UPDATE tasks SET dead = 1 WHERE NOT dead AND visible_at <= ? AND receives >= ?"
COUNT = "SELECT count(*) FILTER (WHERE NOT dead AND visible_at <= ?), " \
        "count(*) FILTER (WHERE NOT dead AND visible_at > ?), count(*) FILTER (WHERE dead) FROM tasks"


class SqliteQueue(TaskQueue):
    """Rows of a table; a receipt is a row's time of visibility and a random handle, written in one transaction."""

    def __init__(self, path: str, make: bool, visibility: float, most_receives: int) -> None:
        self.path, self.visibility, self.most_receives = path, visibility, most_receives
        if not make and not Path(path).exists():
            raise UsageError(f"queue sqlite:{path} does not exist; make it with repro volume create-tasks")
        with self._reached():
            self.base = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None)
            # Readers do not wait for writers; a killed process leaves whole transactions only.
            self.base.execute("PRAGMA journal_mode = WAL")
            self.base.execute("PRAGMA synchronous = NORMAL")
            self.base.execute(TABLE)
            self.base.execute(INDEX)

    def add(self, bodies: Sequence[str]) -> None:
        with self._transaction() as base:
            base.executemany("INSERT INTO tasks (body) VALUES (?)", [(body,) for body in bodies])

    def receive(self) -> Message | None:
        now, receipt = time.time(), uuid.uuid4().hex
        with self._transaction() as base:
            base.execute(BURY, (now, self.most_receives))
            found = base.execute(NEXT, (now,)).fetchone()
            if found is None:
                return None
            row, body, receives = found
            base.execute(TAKE, (now + self.visibility, receives + 1, receipt, row))
        return Message(body, f"{row}:{receipt}", receives + 1)

    def delete(self, message: Message) -> bool:
        row, _, receipt = message.receipt.partition(":")
        with self._transaction() as base:
            return base.execute(DELETE, (row, receipt)).rowcount > 0

    def counts(self) -> Counts:
        now = time.time()
        with self._reached():
            return Counts(*self.base.execute(COUNT, (now, now)).fetchone())

    def dead(self) -> list[str]:
        with self._reached():
            return [body for body, in self.base.execute("SELECT body FROM tasks WHERE dead ORDER BY id")]

    def remove(self) -> None:
        self.close()
        for suffix in ("", "-wal", "-shm"):
            Path(self.path + suffix).unlink(missing_ok=True)

    def close(self) -> None:
        self.base.close()

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """Hold the write lock from before the first read, so that no two workers choose the same row."""
        with self._reached():
            self.base.execute("BEGIN IMMEDIATE")
            try:
                yield self.base
            except BaseException:
                self.base.execute("ROLLBACK")
                raise
            self.base.execute("COMMIT")

    @contextmanager
    def _reached(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise UsageError(f"queue sqlite:{self.path} cannot be used: {error}; name a file in a folder that exists "
                             "and has space") from error


def open_queue(url: str, visibility: float = 60.0, most_receives: int = 10, *, make: bool = False) -> TaskQueue:
    """Open the queue at `url`.

    Args:
        visibility: seconds for which a received task is hidden; longer than a task takes.
        most_receives: receipts of a task before it becomes a dead letter.
        make: make the queue if there is none.

    Raises:
        UsageError: the address has another form, or the queue cannot be reached or does not exist.
    """
    scheme, colon, rest = url.partition(":")
    if scheme == "sqlite" and colon and rest.removeprefix("///"):
        return SqliteQueue(rest.removeprefix("///"), make, visibility, most_receives)
    if scheme in ("redis", "rediss", "unix") and colon:
        from repro.papers.chunkflow.redis_queue import RedisQueue  # it needs the package redis

        address, _, stream = url.partition("#")
        return RedisQueue(address, stream or "repro-volume", make, visibility, most_receives)
    raise UsageError(f"{url!r} is no address of a queue; use sqlite:FILE or redis://HOST:PORT/DB#STREAM")
