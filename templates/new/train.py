"""A training script that knows nothing of repro: it takes options, trains, and prints what it reaches.

Replace it by yours. What matters is one line per evaluation, printed at once (flush), with a step and the quality.
With the program's own clock (train_time: training alone, no evaluation) repro checks that clock against its own.
"""

import argparse
import time

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional

options = argparse.ArgumentParser()
options.add_argument("--lr", type=float, required=True)
options.add_argument("--seed", type=int, required=True)
options.add_argument("--batch", type=int, required=True)
options.add_argument("--steps", type=int, default=400)
args = options.parse_args()

torch.manual_seed(args.seed)  # each trial gets a seed of its own: use it for everything random
order = np.random.default_rng(args.seed)
pixels, digits = load_digits(return_X_y=True)
images, labels = torch.tensor(pixels / 16.0, dtype=torch.float32), torch.tensor(digits)
test = torch.arange(len(labels)) % 5 == 0  # never trained on
model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)


@torch.no_grad()
def accuracy() -> float:
    return (model(images[test]).argmax(dim=1) == labels[test]).float().mean().item()


print("training begins", flush=True)
trained_s = 0.0
for step in range(1, args.steps + 1):
    began = time.perf_counter()
    chosen = torch.from_numpy(order.choice(np.flatnonzero(~test.numpy()), args.batch, replace=False))
    optimizer.zero_grad()
    functional.cross_entropy(model(images[chosen]), labels[chosen]).backward()
    optimizer.step()
    trained_s += time.perf_counter() - began
    if step % 20 == 0:
        print(f"step:{step} accuracy:{accuracy():.4f} train_time:{trained_s:.4f}s", flush=True)
