"""Find the missing rank when a link breaks: the first missing one, not ranks that stopped because of it."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch.distributed as dist
from torch._C._distributed_c10d import Store

from repro.comm.runtime.program import LinkBroken
from repro.comm.runtime.wire import Wire
from repro.core.errors import TrialError

KEY = "lost"
SIGNING_SECONDS = 0.3
"""Time in which a live rank that has closed its links signs."""


class MissingRankFinder:
    """Turn a broken link into a `TrialError` that names the rank.

    1. The first rank whose link breaks writes the other end's number into the store: that rank is gone.
    2. It closes all its own links, so that ranks that wait for it wake up, find the number in the store and do the
       same.
    3. Rank 0, whose end may end the store, stays until all others have read it.
    4. A timeout does not name a rank: all ranks that time out sign in the store, and those that have not signed within
       a grace period are named.
    5. An error of the inner group's own collective does not name the link: the wire lists its broken links. A rank that
       has signed, or signs at once, closed its links because of another rank and is not the missing one.
    """

    def __init__(self, store: Store, wire: Wire, timeout_seconds: float) -> None:
        self.store, self.wire = store, wire
        self.rank, self.world = wire.rank, wire.world
        self.grace = min(5.0, max(1.0, timeout_seconds / 4))

    @contextmanager
    def naming_missing_rank(self) -> Iterator[None]:
        """Turn errors of links inside the block into errors that name the missing rank."""
        try:
            yield
        except LinkBroken as error:
            raise self._error(error.peer, str(error.cause)) from error
        except RuntimeError as error:
            # The inner group's own collective does not name the link.
            raise self._error(None, str(error)) from error

    def _error(self, peer: int | None, cause: str) -> TrialError:
        try:
            gone = self._find_gone(peer, timed_out="imed out" in cause or "imeout" in cause)
            # 2. wake those that wait for this rank
            self.wire.close()
            # 3. rank 0 stays
            self._sign("read")
            if self.rank == 0:
                self._unsigned("read", gone, self.grace)
        except (RuntimeError, dist.DistError):
            # The store lives with rank 0 or its launcher.
            gone = [0]
            self.wire.close()
        return TrialError(self._describe(gone, peer, cause))

    def _describe(self, gone: list[int], peer: int | None, cause: str) -> str:
        cause = re.sub(r"^\[[^\]]*\] *", "", cause.splitlines()[0] if cause else "no reason given")
        cause = cause.partition(". This is typically")[0]
        if not gone:
            waited = "" if peer is None else f", rank {self.rank} waited for rank {peer}"
            return f"communication stopped although every rank is still running{waited}: {cause}"
        return f"rank {' and '.join(map(str, gone))} {'is' if len(gone) == 1 else 'are'} gone: {cause}"

    def _find_gone(self, peer: int | None, timed_out: bool) -> list[int]:
        if self.store.check([KEY]):
            return self._known()
        # 5. broken links, and the silent ranks among them
        broken = [] if timed_out else self.wire.broken() if peer is None else [peer]
        silent = self._unsigned("here", set(range(self.world)) - set(broken), SIGNING_SECONDS)
        if silent:
            # 1. this rank is the first to find it
            self.store.set_timeout(timedelta(seconds=self.grace))
            self.store.compare_set(KEY, "", ",".join(map(str, silent)))
            return self._known()
        # 4. roll call
        self._sign("here")
        missing = self._unsigned("here", [], self.grace)
        return self._known() if self.store.check([KEY]) else missing

    def _known(self) -> list[int]:
        return [int(rank) for rank in self.store.get(KEY).decode().split(",")]

    def _sign(self, sheet: str) -> None:
        self.store.set(f"{sheet}{self.rank}", "1")

    def _unsigned(self, sheet: str, excused: Iterable[int], seconds: float) -> list[int]:
        """Return the ranks that have not signed within `seconds`; empty as soon as all have."""
        deadline = time.monotonic() + seconds
        missing = [rank for rank in range(self.world) if rank not in excused]
        while missing and time.monotonic() < deadline:
            missing = [rank for rank in missing if not self.store.check([f"{sheet}{rank}"])]
            if sheet == "here" and self.store.check([KEY]):
                return []
            time.sleep(0.02)
        return missing

