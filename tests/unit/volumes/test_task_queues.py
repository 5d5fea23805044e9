"""Both queues: at least once, hidden for a time, receipts that become void, dead letters; a file, a real server."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from repro.core.errors import UsageError
from repro.papers.chunkflow.queues import open_queue
from repro.papers.chunkflow.task_queue import Counts, Message, TaskQueue
from tests.redis_server import needs_redis, redis_server

Opened = Callable[..., TaskQueue]


@pytest.fixture(scope="module")
def redis_port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    with redis_server(tmp_path_factory.mktemp("redis")) as port:
        yield port


@pytest.fixture(params=["sqlite", pytest.param("redis", marks=needs_redis)])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Opened]:
    """Return a function that opens the queue of this test once more, as another worker would."""
    if request.param == "sqlite":
        address = f"sqlite:{tmp_path}/tasks.db"
    else:
        address = f"redis://127.0.0.1:{request.getfixturevalue('redis_port')}/0#{request.node.name}"
    found: list[TaskQueue] = []

    def more(visibility: float = 60.0, most_receives: int = 10) -> TaskQueue:
        queue = open_queue(address, visibility, most_receives, make=True)
        if threading.current_thread() is threading.main_thread():  # others close theirs: SQLite's rule
            found.append(queue)
        return queue

    yield more
    for each in found:
        each.close()


def received(queue: TaskQueue) -> Message:
    """Wait for the next task."""
    while (message := queue.receive()) is None:
        time.sleep(0.005)
    return message


def test_tasks_come_in_order_and_leave_when_deleted(opened: Opened) -> None:
    queue = opened()
    queue.add(["a", "b", "c"])
    assert queue.counts() == Counts(3, 0, 0)
    first, second = received(queue), received(queue)
    assert [first.body, second.body] == ["a", "b"]
    assert queue.counts() == Counts(1, 2, 0)
    assert queue.delete(first)
    assert not queue.delete(first)
    assert queue.counts() == Counts(1, 1, 0)
    assert [received(queue).body, queue.receive()] == ["c", None]


def test_a_task_that_is_not_deleted_comes_back_and_its_old_receipt_is_void(opened: Opened) -> None:
    slow, other = opened(0.15), opened(0.15)
    slow.add(["a"])
    old = received(slow)
    assert other.receive() is None
    new = received(other)
    assert (old.body, old.receives, new.body, new.receives) == ("a", 1, "a", 2)
    assert not slow.delete(old)
    assert other.counts().open == 1
    assert other.delete(new)
    assert other.counts() == Counts(0, 0, 0)


def test_a_receipt_is_void_for_the_same_worker_too(opened: Opened) -> None:
    queue = opened(0.1)
    queue.add(["a"])
    old = received(queue)
    new = received(queue)
    assert not queue.delete(old)
    assert queue.delete(new)


def test_an_expired_task_waits_again(opened: Opened) -> None:
    queue = opened(0.1)
    queue.add(["a"])
    received(queue)
    assert queue.counts() == Counts(0, 1, 0)
    time.sleep(0.15)
    assert queue.counts() == Counts(1, 0, 0)


def test_a_task_that_is_received_too_often_becomes_a_dead_letter(opened: Opened) -> None:
    queue = opened(0.05, 3)
    queue.add(["poison", "b"])
    seen = Counter[str]()
    while queue.counts().open:
        message = queue.receive()
        if message is None:
            time.sleep(0.005)
        elif message.body == "b":
            queue.delete(message)
        else:
            seen[message.body] += 1
    assert seen == {"poison": 3}
    assert queue.dead() == ["poison"]
    assert queue.counts() == Counts(0, 0, 1)


def test_workers_at_once_receive_each_task_once(opened: Opened) -> None:
    bodies = [str(number) for number in range(120)]
    opened().add(bodies)
    done = Counter[str]()
    lock = threading.Lock()

    def work() -> None:
        queue = opened()
        while (message := queue.receive()) is not None:
            assert queue.delete(message)
            with lock:
                done[message.body] += 1
        queue.close()

    workers = [threading.Thread(target=work) for _ in range(4)]
    for each in workers:
        each.start()
    for each in workers:
        each.join()
    assert done == Counter(bodies)


def test_a_removed_queue_is_gone(opened: Opened) -> None:
    queue = opened()
    queue.add(["a"])
    queue.remove()
    assert opened().counts() == Counts(0, 0, 0)


@pytest.mark.parametrize(("address", "message"), [
    ("redis://127.0.0.1:1/0#t", "queue redis://127.0.0.1:1/0#t cannot be reached"),
    ("redis://:word@127.0.0.1:1/0", "queue redis://127.0.0.1:1/0#repro-volume cannot be reached"),
    ("redis://127.0.0.1:x/0", "cannot be reached"),
    ("sqlite:/nowhere/at/all.db", "unable to open database file; name a file in a folder that exists and has space"),
    ("sqlite:", "'sqlite:' is no address of a queue; use sqlite:FILE or redis://HOST:PORT/DB#STREAM"),
    ("amqp://here", "is no address of a queue"),
])
def test_a_queue_that_cannot_be_reached_is_one_line(address: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        open_queue(address, make=True)
    assert message in str(caught.value)
    assert "word" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_queue_is_not_made_by_mistake(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="does not exist; make it with repro volume create-tasks"):
        open_queue(f"sqlite:{tmp_path}/tsaks.db")
    assert list(tmp_path.iterdir()) == []


@needs_redis
def test_a_stream_is_not_made_by_mistake(redis_port: int) -> None:
    with pytest.raises(UsageError, match="does not exist; make it with repro volume create-tasks"):
        open_queue(f"redis://127.0.0.1:{redis_port}/0#tsaks")
