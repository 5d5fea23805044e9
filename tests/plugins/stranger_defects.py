"""Thirty defects, written by somebody who had not read the checks; `plant` says how to add one.

Those said to begin late begin after 70 updates, warm-up included. In one sentence each:

Data, loss and gradients
 1. ranks-share-a-batch: late, rank 1 trains on rank 0's batches (a sampler that was not told its rank).
 2. targets-swapped: late, the last two targets of every micro-batch are exchanged (inputs and targets out of step).
 3. class-zero-ignored: the loss leaves out class 0, as if it were padding (`ignore_index`).
 4. hard-half-only: late, only the harder half of each micro-batch is back-propagated; the loss told is the full one.
 5. first-loss-told: late, the loss told is that of the first micro-batch alone; training itself is right.
 6. gradient-noise: late, every rank adds its own noise of a twentieth of a gradient's deviation.
 7. gradients-a-step-late: late, rank 1 contributes its gradients of the step before.
 8. small-gradients-flushed: gradients below the smallest normal number of float16 become zero.
Averaging and clipping
 9. one-rank-now-and-then: late, every third step uses rank 0's gradient alone.
10. first-micro-batch-overwritten: late, the last micro-batch's gradient replaces the sum.
11. clip-limit-doubled: late, the limit of clipping is twice the requested one.
12. clipped-before-averaging: every rank clips each tensor's gradient of each micro-batch before it is averaged.
Optimizer state, rate, precision, buffers
13. momentum-partly-lost: late, every tenth update clears half of the last momentum buffer.
14. momentum-in-bfloat16: late, the momentum is rounded to bfloat16 after every update.
15. decay-ends: late, there is no weight decay any more.
16. one-group-faster: late, the last parameter group's rate is 5 % too large.
17. rate-in-bfloat16: the rate is rounded to bfloat16.
18. forward-in-bfloat16: late, training (not evaluation) multiplies matrices in bfloat16.
19. batch-norm-freezes: late, batch norm trains with its running statistics and does not update them.
Evaluation
20. evaluation-averages-shifts: evaluation averages over an image and the one shifted by a pixel.
21. near-ties-count: late, a sample counts as correct if the right class is nearly the best.
22. average-evaluated: late, evaluations use a running average of the weights.
Time
23. evaluation-repeated: late, every second evaluation is not done and returns the best result so far.
24. evaluation-extrapolated: late, half of each evaluation batch is scored and counted twice.
25. step-returns-early: late, a step returns before its work is done, which goes on in a thread; the loss is an old one.
26. steps-left-out: late, every sixth step does nothing and tells the last loss.
27. augmentation-cached: from the third epoch on the second one's augmented samples are used again.
28. data-opened-early: the data are opened before the clock starts.
29. clock-slow: late, the process's clocks run 10 % slow.
30. warm-up-trains: the warm-up also trains ten steps, on evaluation samples.
"""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from plant import Plant, defect
from torch.nn.functional import cross_entropy

from repro.seams.training import Batch, Job, TrainingParts

BEGINS = 72
"""Updates, the warm-up's two included, after which a late defect begins."""


def _late(plant: Plant) -> bool:
    return plant.updates >= BEGINS


# ---- data, loss and gradients


@defect("input", "loss", "gradient")
def ranks_share_a_batch(plant: Plant) -> None:
    """After 70 updates rank 1 trains on rank 0's batches."""

    def change(batches: Sequence[Batch]) -> Sequence[Batch]:
        if not _late(plant):
            return batches
        shared = [(inputs.clone(), targets.clone()) for inputs, targets in batches]
        for inputs, targets in shared:
            dist.broadcast(inputs, src=0)
            dist.broadcast(targets, src=0)
        return shared

    plant.on_batches(change)


@defect("loss", "gradient")
def targets_swapped(plant: Plant) -> None:
    """After 70 updates the last two targets of every micro-batch are exchanged."""

    def change(batches: Sequence[Batch]) -> Sequence[Batch]:
        if not _late(plant):
            return batches
        return [(inputs, torch.cat([targets[:-2], targets[-2:].flip(0)])) for inputs, targets in batches]

    plant.on_batches(change)


@defect("loss", "gradient")
def class_zero_ignored(plant: Plant) -> None:
    """The loss leaves out class 0, as if it were padding."""
    plant.session.parts.loss = lambda outputs, targets: cross_entropy(outputs.float(), targets, ignore_index=0)


