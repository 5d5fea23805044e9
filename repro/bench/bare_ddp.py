"""A DDP training script as anyone would write it by hand: what the harness is measured against.

Run it by `torchrun --nproc-per-node 2 bare_ddp.py --steps 100`. The network has the layers of the workload `digits`;
the images are random, because only the time is of interest. Rank 0 prints the seconds of each block of steps.
"""

from __future__ import annotations

import argparse
import json
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

BATCH = 64
IMAGES = 1437


def network() -> nn.Module:
    """Three convolutions with group normalisation, as in the workload `digits`."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1, bias=False), nn.GroupNorm(4, 32), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1, bias=False), nn.GroupNorm(8, 64), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(64, 128, 3, padding=1, bias=False), nn.GroupNorm(16, 128), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10),
    )


def train(steps: int, block: int) -> list[float]:
    """Seconds of every block of `block` steps, `steps` steps in all."""
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    images, labels = torch.rand(IMAGES, 1, 8, 8), torch.randint(10, (IMAGES,))
    model = DistributedDataParallel(network(), gradient_as_bucket_view=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=5e-4)
    share = BATCH // world
    seconds = []
    order = torch.randperm(IMAGES)
    for start in range(0, steps, block):
        dist.barrier()
        begin = time.perf_counter()
        for step in range(start, min(start + block, steps)):
            first = (step * BATCH + rank * share) % (IMAGES - share)
            chosen = order[first:first + share]
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images[chosen]), labels[chosen])
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        dist.barrier()
        seconds.append(time.perf_counter() - begin)
    return seconds


def main() -> None:
    """Entry of `torchrun`."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=1)
    parser.add_argument("--block", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    seconds = train(options.steps, options.block)
    if dist.get_rank() == 0:
        print(json.dumps(seconds))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
