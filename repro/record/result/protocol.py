"""What servers of the weights did in a trial (event `x_protocol`): updates, version lag, clock lag, evaluations."""

from __future__ import annotations

from pydantic import ConfigDict, Field

from repro.core.frozen import Frozen
from repro.core.numbers import plain_sum


class GroupLag(Frozen):
    """One synchronous group of workers, or one worker."""

    updates: int
    mean_lag: float | None
    """Mean version lag of its own updates."""


class ServerTraffic(Frozen):
    """Traffic between a shard in a separate process and all workers of the run."""

    sent_bytes: int
    received_bytes: int


class Protocol(Frozen):
    """The protocol of a parameter server.

    The version lag (staleness) of an update is the version that it was applied to, minus the version that its gradient
    was computed with. The clock lag is how many clocks its worker had finished more than the slowest worker.
    """

    model_config = ConfigDict(extra="ignore")

    mode: str
    workers: int
    group: int
    staleness: int
    """Bound on the clock lag in mode ssp."""
    shards: int
    updates: int
    """Of the first shard, in the whole run."""
    weight_bytes: int
    """|W|: what a worker pushes, and what it pulls, for an update."""
    lag: dict[int, int]
    """Version lag -> updates, of all shards."""
    expected_lag: float | None
    """p / g - 1, the mean with equal workers but for the end terms; None: the mode only bounds it."""
    ahead: dict[int, int]
    """Clock lag -> updates, of the first shard."""
    by_group: tuple[GroupLag, ...]
    computed_seconds: tuple[float, ...]
    """By worker."""
    waited_seconds: tuple[float, ...]
    lost: tuple[int, ...] = ()
    """Workers that ended before the run did."""
    servers: tuple[ServerTraffic, ...] = ()
    """Of shards in processes of their own; empty: shards are in the processes of workers."""
    evaluations: int = 0
    """Of snapshots, which no worker waited for; 0: evaluations stop all workers, as under other engines."""
    evaluation_seconds: float = 0.0
    """Of all of them together; on the machine that the workers share."""
    evaluation_delay_seconds: float = 0.0
    """From a snapshot's last update until its value was known, mean."""
    evaluated_updates: int | None = Field(default=None)
    """Updates in the last evaluated snapshot; later ones belong to no figure. None: in lock step."""

    @property
    def mean_lag(self) -> float | None:
        return _mean(self.lag)

    @property
    def mean_ahead(self) -> float | None:
        return _mean(self.ahead)

    @property
    def most_ahead(self) -> int:
        return max(self.ahead, default=0)


def _mean(counts: dict[int, int]) -> float | None:
    total = sum(counts.values())
    return plain_sum(value * times for value, times in counts.items()) / total if total else None
