"""A real redis-server of its own on a free port of the loopback interface."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import redis

from tests.commands import free_port

needs_redis = pytest.mark.skipif(shutil.which("redis-server") is None,
                                 reason="redis-server is not installed: apt-get install redis-server")


@contextmanager
def redis_server(folder: Path) -> Iterator[int]:
    """Start a server without persistence; yield its port."""
    port = free_port()
    with (folder / "redis.log").open("w") as log:
        server = subprocess.Popen(["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir",
                                   str(folder)], stdout=log, stderr=log)
    try:
        client = redis.Redis(port=port)
        for _ in range(500):
            try:
                client.ping()
                break
            except redis.ConnectionError:
                time.sleep(0.02)
        client.close()
        yield port
    finally:
        server.terminate()
        server.wait(10)
