"""A small network learns the handwritten digits, with the Trainer of Lightning: seconds on a processor."""

import argparse

import lightning.pytorch as pl
import torch
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset

from repro.callbacks.lightning import WatchCallback


class Digits(pl.LightningModule):
    """Two linear layers."""

    def __init__(self, lr: float) -> None:
        super().__init__()
        self.lr = lr
        self.network = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))

    def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(self.network(batch[0]), batch[1])

    def validation_step(self, batch: list[torch.Tensor], index: int) -> None:
        scores = self.network(batch[0])
        self.log("val_loss", torch.nn.functional.cross_entropy(scores, batch[1]), sync_dist=True)
        self.log("val_accuracy", (scores.argmax(1) == batch[1]).float().mean(), sync_dist=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=self.lr, momentum=0.9)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--batch", type=int, default=50)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--processes", type=int, default=1)
    options = parser.parse_args()
    pl.seed_everything(options.seed)
    digits = load_digits()
    images = torch.tensor(digits.data, dtype=torch.float32) / 16
    labels = torch.tensor(digits.target)
    train = DataLoader(TensorDataset(images[:1500], labels[:1500]), batch_size=options.batch, shuffle=True)
    test = DataLoader(TensorDataset(images[1500:], labels[1500:]), batch_size=297)
    trainer = pl.Trainer(
        max_epochs=options.epochs, accelerator="cpu", devices=options.processes, logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
        callbacks=[WatchCallback()],  # the only line that repro needs
    )
    trainer.fit(Digits(options.lr), train, test)


if __name__ == "__main__":
    main()
