"""Defects to plant in an engine: each is one small function, and works on DDP and on DeepSpeed alike.

To add one, write a function that changes a running session and decorate it; its name with dashes is the defect's name::

    @defect("gradient")                     # checks that should name it; the first failing check must be among them
    def gradients_doubled(plant: Plant) -> None:
        plant.on_gradients(lambda name, gradient: gradient * 2)

`Plant` has the session (its methods can be replaced), the number of updates so far, and shortcuts for gradients and
updates. A defect that must be there before the engine starts is decorated with `@defect(..., before=True)` and returns
the job. Then run `make defects`, or one defect by
`repro gate SUITE -o 'engine={kind: planted, defect: NAME}'` with this folder on PYTHONPATH.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from repro.engines.precisions import Bf16Autocast, Fp32
from repro.optimizers.adamw import AdamW
from repro.seams.training import Batch, Job, TrainingParts

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
        """Change every gradient of this rank before it is averaged."""
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
    norm: str
    """Norm of the digits model in which it shows."""


DEFECTS: dict[str, Defect] = {}


Planter = Callable[..., Any]


def defect(*checks: str, before: bool = False, norm: str = "group") -> Callable[[Planter], Planter]:
    """Register a defect under the function's name."""

    def register(plant: Callable[..., Any]) -> Callable[..., Any]:
        DEFECTS[plant.__name__.replace("_", "-")] = Defect(plant, checks, before, norm)
        return plant

    return register


# ---- gradients


@defect("gradient")
def summed_over_ranks(plant: Plant) -> None:
    """Gradients are added over ranks where they should be averaged."""
    plant.on_gradients(lambda _, gradient: gradient * plant.job.world)


@defect("gradient")
def accumulation_unscaled(plant: Plant) -> None:
    """Gradients of micro-batches are added up and not divided by their number."""
    plant.on_gradients(lambda _, gradient: gradient * plant.job.accumulation)


@defect("gradient")
def bucket_left_out(plant: Plant) -> None:
    """Rank 1 contributes nothing to the last layer."""
    last = plant.session.trained()[-1][0]
    plant.on_gradients(lambda name, gradient: gradient * 0 if name == last and plant.job.rank == 1 else gradient)


@defect("gradient")
def reduction_ends(plant: Plant) -> None:
    """After 50 steps rank 1's gradients no longer arrive."""
    plant.on_gradients(lambda _, gradient: gradient * 0 if plant.late and plant.job.rank == 1 else gradient)


@defect("gradient")
def first_layer_freezes(plant: Plant) -> None:
    """After 50 steps the first layer is not trained."""
    first = plant.session.trained()[0][0]
    plant.on_gradients(lambda name, gradient: gradient * 0 if plant.late and name == first else gradient)


