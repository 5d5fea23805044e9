"""Time and loss of an arm and of the arm that it is compared with, as small figures of the first screen."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from repro.published.record import PublishedResult
from repro.published.speedrun.claims import ArmClaim
from repro.published.speedrun.quality import final_loss

from ..page.axis import Axis, linear
from ..page.cells import COLORS
from ..page.first.sketch import Sketch, Trace, sketch


def claim_sketches(
    item: ArmClaim, other: ArmClaim, numbers: dict[str, int], runs: dict[str, list[PublishedResult]],
) -> tuple[Sketch, ...]:
    """Draw the means with their intervals and every run, the baseline above."""
    arms = (item, other)
    return (
        _sketch("Time of a run", "by the program's own clock, seconds", arms, numbers, runs,
                lambda run: run.seconds, [(arm.seconds, arm.seconds_interval) for arm in arms], None),
        _sketch("Loss at the end", "loss; line: the target", arms, numbers, runs,
                final_loss, [(arm.quality.mean, arm.quality.interval) for arm in arms], item.quality.target),
    )


def _sketch(
    title: str, across: str, arms: Sequence[ArmClaim], numbers: dict[str, int], runs: dict[str, list[PublishedResult]],
    value: Callable[[PublishedResult], float | None], means: Sequence[tuple[float | None, tuple[float, float] | None]],
    goal: float | None,
) -> Sketch:
    traces, names = [], {}
    for row, (arm, (middle, interval)) in enumerate(zip(arms, means, strict=True), 1):
        known = [found for run in runs.get(arm.cell_id, ()) if (found := value(run)) is not None]
        color = (numbers[arm.cell_id] - 1) % COLORS
        names[float(row)] = f"No.\N{NO-BREAK SPACE}{numbers[arm.cell_id]}"
        traces.append(Trace(color, tuple((found, row + 0.28) for found in known), ("a run",) * len(known), thin=True))
        if middle is not None:
            traces.append(Trace(color, ((middle, float(row)),), (arm.arm,), spans=(interval,) if interval else ()))
    values = [x for trace in traces for x, _ in trace.points] + [
        end for trace in traces for span in trace.spans for end in span] + ([] if goal is None else [goal])
    return sketch(title, "mean with its 95\N{NO-BREAK SPACE}% interval; small: runs", across, traces, linear(values),
                  Axis(0.4, len(arms) + 0.7, False, 0, 100, tuple(names)), ("published",), names, goal=goal)
