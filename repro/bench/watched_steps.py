"""The program that `repro bench overhead --program` runs: steps with and without `repro.watch`, in turn.

Run as `python -m repro.bench.watched_steps ARM PAIRS MS FILE`; FILE receives the seconds as JSON.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from repro import watch

WARM_UP = 20
"""Pairs before the first counted one."""


class Work:
    """The same amount of training each time: passes forward and backward through a small network."""

    def __init__(self, milliseconds: float) -> None:
        torch.set_num_threads(1)
        self._network = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 64))
        self._batch = torch.ones(64, 64)
        self._passes = 64
        taken = []
        for _ in range(20):
            begin = time.perf_counter()
            self()
            taken.append(1e3 * (time.perf_counter() - begin))
        self._passes = max(1, round(64 * milliseconds / min(taken)))

    def __call__(self) -> None:
        with torch.enable_grad():
            for _ in range(self._passes):
                self._network(self._batch).sum().backward()
        for parameter in self._network.parameters():
            parameter.grad = None


def _nothing(step: int) -> None:
    """Report of a bare step."""


class Turns:
    """The watched steps, and the time that each took."""

    def __init__(self, pairs: int) -> None:
        self.steps = 2 * (pairs + WARM_UP)
        self.seconds: dict[str, list[float]] = {
            "watched": [], "bare": [], "watched report": [], "watched processor": [], "bare processor": []}
        """Wall-clock time of steps and of reports; processor time of reports and of reporting nothing."""
        self._done = 0
        self._begin = 0.0

    def begin(self) -> None:
        """A step begins."""
        self._begin = time.perf_counter()

    def end(self, report: Callable[[int], object], bare: Callable[[int], object] = _nothing) -> None:
        """Its work is done: report it if it is its turn, and take its time. Which of a pair is first alternates."""
        number, self._done = self._done, self._done + 1
        arm = "watched" if number % 4 in (0, 3) else "bare"
        call = report if arm == "watched" else bare
        called, processor = time.perf_counter(), time.thread_time()
        call(self._done)
        processor = time.thread_time() - processor
        end = time.perf_counter()
        if number >= 2 * WARM_UP:
            self.seconds[arm].append(end - self._begin)
            self.seconds[f"{arm} processor"].append(processor)
            if arm == "watched":
                self.seconds["watched report"].append(end - called)


def plain(turns: Turns, work: Work) -> None:
    """A plain training loop."""
    with watch.run():
        for _ in range(turns.steps):
            turns.begin()
            work()
            turns.end(watch.step)


class _Net(torch.nn.Module):
    """A network of one weight, whose pass does the work."""

    def __init__(self, work: Work) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))
        self._work = work

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        self._work()
        return {"loss": (self.weight * x).sum()}


def huggingface(turns: Turns, work: Work) -> None:
    """The Trainer of Hugging Face with its callback."""
    import tempfile

    from transformers import Trainer, TrainingArguments

    from repro.callbacks.huggingface import WatchCallback

    class Alternating(WatchCallback):
        def on_step_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:
            turns.begin()

        def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
            step_end = super().on_step_end
            turns.end(lambda number: step_end(args, state, control, **others))

    with tempfile.TemporaryDirectory() as folder:
        Trainer(model=_Net(work), train_dataset=[{"x": torch.ones(1)}] * turns.steps, callbacks=[Alternating()],
                args=TrainingArguments(
                    output_dir=folder, per_device_train_batch_size=1, num_train_epochs=1, save_strategy="no",
                    logging_strategy="no", report_to="none", disable_tqdm=True, use_cpu=True)).train()


def accelerate(turns: Turns, work: Work) -> None:
    """A plain training loop whose Accelerator logs every step, to the tracker or to none."""
    from accelerate import Accelerator

    from repro.callbacks.accelerate import WatchTracker

    accelerator = Accelerator(cpu=True, log_with=WatchTracker("val_loss"))
    accelerator.init_trackers("overhead")
    trackers = accelerator.trackers

    def log(step: int) -> None:
        accelerator.log({"train_loss": 1.0}, step=step)

    for number in range(turns.steps):
        accelerator.trackers = trackers if number % 4 in (0, 3) else []
        turns.begin()
        work()
        turns.end(log, log)
    accelerator.trackers = trackers
    accelerator.end_training()


def lightning(turns: Turns, work: Work) -> None:
    """The Trainer of Lightning with its callback."""
    from lightning.pytorch import LightningModule, Trainer

    from repro.callbacks.lightning import WatchCallback

    class Alternating(WatchCallback):
        def on_train_batch_start(self, *others: Any) -> None:
            turns.begin()

        def on_train_batch_end(self, trainer: Any, *others: Any) -> None:
            batch_end = super().on_train_batch_end
            turns.end(lambda number: batch_end(trainer, *others))

    class Module(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = _Net(work)

        def training_step(self, batch: torch.Tensor, index: int) -> Any:
            return self.net(batch)["loss"]

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    trainer = Trainer(max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False,
                      enable_progress_bar=False, enable_model_summary=False, callbacks=[Alternating()])
    samples: Any = torch.ones(turns.steps, 1)
    trainer.fit(Module(), torch.utils.data.DataLoader(samples))


ARMS: dict[str, Callable[[Turns, Work], None]] = {
    "watch": plain, "huggingface": huggingface, "accelerate": accelerate, "lightning": lightning}


if __name__ == "__main__":
    arm, pairs, milliseconds, file = sys.argv[1:]
    taken = Turns(int(pairs))
    ARMS[arm](taken, Work(float(milliseconds)))
    Path(file).write_text(json.dumps(taken.seconds))
