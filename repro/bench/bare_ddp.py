"""Hand-written DDP training script that the harness is measured against.

Run it by `torchrun --nproc-per-node 2 bare_ddp.py --steps 100`. The network has the layers of the workload `digits`;
the images are random, because only the time matters.
"""

from __future__ import annotations

import argparse
import gc
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

BATCH = 64
IMAGES = 1437


def network() -> nn.Module:
    """Build three convolutions with group normalisation, as in the workload `digits`."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1, bias=False), nn.GroupNorm(4, 32), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1, bias=False), nn.GroupNorm(8, 64), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(64, 128, 3, padding=1, bias=False), nn.GroupNorm(16, 128), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10),
    )


class Trainer:
    """The model, its data and the training loop."""

    def __init__(self, batch: int = BATCH, rate: float = 0.1) -> None:
        rank, world = dist.get_rank(), dist.get_world_size()
        torch.manual_seed(0)
        self.images, self.labels = torch.rand(IMAGES, 1, 8, 8), torch.randint(10, (IMAGES,))
        self.model = DistributedDataParallel(network(), gradient_as_bucket_view=True)
        self.optimizer = torch.optim.SGD(
            self.model.parameters(), lr=rate, momentum=0.9, nesterov=True, weight_decay=5e-4
        )
        self.batch, self.share, self.offset = batch, batch // world, rank * batch // world
        self.order = torch.randperm(IMAGES)
        self.step = 0

    def block(self, steps: int) -> float:
        """Train `steps` steps; return the seconds from barrier to barrier."""
        dist.barrier()
        begin = time.perf_counter()
        for _ in range(steps):
            self.train_step()
        dist.barrier()
        return time.perf_counter() - begin

    def train_step(self) -> None:
        """Train one step: nothing is measured, logged or checked."""
        first = (self.step * self.batch + self.offset) % (IMAGES - self.share)
        chosen = self.order[first:first + self.share]
        self.optimizer.zero_grad()
        loss = nn.functional.cross_entropy(self.model(self.images[chosen]), self.labels[chosen])
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        self.step += 1

    def take_over(self, images: torch.Tensor, labels: torch.Tensor, weights: list[torch.Tensor]) -> None:
        """Train on these data from these weights: arithmetic takes longer on some values, such as subnormal ones."""
        self.images, self.labels = images, labels
        self.order = torch.randperm(IMAGES)
        with torch.no_grad():
            for parameter, weight in zip(self.model.parameters(), weights, strict=True):
                parameter.copy_(weight)

    def close(self) -> None:
        """Release DDP's reducer before its process group ends: in the other order gloo has been seen to hang."""
        del self.model, self.optimizer
        gc.collect()


def main() -> None:
    """Entry of `torchrun`."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    trainer = Trainer()
    seconds = trainer.block(options.steps)
    if dist.get_rank() == 0:
        print(f"{options.steps} steps in {seconds:.3f} s")
    trainer.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
