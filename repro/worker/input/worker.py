"""Main function of an input worker: a process forked from its rank that reads samples and nothing else."""

from __future__ import annotations

import os
import signal
import traceback
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from repro.core import orphans
from repro.core.errors import TrialError
from repro.core.events import EventLog
from repro.seams.training import Fed, SampleReader
from repro.seams.workload import map_tensors


class Wanted(NamedTuple):
    """One batch to be read."""

    epoch: int | None
    """Pass over the training data; None: a batch of an evaluation."""
    indices: np.ndarray


@dataclass(frozen=True, slots=True)
class Item:
    """One batch that was read."""

    batch: Any
    fed: Fed | None
    """None: a batch of an evaluation."""

    def pin_memory(self) -> Item:
        """Return it in page-locked memory; torch calls this, and its own way would turn tuples into lists."""
        return Item(map_tensors(self.batch, lambda tensor: tensor.pin_memory()), self.fed)


@dataclass(frozen=True, slots=True)
class Unreadable:
    """Reason for a batch that could not be read, in one line."""

    reason: str


class Reading:
    """The data set of the loader: reads the batch that a key asks for. A failure is a value: one line and no text of
    torch around it."""

    def __init__(self, reader: SampleReader) -> None:
        self.reader = reader

    def __getitem__(self, wanted: Wanted) -> Item | Unreadable:
        try:
            if wanted.epoch is None:
                return Item(self.reader.evaluation(wanted.indices), None)
            read = self.reader.train(wanted.epoch, wanted.indices)
            return Item(read.batch, read.fed)
        except TrialError as error:
            return Unreadable(str(error))
        except Exception as error:  # a reader of others may raise anything: it is the reason of the trial's end
            traceback.print_exc()
            first = (str(error).splitlines() or [""])[0]
            return Unreadable(f"an input worker failed: {type(error).__name__}: {first}".removesuffix(": "))


class Arrival:
    """Prepares an input worker at its start: the worker ends with its rank and closes the rank's log.

    The launcher ends the process group of a killed rank, but only while the launcher lives; the kernel's signal works
    without it.
    """

    def __init__(self, log: EventLog) -> None:
        self.log, self.rank = log, os.getpid()

    def __call__(self, _number: int) -> None:
        orphans.signal_at_parent_exit(signal.SIGKILL)
        if os.getppid() != self.rank:  # it ended before the line above
            os._exit(1)
        self.log.leave_to_parent()


def as_read(item: Item | Unreadable) -> Item | Unreadable:
    """Return `item`: torch's own collation would turn the account's arrays into tensors."""
    return item
