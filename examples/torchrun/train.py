"""A plain script for torchrun: two ranks train a small network on made-up spirals. It knows nothing of repro."""

import argparse
import math
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def spirals(count: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Return points [count, 2] of two interleaved spirals, and which of the two each is of [count]."""
    label = torch.arange(count) % 2
    turn = torch.rand(count, generator=generator) * 2.5 * math.pi + 0.5
    angle = turn + label * math.pi
    points = torch.stack((turn * angle.cos(), turn * angle.sin()), dim=1) / 8
    return points + 0.01 * torch.randn(points.shape, generator=generator), label


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--batch", type=int, default=12288)
    parser.add_argument("--steps", type=int, default=120)
    options = parser.parse_args()

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(options.seed)
    model = DistributedDataParallel(nn.Sequential(
        nn.Linear(2, 96), nn.Tanh(), nn.Linear(96, 96), nn.Tanh(), nn.Linear(96, 2)))
    optimizer = torch.optim.Adam(model.parameters(), lr=options.lr)
    held_out, answers = spirals(1000, torch.Generator().manual_seed(1))
    draw = torch.Generator().manual_seed(options.seed * world + rank)

    begin = time.perf_counter()
    for step in range(1, options.steps + 1):
        points, labels = spirals(options.batch // world, draw)
        loss = nn.functional.cross_entropy(model(points), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0 and rank == 0:
            with torch.no_grad():
                right = (model.module(held_out).argmax(1) == answers).float().mean()
            print(f"step {step} accuracy {right:.4f} seconds {time.perf_counter() - begin:.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