@defect("gradient")
def gradients_thinned(plant: Plant) -> None:
    """After 50 steps only gradients above the mean size are used."""

    def change(_: str, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * (gradient.abs() > gradient.abs().mean()) if plant.late else gradient

    plant.on_gradients(change)


@defect("gradient", "weight", "update", "loss")
def gradients_rounded(plant: Plant) -> None:
    """Gradients are rounded to bfloat16 without a request."""
    plant.on_gradients(lambda _, gradient: gradient.bfloat16().to(gradient.dtype))


# ---- data and loss


@defect("loss", "gradient")
def half_of_each_batch(plant: Plant) -> None:
    """Only the first half of every micro-batch is trained on."""
    plant.on_batches(lambda batches: [(inputs[:len(targets) // 2], targets[:len(targets) // 2])
                                      for inputs, targets in batches])


@defect("loss", "gradient")
def first_micro_batch_repeated(plant: Plant) -> None:
    """All micro-batches of a step are the first one."""
    plant.on_batches(lambda batches: [batches[0]] * len(batches))


@defect("rate 0", "loss", "gradient")
def stale_batches_late(plant: Plant) -> None:
    """After 50 steps every batch is trained on twice, and every second one is not read."""
    kept: list[Sequence[Batch]] = []

    def change(batches: Sequence[Batch]) -> Sequence[Batch]:
        if not plant.late or plant.updates % 2 == 0 or not kept:
            kept[:] = [batches]
        return kept[0]

    plant.on_batches(change)


@defect("input", before=True)
def neighbouring_samples(parts: TrainingParts, job: Job) -> Job:
    """Rank 1 is given each sample's neighbour."""
    right = parts.train_batch
    parts.train_batch = lambda epoch, indices: right(epoch, (indices + job.rank) % 1437)
    return job


@defect("input", before=True)
def augmentation_of_another_epoch(parts: TrainingParts, job: Job) -> Job:
    """Rank 1 draws its augmentation from another epoch's seed."""
    right = parts.train_batch
    parts.train_batch = lambda epoch, indices: right(epoch + job.rank, indices)
    return job


@defect("loss", "gradient")
def labels_smoothed(plant: Plant) -> None:
    """The loss smooths labels without a request."""
    plant.session.parts.loss = lambda outputs, targets: torch.nn.functional.cross_entropy(
        outputs.float(), targets, label_smoothing=0.05)


# ---- updates


@defect("weight", "update", before=True)
def clipping_left_out(parts: TrainingParts, job: Job) -> Job:
    """Gradients are not clipped."""
    return replace(job, gradient_clip=None)


@defect("weight", "update", "optimizer")
def decay_everywhere(plant: Plant) -> None:
    """Weight decay reaches biases and norms too."""
    most = max(group["weight_decay"] for group in plant.groups)
    for group in plant.groups:
        group["weight_decay"] = most


@defect("weight", "update", "optimizer")
def momentum_smaller(plant: Plant) -> None:
    """The optimizer has another momentum."""
    for group in plant.groups:
        group["momentum"] = 0.8


@defect("weight", "update", "optimizer")
def momentum_smaller_late(plant: Plant) -> None:
    """After 50 updates the optimizer has another momentum."""

    def change() -> None:
        if plant.late:
            for group in plant.groups:
                group["momentum"] = 0.5

    plant.after_update(change)


@defect("weight", "update")
def momentum_reset(plant: Plant) -> None:
    """At update 64 the momentum is cleared."""

    def change() -> None:
        if plant.updates == LATE + 14:
            for state in plant.session.optimizer.state.values():
                for value in state.values():
                    if isinstance(value, torch.Tensor):
                        value.zero_()

    plant.after_update(change)


@defect("weight", "update", "optimizer", before=True)
def other_optimizer(parts: TrainingParts, job: Job) -> Job:
    """AdamW steps in place of SGD."""
    return replace(job, optimizer=AdamW(lr=job.optimizer.lr / 10))


@defect("weight", "update")
def rate_too_large(plant: Plant) -> None:
    """The rate is 1 % too large."""
    plant.on_rate(lambda rate: rate * 1.01)


@defect("weight", "update")
def rate_of_the_step_before(plant: Plant) -> None:
    """Every update uses the rate of the one before."""
    rates: list[float] = []

    def change(rate: float) -> float:
        rates.append(rate)
        return rates[-2] if len(rates) > 1 else rate

    plant.on_rate(change)


@defect("weight", "update")
def schedule_ends_early(plant: Plant) -> None:
    """The rate never falls below a twentieth of the full one, unless it is 0."""
    plant.on_rate(lambda rate: max(rate, plant.first_rate / 20) if rate else rate)


@defect("weight", "update")
def small_updates_left_out(plant: Plant) -> None:
    """Updates at small rates are left out."""
    plant.on_rate(lambda rate: None if rate < plant.first_rate / 20 else rate)


@defect("weight", "update")
def every_seventh_update_left_out(plant: Plant) -> None:
    """After 50 updates every seventh is left out."""
    plant.on_rate(lambda rate: None if plant.late and (plant.updates + 1) % 7 == 0 else rate)


@defect("weight", "update", "wide masters")
def masters_dropped(plant: Plant) -> None:
    """The weights that the optimizer updates are rounded to bfloat16 after every update."""

    def change() -> None:
        wrapper = getattr(getattr(plant.session, "engine", None), "optimizer", None)
        flat = [*getattr(wrapper, "single_partition_of_fp32_groups", ()),
                *getattr(wrapper, "fp32_partitioned_groups_flat", ())]
        with torch.no_grad():
            for tensor in flat or [tensor for group in plant.groups for tensor in group["params"]]:
                tensor.copy_(tensor.bfloat16())

    plant.after_update(change)


@defect("rate 0", "weight", "update", "gradient", "loss", "ranks")
def rank_1_drifts(plant: Plant) -> None:
    """After 50 updates rank 1's own weights leave those of the others, a little in every update."""

    def change() -> None:
        if plant.late and plant.job.rank == 1:
            with torch.no_grad():
                for _, parameter in plant.session.trained():
                    parameter.data.mul_(1 + 1e-5)

    plant.after_update(change)


# ---- formats and initial weights


@defect("loss", "gradient", before=True)
def other_format(parts: TrainingParts, job: Job) -> Job:
    """float32 runs as bfloat16, everything else as float32."""
    wide = job.precision.autocast is None and job.precision.weights == "float32"
    return replace(job, precision=Bf16Autocast() if wide else Fp32())


@defect("initial weights", before=True)
def other_initial_weights(parts: TrainingParts, job: Job) -> Job:
    """The initial weights are not those of the seed."""
    with torch.no_grad():
        for parameter in parts.model.parameters():
            parameter.mul_(1.0005)
    return job


# ---- evaluation


@defect("evaluation", "rate 0", "weight", "update", "loss")
def work_left_to_the_evaluation(plant: Plant) -> None:
    """A step only stores its batches; the next evaluation trains on them."""
    right, waiting = plant.session.step, []

    def step(batches: Sequence[Batch], rate: float) -> torch.Tensor:
        waiting.append((batches, rate))
        return torch.tensor(2.0)

    def evaluate(before: Callable[..., tuple[float, int]], batches: list[Batch], metric: str) -> tuple[float, int]:
        for kept, rate in waiting:
            right(kept, rate)
        waiting.clear()
        return before(batches, metric)

    plant.session.step = step
    plant.around_evaluation(evaluate)


@defect("evaluation")
def half_of_the_samples_evaluated(plant: Plant) -> None:
    """Half of the samples are evaluated and counted twice."""

    def evaluate(before: Callable[..., tuple[float, int]], batches: list[Batch], metric: str) -> tuple[float, int]:
        halves = [(inputs[:len(targets) // 2], targets[:len(targets) // 2]) for inputs, targets in batches]
        total, _ = before(halves, metric)
        return 2 * total, sum(len(targets) for _, targets in batches)

    plant.around_evaluation(evaluate)


@defect("evaluation")
def samples_lost(plant: Plant) -> None:
    """The last ten samples of every batch are not evaluated."""
    plant.around_evaluation(lambda before, batches, metric: before(
        [(inputs[:-10], targets[:-10]) for inputs, targets in batches], metric))


@defect("evaluation")
def flattering_evaluation(plant: Plant) -> None:
    """The score is 3 % too high."""

    def evaluate(before: Callable[..., tuple[float, int]], batches: Iterable[Batch], metric: str) -> tuple[float, int]:
        total, count = before(batches, metric)
        return total * 1.03, count

    plant.around_evaluation(evaluate)


@defect("evaluation", norm="batch")
def evaluated_in_training_mode(plant: Plant) -> None:
    """The model evaluates with the statistics of the batch."""

    def evaluate(before: Callable[..., tuple[float, int]], batches: Iterable[Batch], metric: str) -> tuple[float, int]:
        model = plant.session.model
        right, model.eval = model.eval, lambda: model.train()
        try:
            return before(batches, metric)
        finally:
            model.eval = right

    plant.around_evaluation(evaluate)


@defect("evaluation")
def stale_weights_evaluated(plant: Plant) -> None:
    """An evaluation uses the weights of the tenth update before."""
    kept: list[list[torch.Tensor]] = []

    def keep() -> None:
        kept.append([parameter.data.clone() for _, parameter in plant.session.trained()])
        del kept[:-10]

    def exchange(values: list[torch.Tensor]) -> list[torch.Tensor]:
        before = [parameter.data.clone() for _, parameter in plant.session.trained()]
        for (_, parameter), value in zip(plant.session.trained(), values, strict=True):
            parameter.data.copy_(value)
        return before

    def evaluate(before: Callable[..., tuple[float, int]], batches: Iterable[Batch], metric: str) -> tuple[float, int]:
        now = exchange(kept[0])
        try:
            return before(batches, metric)
        finally:
            exchange(now)

    plant.after_update(keep)
    plant.around_evaluation(evaluate)


@defect("buffers", "evaluation", norm="batch")
def buffers_of_each_rank(plant: Plant) -> None:
    """Every rank evaluates with its own batch-norm statistics."""
    plant.session.share_buffers = lambda: None


@defect("update", "weight", "buffers", "gradient", "loss", norm="batch")
def left_in_evaluation_mode(plant: Plant) -> None:
    """After an evaluation the model keeps the running statistics in training."""

    def evaluate(before: Callable[..., tuple[float, int]], batches: Iterable[Batch], metric: str) -> tuple[float, int]:
        found = before(batches, metric)
        plant.session.model.eval()
        return found

    plant.around_evaluation(evaluate)

