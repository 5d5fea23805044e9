"""A queue on a Redis stream with a consumer group, for workers on several machines. Needs Redis 6.2 or newer.

A task is an entry. A worker reads new entries with XREADGROUP and takes over those that are not deleted within
the visibility timeout with XAUTOCLAIM; both count deliveries. Deleting is XACK and XDEL. Dead letters go to a second
stream.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from repro.core.errors import UsageError
from repro.papers.chunkflow.task_queue import Counts, Message, TaskQueue
from repro.papers.extra import imported

redis = imported("redis", "redis")
GROUP = "workers"
SECONDS = 10.0
"""Longest wait for an answer."""

DELETE = """\
local held = redis.call('XPENDING', KEYS[1], ARGV[1], ARGV[2], ARGV[2], 1, ARGV[3])
if #held == 0 or tostring(held[1][4]) ~= ARGV[4] then return 0 end
redis.call('XACK', KEYS[1], ARGV[1], ARGV[2])
return redis.call('XDEL', KEYS[1], ARGV[2])"""
"""XACK alone accepts any consumer's acknowledgement; this one requires that the entry is still with this consumer and
was not delivered again."""

BURY = """\
local found = redis.call('XRANGE', KEYS[1], ARGV[2], ARGV[2])
if redis.call('XACK', KEYS[1], ARGV[1], ARGV[2]) == 0 then return 0 end
redis.call('XADD', KEYS[2], '*', unpack(found[1][2]))
return redis.call('XDEL', KEYS[1], ARGV[2])"""


class RedisQueue(TaskQueue):
    """The stream `name`, its group, and the stream `name:dead`. Each object is a consumer of its own."""

    def __init__(self, url: str, name: str, make: bool, visibility: float, most_receives: int) -> None:
        self.url, self.name, self.graves = url, name, f"{name}:dead"
        self.idle_ms, self.most_receives = max(1, round(visibility * 1000)), most_receives
        self.consumer = uuid.uuid4().hex
        with self._reached():
            # Any: the types of redis cover both protocols and decoded or raw answers.
            self.base: Any = redis.Redis.from_url(url, decode_responses=True, protocol=2, socket_timeout=SECONDS,
                                                  socket_connect_timeout=SECONDS)
            if not make and not self.base.exists(name):
                raise UsageError(f"queue {self.shown} does not exist; make it with repro volume create-tasks")
            self._make_group()

    @property
    def shown(self) -> str:
        """The address without a password."""
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}#{self.name}"

    def _make_group(self) -> None:
        try:
            self.base.xgroup_create(self.name, GROUP, id="0", mkstream=True)
        except redis.ResponseError as error:
            if not str(error).startswith("BUSYGROUP"):  # it exists
                raise

    def add(self, bodies: Sequence[str]) -> None:
        with self._reached(), self.base.pipeline(transaction=True) as together:
            for body in bodies:
                together.xadd(self.name, {"body": body})
            together.execute()

    def receive(self) -> Message | None:
        with self._reached():
            while (found := self._expired()) is not None:
                entry, body = found
                receives = self._deliveries(entry)
                if receives > self.most_receives:
                    self.base.eval(BURY, 2, self.name, self.graves, GROUP, entry)
                elif receives:
                    return Message(body, f"{entry} {receives}", receives)
            fresh = self.base.xreadgroup(GROUP, self.consumer, {self.name: ">"}, count=1)
            if not fresh:
                return None
            entry, fields = fresh[0][1][0]
            return Message(fields["body"], f"{entry} 1", 1)

    def _expired(self) -> tuple[str, str] | None:
        """Take over the oldest entry whose time is up. A call looks at a part of the pending list."""
        cursor = "0-0"
        while True:
            cursor, entries, *_ = self.base.xautoclaim(self.name, GROUP, self.consumer, self.idle_ms, cursor, count=1)
            if entries:
                return entries[0][0], entries[0][1]["body"]
            if cursor == "0-0":
                return None

    def _deliveries(self, entry: str) -> int:
        """Return how often an entry was delivered; 0: another worker has taken it over in the meantime."""
        held = self.base.xpending_range(self.name, GROUP, entry, entry, 1, self.consumer)
        return int(held[0]["times_delivered"]) if held else 0

    def delete(self, message: Message) -> bool:
        entry, _, receives = message.receipt.partition(" ")
        with self._reached():
            return bool(self.base.eval(DELETE, 1, self.name, GROUP, entry, self.consumer, receives))

    def counts(self) -> Counts:
        with self._reached(), self.base.pipeline(transaction=True) as together:
            together.xlen(self.name)
            together.xpending(self.name, GROUP)
            together.xlen(self.graves)
            together.xpending_range(self.name, GROUP, "-", "+", 1_000_000, idle=self.idle_ms)
            entries, pending, dead, expired = together.execute()
        hidden = pending["pending"] - len(expired)
        return Counts(entries - hidden, hidden, dead)

    def dead(self) -> list[str]:
        with self._reached():
            return [fields["body"] for _, fields in self.base.xrange(self.graves)]

    def remove(self) -> None:
        with self._reached():
            self.base.delete(self.name, self.graves)
        self.close()

    def close(self) -> None:
        self.base.close()

    @contextmanager
    def _reached(self) -> Iterator[None]:
        try:
            yield
        except (redis.RedisError, ValueError, OSError) as error:
            raise UsageError(f"queue {self.shown} cannot be reached: {error}; start redis-server, or use sqlite:FILE"
                             ) from error
