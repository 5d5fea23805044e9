"""Defects of gradients, data, updates and formats; `plant` says how to add one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from plant import DEFECTS, LATE, Plant, defect

from repro.engines.precisions import Bf16Autocast, Fp32
from repro.optimizers.rules import AdamW
from repro.seams.training import Batch, Job, TrainingParts

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


def _tokens(outputs: Any, targets: torch.Tensor) -> torch.Tensor:
    """Return the loss summed over all tokens."""
    return torch.nn.functional.cross_entropy(outputs["logits"].transpose(1, 2), targets, reduction="sum")


@defect("loss", "gradient", workload="ragged")
def averaged_over_tokens(plant: Plant) -> None:
    """Each micro-batch averages over its tokens, so that a short sequence counts less than a long one."""
    plant.session.parts.loss = lambda outputs, targets: _tokens(outputs, targets) / (targets >= 0).sum()


@defect("loss", "gradient", workload="ragged")
def accumulated_over_tokens(plant: Plant) -> None:
    """A step averages over the tokens of its micro-batches together."""
    counts = [1.0]

    def change(batches: Sequence[Batch]) -> Sequence[Batch]:
        counts[0] = sum(int((targets >= 0).sum()) for _, targets in batches) / len(batches)
        return batches

    plant.on_batches(change)
    plant.session.parts.loss = lambda outputs, targets: _tokens(outputs, targets) / counts[0]


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
    """At update 52 the momentum is cleared."""

    def change() -> None:
        if plant.updates == LATE + 2:
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


@defect("start", "weight", "update", "wide masters")  # start: the warm-up itself sees that its steps change weights
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


import evaluation_defects  # noqa: E402  # registers its own
import late_defects  # noqa: E402  # registers its own
import outside_defects  # noqa: E402  # registers its own
import passing_defects  # noqa: E402  # registers its own
import stranger_defects  # noqa: E402  # registers its own
import unread_defects  # noqa: E402  # registers its own

__all__ = ["DEFECTS", "Plant", "evaluation_defects", "late_defects", "outside_defects", "passing_defects",
           "stranger_defects", "unread_defects"]
