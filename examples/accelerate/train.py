"""Train a small network on the handwritten digits with Accelerate: seconds on a processor."""

import argparse

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset

from repro.callbacks.accelerate import WatchTracker


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--batch", type=int, default=50)
    parser.add_argument("--epochs", type=int, default=4)
    options = parser.parse_args()
    accelerator = Accelerator(cpu=True, log_with=WatchTracker("val_loss"))  # the tracker is all that repro needs
    set_seed(options.seed)
    digits = load_digits()
    images = torch.tensor(digits.data, dtype=torch.float32) / 16
    labels = torch.tensor(digits.target)
    network = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
    network, optimizer, train, test = accelerator.prepare(
        network, torch.optim.SGD(network.parameters(), lr=options.lr, momentum=0.9),
        # Without a generator of its own the order of the samples depends on the number of processes.
        DataLoader(TensorDataset(images[:1500], labels[:1500]), batch_size=options.batch, shuffle=True,
                   generator=torch.Generator().manual_seed(options.seed)),
        DataLoader(TensorDataset(images[1500:], labels[1500:]), batch_size=297))
    accelerator.init_trackers("digits")  # the training starts here, for repro
    step = 0
    for _ in range(options.epochs):
        for batch, target in train:
            loss = torch.nn.functional.cross_entropy(network(batch), target)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            accelerator.log({"train_loss": loss}, step=step)
        with torch.no_grad():
            batch, target = next(iter(test))
            scores, target = accelerator.gather_for_metrics((network(batch), target))
            accelerator.log({"val_loss": torch.nn.functional.cross_entropy(scores, target)}, step=step)
    # With gloo, a process that leaves its group while a model still uses it may abort (seen with torch 2.13).
    network, optimizer, train, test = accelerator.free_memory(network, optimizer, train, test)
    accelerator.end_training()  # and stops here


if __name__ == "__main__":
    main()
