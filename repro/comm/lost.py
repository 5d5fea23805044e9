"""Says which rank is gone when a link breaks: the first one that was missed, not whoever gave up because of it."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch.distributed as dist
from torch._C._distributed_c10d import Store

from repro.comm.executor import LinkBroken
from repro.errors import TrialError

KEY = "lost"


class Witness:
    """Turns a broken link into a `TrialError` that names the rank.

    1. The first rank whose link breaks writes the other end's number into the store: that one is gone.
    2. A rank whose link breaks later (its neighbour gave up) finds the number there and repeats it.
    3. A link that timed out says only that somebody is missing: all ranks that time out sign in the store, and those
       that have not signed within a grace period are named.
    """

    def __init__(self, store: Store, rank: int, world: int, timeout_seconds: float) -> None:
        self.store, self.rank, self.world, self.timeout = store, rank, world, timeout_seconds
        self.grace = min(5.0, max(1.0, timeout_seconds / 4))

    @contextmanager
    def named(self) -> Iterator[None]:
        """Errors of the links inside become errors that name a rank."""
        try:
            yield
        except LinkBroken as error:
            raise TrialError(self._story(error.peer, str(error.cause))) from error
        except RuntimeError as error:
            # The inner group's own collective does not say whose link it was.
            raise TrialError(self._story(None, str(error))) from error

    def _story(self, peer: int | None, cause: str) -> str:
        cause = re.sub(r"^\[[^\]]*\] *", "", cause.splitlines()[0] if cause else "no reason given")
        try:
            gone = self._gone(peer, timed_out="imed out" in cause or "imeout" in cause)
        except (RuntimeError, dist.DistError):
            # The store lives with rank 0 or its launcher.
            gone = [0] if peer is None else [peer]
        if not gone:
            return f"communication stopped and every rank is still there, rank {self.rank} waited for {peer}: {cause}"
        names = " and ".join(map(str, gone))
        return f"rank {names} {'is' if len(gone) == 1 else 'are'} gone: {cause}"

    def _gone(self, peer: int | None, timed_out: bool) -> list[int]:
        # 2. somebody knows already
        if self.store.check([KEY]):
            return [int(self.store.get(KEY))]
        if timed_out or peer is None:
            # 3. roll call
            return self._missing()
        # 1. the first to know
        self.store.set_timeout(timedelta(seconds=self.grace))
        return [int(self.store.compare_set(KEY, "", str(peer)))]

    def _missing(self) -> list[int]:
        self.store.set(f"here{self.rank}", "1")
        deadline = time.monotonic() + self.grace
        while time.monotonic() < deadline:
            if self.store.check([KEY]):
                return [int(self.store.get(KEY))]
            if all(self.store.check([f"here{rank}"]) for rank in range(self.world)):
                return []
            time.sleep(0.05)
        return [rank for rank in range(self.world) if not self.store.check([f"here{rank}"])]
