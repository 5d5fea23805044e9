"""The sessions behind `planted_defects`: the real DDP session with one thing wrong."""

# No `from __future__ import annotations` here: DDP reads the annotations of a communication hook.
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist

from repro.engines.plain.ddp_session import DdpSession
from repro.engines.plain.session import WARM_UP_STEPS
from repro.engines.precisions import Fp32
from repro.seams.training import Batch, Job, TrainingParts


class Sum(DdpSession):
    """Gradients are summed over ranks where they should be averaged."""

    def __init__(self, parts: TrainingParts, job: Job, bucket_mib: float) -> None:
        super().__init__(parts, job, bucket_mib)
        self.wrapped.register_comm_hook(None, _summed)


def _summed(_: None, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    future = dist.all_reduce(bucket.buffer(), async_op=True).get_future()
    return future.then(lambda done: done.value()[0])


class SkippedBucket(DdpSession):
    """Rank 1 takes part in the reduction of its last bucket and then keeps its own gradients."""

    def __init__(self, parts: TrainingParts, job: Job, bucket_mib: float) -> None:
        super().__init__(parts, job, 0.1)
        self.wrapped.register_comm_hook(job.rank, _skipped)


def _skipped(rank: int, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    own = bucket.buffer().clone()
    future = dist.all_reduce(bucket.buffer().div_(dist.get_world_size()), async_op=True).get_future()
    skip = rank == 1 and bucket.is_last()
    return future.then(lambda done: own if skip else done.value()[0])


class DecayEverywhere(DdpSession):
    """Weight decay reaches biases and norms too, regardless of the optimizer's options."""

    def __init__(self, parts: TrainingParts, job: Job, bucket_mib: float) -> None:
        optimizer = job.optimizer.model_copy(update={"decay": "all"})
        super().__init__(parts, replace(job, optimizer=optimizer), bucket_mib)


class WrongAugmentation(DdpSession):
    """Rank 1 draws its augmentation from another epoch's seed."""

    def __init__(self, parts: TrainingParts, job: Job, bucket_mib: float) -> None:
        right = parts.train_batch
        parts.train_batch = lambda epoch, indices: right(epoch + job.rank, indices)
        super().__init__(parts, job, bucket_mib)


class WrongData(DdpSession):
    """Rank 1 is given each sample's neighbour."""

    def __init__(self, parts: TrainingParts, job: Job, bucket_mib: float) -> None:
        right = parts.train_batch
        parts.train_batch = lambda epoch, indices: right(epoch, (indices + job.rank) % 1437)
        super().__init__(parts, job, bucket_mib)


class OwnBuffers(DdpSession):
    """Every rank evaluates with its own batch-norm statistics."""

    def share_buffers(self) -> None:
        """Ranks share no state."""


class ClipsMicroBatches(DdpSession):
    """Clipping after every micro-batch instead of once, on the mean."""

    def _accumulate(self, batch: Batch, share: int) -> torch.Tensor:
        loss = super()._accumulate(batch, share)
        assert self.job.gradient_clip is not None
        torch.nn.utils.clip_grad_norm_(self.parameters, self.job.gradient_clip)
        return loss


class ClipsTooLate(DdpSession):
    """Clipping when the optimizer has stepped already."""

    def update(self, rate: float) -> None:
        self.set_rate(rate)
        self.optimizer.step()
        assert self.job.gradient_clip is not None
        torch.nn.utils.clip_grad_norm_(self.parameters, self.job.gradient_clip)
        self.clear_gradients()


class Unscaled(DdpSession):
    """Gradients of micro-batches are added up and not divided by their number."""

    def _accumulate(self, batch: Batch, share: int) -> torch.Tensor:
        return super()._accumulate(batch, 1)


class OneRounding(DdpSession):
    """The fifth update after the warm-up goes through bfloat16 once."""

    updates = 0

    def update(self, rate: float) -> None:
        super().update(rate)
        self.updates += 1
        if self.updates == WARM_UP_STEPS + 5:
            with torch.no_grad():
                for parameter in self.parameters:
                    parameter.copy_(parameter.bfloat16())


class NotANumber(DdpSession):
    """The third loss after the warm-up is NaN."""

    seen = 0

    def backward(self, batches: Sequence[Batch]) -> torch.Tensor:
        loss = super().backward(batches)
        self.seen += 1
        return loss * float("nan") if self.seen == WARM_UP_STEPS + 3 else loss


class OtherPrecision(DdpSession):
    """Every precision runs as float32."""

    def __init__(self, parts: TrainingParts, job: Job, bucket_mib: float) -> None:
        super().__init__(parts, replace(job, precision=Fp32()), bucket_mib)


class NarrowWire(DdpSession):
    """Gradients are sent in bfloat16 without a request."""

    def __init__(self, parts: TrainingParts, job: Job, bucket_mib: float) -> None:
        super().__init__(parts, job, bucket_mib)
        self.wrapped.register_comm_hook(None, _narrowed)


def _narrowed(_: None, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    wide = bucket.buffer()
    future = dist.all_reduce(wide.bfloat16().div_(dist.get_world_size()), async_op=True).get_future()
    return future.then(lambda done: wide.copy_(done.value()[0]))


SESSIONS: dict[str, Callable[[TrainingParts, Job, Any], DdpSession]] = {
    "sum": Sum, "decay": DecayEverywhere, "augmentation": WrongAugmentation, "data": WrongData,
    "bucket": SkippedBucket, "buffers": OwnBuffers, "clip-micro": ClipsMicroBatches, "clip-late": ClipsTooLate,
    "unscaled": Unscaled, "bf16": OneRounding, "nan": NotANumber,
    "precision": OtherPrecision, "wire": NarrowWire,
}
