"""The addresses of queues: `sqlite:FILE`, and `redis://HOST:PORT/DB#STREAM`."""

from __future__ import annotations

from repro.core.errors import UsageError
from repro.papers.chunkflow.sqlite_queue import SqliteQueue
from repro.papers.chunkflow.task_queue import TaskQueue

VISIBILITY = 60.0
MOST_RECEIVES = 10
STREAM = "repro-volume"


def open_queue(
    url: str, visibility: float = VISIBILITY, most_receives: int = MOST_RECEIVES, *, make: bool = False
) -> TaskQueue:
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
        return RedisQueue(address, stream or STREAM, make, visibility, most_receives)
    raise UsageError(f"{url!r} is no address of a queue; use sqlite:FILE or redis://HOST:PORT/DB#STREAM")
