"""Reader of TensorBoard's event files."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from repro.core.errors import UsageError, visible
from repro.program.observation import Observation, OutputProblem
from repro.program.order import Order, quoted

FILES = "events.out.tfevents.*"
MISSING = "reading TensorBoard's event files takes the package tensorboard: pip install 'repro-harness[tensorboard]'"


class TensorboardReader:
    """Follows the event files of one folder. The scalars of one tag are the evaluations; other tags may count other
    things than steps and state nothing.

    Each event has the wall clock of its writer, so that an evaluation has a time though writers hold events back
    (torch's `SummaryWriter` for 120 s). One writer is followed: with several nothing tells whose values count.
    """

    def __init__(
        self, folder: Path, tag: str, axis: Literal["step", "samples", "epoch"] = "step",
        wall_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        """Args:
            folder: searched for event files, not below.
            tag: tag of the quality.
            axis: what the program passes as the step of this tag.
            wall_ns: nanoseconds since 1970.

        Raises:
            UsageError: the package tensorboard is not installed.
        """
        try:
            from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
        except ImportError:
            raise UsageError(MISSING) from None
        self._loader_of: Callable[[str], Any] = EventFileLoader
        self._folder, self._tag, self._axis, self._wall_ns = folder, tag, axis, wall_ns
        self._loader: Any = None
        self._order = Order()
        self._polls = 0

    def poll(self, arrived_ns: int) -> list[Observation]:
        """Return the evaluations written since the last call; nothing while there is no event file.

        Raises:
            OutputProblem: a second event file, a damaged one, a value that is no scalar, or as `Order.accept`.
        """
        self._polls += 1
        files = sorted(path.name for path in self._folder.glob(FILES))
        if not files:
            return []
        if len(files) > 1:
            raise OutputProblem(f"{len(files)} event files in {self._folder.name}: {visible(files[0])}, "
                                f"{visible(files[1])}; a trial has one writer, in a folder of its own")
        if self._loader is None:
            self._loader = self._loader_of(str(self._folder / files[0]))
        from google.protobuf.message import DecodeError

        wall_offset = arrived_ns - self._wall_ns()
        try:
            return [self._observation(event, value, arrived_ns, wall_offset)
                    for event in self._loader.Load() for value in event.summary.value if value.tag == self._tag]
        except (DecodeError, ValueError) as reason:
            raise OutputProblem(f"{visible(files[0])} is damaged: {visible(str(reason))}") from None

    def _observation(self, event: Any, value: Any, arrived_ns: int, wall_offset: int) -> Observation:
        from tensorboard.util.tensor_util import make_ndarray

        array = make_ndarray(value.tensor)
        if array.shape or array.dtype.kind not in "fiu":
            raise OutputProblem(f"tag {quoted(self._tag)} holds no scalar at step {event.step}")
        step, wall = int(event.step), event.wall_time
        return self._order.accept(Observation(
            "evaluation", arrived_ns, self._polls,
            step=step if self._axis == "step" else None,
            samples=step if self._axis == "samples" else None,
            epochs=float(step) if self._axis == "epoch" else None,
            value=float(array), own_ns=round(wall * 1e9) + wall_offset if math.isfinite(wall) else None,
        ), f"{self._tag} at step {step}")
