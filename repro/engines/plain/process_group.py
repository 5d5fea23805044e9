"""The process group of a trial: started before its session is built, and ended if that fails."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch.distributed as dist

from repro.seams.training import Job


@contextmanager
def started_group(job: Job, end: Callable[[], None] = dist.destroy_process_group) -> Iterator[None]:
    """Start the group for the session that the block builds; it outlives the block.

    Args:
        end: ends the group if the block fails: with launcher inline the next trial runs in this process.
    """
    job.comm.start(job.rank, job.world, job.device, job.timeout_seconds)
    try:
        yield
    except BaseException:  # Ctrl-C too
        end()
        raise
