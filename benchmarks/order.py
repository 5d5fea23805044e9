"""Measure the cost of the data order at data sets of any size: the look-up in every step, and the draw of a pass."""

from __future__ import annotations

import time
from statistics import median, quantiles

from repro.core.frozen import Frozen
from repro.core.random_streams import Streams
from repro.worker.input.data_order import SampleOrder

STEPS = 2000
"""Look-ups timed at the beginning of the first pass, and around the beginning of the second."""
LIMIT_US = 10.0
"""Largest median promised, microseconds."""


class OrderCost(Frozen):
    """Seconds of one rank's look-ups and draws."""

    samples: int
    batch: int
    draw_seconds: float
    """The first pass: on the wall clock before the first step."""
    step_us: float
    """Median over steps, microseconds, while the next pass is drawn."""
    step_p99_us: float
    boundary_us: float
    """Slowest step around the beginning of the next pass, which was drawn in the meantime."""

    def text(self) -> str:
        return "\n".join([
            f"order: {self.samples:,} samples, {self.batch} of them a step",
            f"  a step's look-up: median {self.step_us:.1f} us, 99 % within {self.step_p99_us:.1f} us; promised: "
            f"median at most {LIMIT_US:g} us",
            f"  the first pass is drawn in {self.draw_seconds:.3g} s before the first step, each later one by a second "
            f"thread; slowest step around the change of passes {self.boundary_us:.1f} us",
            "  measured on this machine, now",
        ])


def measure(samples: int = 1_281_167, batch: int = 256) -> OrderCost:
    """Look up the steps of one rank among four, of a global batch of 4 x `batch`."""
    order = SampleOrder(Streams(1, 0), samples, 4 * batch)
    begin = time.perf_counter()
    order.prepare(0)
    drawn = time.perf_counter() - begin
    first = _look_up(order, 0)
    time.sleep(3 * drawn)  # a pass of training takes longer than the draw of the next
    across = _look_up(order, max(0, samples // (4 * batch) - STEPS // 2))
    return OrderCost(samples=samples, batch=batch, draw_seconds=drawn, step_us=median(first),
                     step_p99_us=quantiles(first, n=100)[-1], boundary_us=max(across))


def _look_up(order: SampleOrder, start: int) -> list[float]:
    """Return the microseconds of the look-ups of `STEPS` steps."""
    found = []
    for step in range(start, start + STEPS):
        begin = time.perf_counter_ns()
        order.micro_batches(step, 1, 4, 1)
        found.append((time.perf_counter_ns() - begin) / 1e3)
    return found
