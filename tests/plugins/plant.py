"""How a defect is planted in an engine: one small function, which works on DDP and on DeepSpeed alike.

To add one to `defects`, `outside_defects` or `evaluation_defects`, write a function that changes a running session and
decorate it; its name with dashes is the defect's name::

    @defect("gradient")                     # checks that should name it; the first failing check must be among them
    def gradients_doubled(plant: Plant) -> None:
        plant.on_gradients(lambda name, gradient: gradient * 2)

`Plant` has the session (its methods can be replaced), the number of updates so far, and shortcuts for gradients and
updates. A defect that must be there before the engine starts is decorated with `@defect(..., before=True)` and returns
the job. Then run `make defects`, or one defect by
`repro gate SUITE -o 'engine={kind: planted, defect: NAME}'` with this folder on PYTHONPATH.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from repro.seams.training import Batch, Job

LATE = 50
"""Updates after which late defects begin."""


@dataclass
class Plant:
    """A running session to plant a defect in."""

    session: Any
    job: Job
    updates: int = 0
    """Updates that have begun."""
    first_rate: float = 0.0
    """The largest rate so far."""

    def __post_init__(self) -> None:
        before = self.session.update

        def update(rate: float) -> None:
            self.updates += 1
            self.first_rate = max(rate, self.first_rate)
            before(rate)

        self.session.update = update

    @property
    def late(self) -> bool:
        return self.updates >= LATE

    @property
    def groups(self) -> list[dict[str, Any]]:
        """The groups of the optimizer that steps."""
        found: list[dict[str, Any]] = self.session.optimizer.param_groups
        return found

    def on_gradients(self, change: Callable[[str, torch.Tensor], torch.Tensor]) -> None:
        """Change every gradient of this rank before it is averaged; under FSDP, which shows it to no hook, the rank's
        part of the mean."""
        if any(hasattr(parameter, "to_local") for _, parameter in self.session.trained()):
            backward = self.session.backward

            def changed(batches: Sequence[Batch]) -> Any:
                loss = backward(batches)
                for name, parameter in self.session.trained():
                    if parameter.grad is not None:
                        local = parameter.grad.to_local()
                        local.copy_(change(name, local))
                return loss

            self.session.backward = changed
            return
        for name, parameter in self.session.trained():
            parameter.register_hook(lambda gradient, name=name: change(name, gradient))

    def on_rate(self, change: Callable[[float], float | None]) -> None:
        """Change the rate of every update; None leaves the update out."""
        before = self.session.update

        def update(rate: float) -> None:
            # The base class counts, so an update that is left out runs at rate 0: nothing else would clear gradients.
            changed = change(rate)
            before(0.0 if changed is None else changed)

        self.session.update = update

    def after_update(self, change: Callable[[], None]) -> None:
        """Call `change` after every update."""
        before = self.session.update

        def update(rate: float) -> None:
            before(rate)
            change()

        self.session.update = update

    def around_evaluation(
        self, change: Callable[[Callable[..., tuple[float, int]], list[Batch], str], tuple[float, int]]
    ) -> None:
        """Replace the evaluation by (evaluation, batches, metric) -> (sum, number)."""
        before = self.session.evaluate
        self.session.evaluate = lambda batches, metric: change(before, list(batches), metric)

    def on_batches(self, change: Callable[[Sequence[Batch]], Sequence[Batch]]) -> None:
        """Change the micro-batches of every step."""
        before = self.session.backward
        self.session.backward = lambda batches: before(change(batches))


@dataclass(frozen=True)
class Defect:
    """A defect and the checks that may name it first."""

    plant: Callable[..., Any]
    checks: tuple[str, ...]
    before: bool
    workload: str
    """A name of `WORKLOADS`: one in which it shows."""


DEFECTS: dict[str, Defect] = {}
WORKLOADS = {
    "group": "{kind: digits, norm: group}", "batch": "{kind: digits, norm: batch}",
    "ragged": "{kind: random-layers, ragged: true}",
}


Planter = Callable[..., Any]


def defect(*checks: str, before: bool = False, workload: str = "group") -> Callable[[Planter], Planter]:
    """Register a defect under the function's name."""

    def register(plant: Callable[..., Any]) -> Callable[..., Any]:
        DEFECTS[plant.__name__.replace("_", "-")] = Defect(plant, checks, before, workload)
        return plant

    return register