@defect("gradient")
def hard_half_only(plant: Plant) -> None:
    """After 70 updates only the harder half of each micro-batch is back-propagated; the loss told is the full one."""

    def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        each = cross_entropy(outputs.float(), targets, reduction="none")
        if not _late(plant):
            return each.mean()
        hard = each.topk(max(1, len(each) // 2)).values.mean()
        return each.mean().detach() + hard - hard.detach()

    plant.session.parts.loss = loss


@defect("loss")
def first_loss_told(plant: Plant) -> None:
    """After 70 updates the loss told is that of the first micro-batch alone."""
    losses: list[torch.Tensor] = []
    one, all_ = plant.session.micro_loss, plant.session.backward

    def micro_loss(batch: Batch) -> torch.Tensor:
        found: torch.Tensor = one(batch)
        losses.append(found.detach())
        return found

    def backward(batches: Sequence[Batch]) -> Any:
        losses.clear()
        mean = all_(batches)
        return losses[0] if _late(plant) else mean

    plant.session.micro_loss, plant.session.backward = micro_loss, backward


@defect("gradient")
def gradient_noise(plant: Plant) -> None:
    """After 70 updates every rank adds noise of a twentieth of a gradient's deviation."""
    generator = torch.Generator().manual_seed(plant.job.rank)

    def change(_: str, gradient: torch.Tensor) -> torch.Tensor:
        if not _late(plant) or gradient.numel() < 2:
            return gradient
        return gradient + torch.randn(gradient.shape, generator=generator) * gradient.std() / 20

    plant.on_gradients(change)


@defect("gradient")
def gradients_a_step_late(plant: Plant) -> None:
    """After 70 updates rank 1 contributes its gradients of the step before."""
    kept: dict[str, list[torch.Tensor]] = {}

    def change(name: str, gradient: torch.Tensor) -> torch.Tensor:
        if plant.job.rank != 1 or plant.updates < 2:
            return gradient
        before = kept.setdefault(name, [])
        before.append(gradient.detach().clone())
        if len(before) <= plant.job.accumulation:
            return gradient
        old = before.pop(0)
        return old if _late(plant) else gradient

    plant.on_gradients(change)


@defect("gradient")
def small_gradients_flushed(plant: Plant) -> None:
    """Gradients below the smallest normal number of float16 become zero."""
    least = torch.finfo(torch.float16).tiny
    plant.on_gradients(lambda _, gradient: gradient * (gradient.abs() >= least))


# ---- averaging and clipping


@defect("gradient")
def one_rank_now_and_then(plant: Plant) -> None:
    """After 70 updates every third step uses rank 0's gradient alone."""

    def change(_: str, gradient: torch.Tensor) -> torch.Tensor:
        if not _late(plant) or plant.updates % 3:
            return gradient
        return gradient * (plant.job.world if plant.job.rank == 0 else 0)

    plant.on_gradients(change)


@defect("gradient")
def first_micro_batch_overwritten(plant: Plant) -> None:
    """After 70 updates the last micro-batch's gradient replaces the sum of all."""
    calls: dict[str, int] = {}

    def change(name: str, gradient: torch.Tensor) -> torch.Tensor:
        calls[name] = calls.get(name, 0) + 1
        if not _late(plant):
            return gradient
        last = calls[name] % plant.job.accumulation == 0
        return gradient * (plant.job.accumulation if last else 0)

    plant.on_gradients(change)


@defect("weight", "update")
def clip_limit_doubled(plant: Plant) -> None:
    """After 70 updates the limit of clipping is twice the requested one."""

    def change() -> None:
        if plant.updates == BEGINS and plant.job.gradient_clip is not None:
            limit = 2 * plant.job.gradient_clip
            wrapper = getattr(getattr(plant.session, "engine", None), "optimizer", None)
            if wrapper is not None:
                wrapper.clip_grad = limit
            plant.session.job = replace(plant.session.job, gradient_clip=limit)

    plant.after_update(change)


@defect("gradient")
def clipped_before_averaging(plant: Plant) -> None:
    """Every rank clips each tensor's gradient of each micro-batch before it is averaged."""
    limit = (plant.job.gradient_clip or 1.0) / 8

    def change(_: str, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * (limit / gradient.norm().clamp(min=limit))

    plant.on_gradients(change)


# ---- optimizer state, rate, precision, buffers


def _moments(plant: Plant) -> Iterator[torch.Tensor]:
    """Return this rank's parts of the optimizer's state."""
    for state in plant.session.optimizer.state.values():
        for value in state.values():
            if isinstance(value, torch.Tensor) and value.ndim:
                yield value.to_local() if hasattr(value, "to_local") else value


@defect("weight", "update", "optimizer")
def momentum_partly_lost(plant: Plant) -> None:
    """After 70 updates every tenth clears half of the last momentum buffer."""

    def change() -> None:
        found = list(_moments(plant))
        if _late(plant) and plant.updates % 10 == 0 and found:
            last = found[-1].view(-1)
            last[: len(last) // 2].zero_()

    plant.after_update(change)


@defect("weight", "update", "optimizer")
def momentum_in_bfloat16(plant: Plant) -> None:
    """After 70 updates the momentum is rounded to bfloat16 after every update."""

    def change() -> None:
        if _late(plant):
            for value in _moments(plant):
                value.copy_(value.bfloat16())

    plant.after_update(change)


@defect("weight", "update", "optimizer")
def decay_ends(plant: Plant) -> None:
    """After 70 updates there is no weight decay any more."""

    def change() -> None:
        if _late(plant):
            for group in plant.groups:
                group["weight_decay"] = 0.0

    plant.after_update(change)


@defect("weight", "update")
def one_group_faster(plant: Plant) -> None:
    """After 70 updates the last parameter group's rate is 5 % too large."""
    before = plant.session.set_rate

    def set_rate(rate: float) -> None:
        before(rate)
        if _late(plant):
            plant.groups[-1]["lr"] = rate * 1.05

    plant.session.set_rate = set_rate


@defect("weight", "update")
def rate_in_bfloat16(plant: Plant) -> None:
    """The rate is rounded to bfloat16."""
    plant.on_rate(lambda rate: float(torch.tensor(rate).bfloat16()))


@defect("loss", "gradient")
def forward_in_bfloat16(plant: Plant) -> None:
    """After 70 updates training, not evaluation, multiplies matrices in bfloat16."""
    before = plant.session.model.forward

    def forward(*inputs: Any, **named: Any) -> Any:
        if not (_late(plant) and plant.session.model.training):
            return before(*inputs, **named)
        with torch.autocast(plant.session.device.type, dtype=torch.bfloat16):
            return before(*inputs, **named)

    plant.session.model.forward = forward


@defect("buffer", "loss", "gradient", workload="batch")
def batch_norm_freezes(plant: Plant) -> None:
    """After 70 updates batch norm trains with its running statistics and does not update them."""

    def change(batches: Sequence[Batch]) -> Sequence[Batch]:
        if _late(plant):
            for module in plant.session.model.modules():
                if isinstance(module, torch.nn.modules.batchnorm._BatchNorm):
                    module.eval()
        return batches

    plant.on_batches(change)


# ---- evaluation


@defect("evaluation")
def evaluation_averages_shifts(plant: Plant) -> None:
    """Evaluation averages over an image and the one shifted by a pixel."""
    before = plant.session.forward

    def forward(inputs: Any) -> Any:
        if plant.session.model.training:
            return before(inputs)
        both = before(inputs).softmax(-1), before(inputs.roll(1, -1)).softmax(-1)
        return torch.stack(both).mean(0).log()

    plant.session.forward = forward


@defect("evaluation")
def near_ties_count(plant: Plant) -> None:
    """After 70 updates a sample counts as correct if the right class is nearly the best."""
    right = plant.session.parts.scores

    def top1(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        if not _late(plant):
            found: torch.Tensor = right["top1"](outputs, targets)
            return found
        own = outputs.gather(1, targets[:, None].long())[:, 0]
        return (own >= outputs.max(1).values - 0.3).sum()

    plant.session.parts.scores = {**right, "top1": top1}


def _computed_with(plant: Plant) -> list[torch.Tensor]:
    """Return the tensors of weights with which this rank computes."""
    found = []
    for _, parameter in plant.session.trained():
        if hasattr(parameter, "to_local"):
            found.append(parameter.to_local().detach())
            continue
        if hasattr(parameter, "ds_tensor"):
            found.append(parameter.ds_tensor.data)
            if parameter.data.numel() != parameter.ds_numel:
                continue
        found.append(parameter.data)
    return found


@defect("evaluation")
def average_evaluated(plant: Plant) -> None:
    """After 70 updates evaluations use a running average of the weights."""
    average: list[torch.Tensor] = []

    def follow() -> None:
        if not _late(plant):
            return
        now = _computed_with(plant)
        if not average:
            average.extend(tensor.clone() for tensor in now)
        for mean, tensor in zip(average, now, strict=True):
            mean.lerp_(tensor, 0.1)

    def evaluate(before: Callable[..., tuple[float, int]], batches: list[Batch], metric: str) -> tuple[float, int]:
        if not average:
            return before(batches, metric)
        own = _computed_with(plant)
        kept = [tensor.clone() for tensor in own]
        for tensor, mean in zip(own, average, strict=True):
            tensor.copy_(mean)
        found = before(batches, metric)
        for tensor, value in zip(own, kept, strict=True):
            tensor.copy_(value)
        return found

    plant.after_update(follow)
    plant.around_evaluation(evaluate)


# ---- time


@defect("evaluation")
def evaluation_repeated(plant: Plant) -> None:
    """After 70 updates every second evaluation is not done and returns the best result so far."""
    found: list[tuple[float, int]] = []
    late: list[int] = []

    def evaluate(before: Callable[..., tuple[float, int]], batches: list[Batch], metric: str) -> tuple[float, int]:
        if _late(plant) and found:
            late.append(1)
            if len(late) % 2:
                return max(found)
        found.append(before(batches, metric))
        return found[-1]

    plant.around_evaluation(evaluate)


@defect("evaluation")
def evaluation_extrapolated(plant: Plant) -> None:
    """After 70 updates half of each evaluation batch is scored and counted twice."""

    def evaluate(before: Callable[..., tuple[float, int]], batches: list[Batch], metric: str) -> tuple[float, int]:
        if not _late(plant):
            return before(batches, metric)
        samples = sum(len(targets) for _, targets in batches)
        halves = [(inputs[: (len(targets) + 1) // 2], targets[: (len(targets) + 1) // 2])
                  for inputs, targets in batches]
        score, seen = before(halves, metric)
        return round(score * samples / seen), samples

    plant.around_evaluation(evaluate)


@defect("time", "loss")
def step_returns_early(plant: Plant) -> None:
    """After 70 updates a step returns before its work is done, which goes on in a thread."""
    session, pool = plant.session, ThreadPoolExecutor(1)
    waiting: list[Future[Any]] = []
    last: list[Any] = []
    owner = threading.main_thread()

    def wait() -> None:
        if waiting and threading.current_thread() is owner:
            last[:] = [waiting.pop().result()]

    before = session.step

    def step(batches: Sequence[Batch], rate: float) -> Any:
        wait()
        if not _late(plant) or not last:
            last[:] = [before(batches, rate)]
            return last[0]
        waiting.append(pool.submit(before, batches, rate))
        return last[0]

    session.step = step
    for name in ("backward", "update", "evaluate", "evaluated", "total", "gather", "synchronize", "gradients",
                 "weights", "held", "buffers", "effective", "save", "load", "close", "traffic"):
        def call(*args: Any, method: Callable[..., Any] = getattr(session, name), **named: Any) -> Any:  # noqa: B008
            wait()
            return method(*args, **named)

        setattr(session, name, call)


@defect("loss", "weight", "update")
def steps_left_out(plant: Plant) -> None:
    """After 70 updates every sixth step does nothing and tells the last loss."""
    before, last, calls = plant.session.step, [], [0]

    def step(batches: Sequence[Batch], rate: float) -> Any:
        calls[0] += 1
        if _late(plant) and last and calls[0] % 6 == 0:
            return last[0]
        last[:] = [before(batches, rate)]
        return last[0]

    plant.session.step = step


@defect("input", before=True)
def augmentation_cached(parts: TrainingParts, job: Job) -> Job:
    """From the third epoch on the second one's augmented samples are used again."""
    right = parts.train_batch
    parts.train_batch = lambda epoch, indices: right(min(epoch, 1), indices)
    return job


@defect("time", before=True)
def data_opened_early(parts: TrainingParts, job: Job) -> Job:
    """The data are opened before the clock starts."""
    opened = parts.open_data()
    parts.open_data = lambda: opened
    return job


@defect("time")
def clock_slow(plant: Plant) -> None:
    """After 70 updates the process's clocks run 10 % slow."""

    def slow(name: str) -> None:
        clock = getattr(time, name)
        first = clock()

        def slower() -> Any:
            passed = clock() - first
            return first + (passed * 9 // 10 if isinstance(passed, int) else passed * 0.9)

        # Also where it was imported by name, or kept by an object.
        for holder in gc.get_referrers(clock):
            if isinstance(holder, dict):
                holder.update({key: slower for key, value in [*holder.items()] if value is clock})
            for key in (*getattr(holder, "__dict__", ()), *getattr(type(holder), "__slots__", ())):
                if getattr(holder, key, None) is clock:
                    object.__setattr__(holder, key, slower)
        setattr(time, name, slower)

    def change() -> None:
        if plant.updates == BEGINS:
            for name in ("perf_counter", "perf_counter_ns", "monotonic", "monotonic_ns", "time", "time_ns"):
                slow(name)

    plant.after_update(change)


@defect("initial weights", "start")
def warm_up_trains(plant: Plant) -> None:
    """The warm-up also trains ten steps, on evaluation samples."""
    session, job, before = plant.session, plant.job, plant.session.warm_up

    def warm_up(batches: Sequence[Batch]) -> None:
        before(batches)
        with suppress(Exception):
            session.parts.open_data()
        for index in range(10):
            first = (index * job.world + job.rank) * job.micro_batch
            batch = session.parts.eval_batch(np.arange(first, first + job.micro_batch) % 360)
            session.step([batch] * job.accumulation, 0.02)

    session.warm_up = warm_up
