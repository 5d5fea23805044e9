"""Small logs and records in the speed-run's forms of all years, made up for the tests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

RULE = "=" * 100 + "\n"
PROGRAM = "import torch\nprint(f'step:{step}/{total} val_loss:{loss} train_time:{ms}ms step_avg:{avg}ms')\n"
LOSSES = (3.2784, 3.2771, 3.2777, 3.2790, 3.2794, 3.2783)
TIMES = (80.70, 80.75, 80.81, 80.66, 80.72, 80.69)


@dataclass(frozen=True)
class Box:
    """The machine that a log names."""

    gpus: int = 8
    bus: int = 0x10
    driver: str = "580.1"
    started: str = "Fri Jul 17 11:47:52 2026"

    def block(self) -> str:
        rows = "".join(
            f"|   {index}  NVIDIA H100 80GB HBM3          On  |   00000000:{self.bus + index:02X}:00.0 Off |      0 |\n"
            f"| N/A   40C    P0            120W /  700W |    1521MiB /  81559MiB |      0%      Default |\n"
            for index in range(self.gpus))
        return (f"Running Python 3.12.3 (main) [GCC 13.3.0]\nRunning PyTorch 2.10.0+cu128 compiled for CUDA 12.8\n"
                f"Running Triton version 3.6.0\n{self.started}       \n"
                f"| NVIDIA-SMI {self.driver}    Driver Version: {self.driver}    CUDA Version: 13.0     |\n{rows}")


@dataclass(frozen=True)
class Run:
    """One run; its log is `text()`."""

    loss: float | str = 3.2784
    seconds: float = 80.7
    steps: int = 200
    every: int = 100
    unit: str = "ms"
    warm: bool = False
    """The clock restarts after ten steps whose average is nan, as until 2025."""
    program: str = PROGRAM
    box: Box | None = Box()

    def text(self) -> str:
        head = "" if self.box is None else f"{self.program}{RULE}{self.box.block()}{RULE}Resetting Model\n"
        return head + "".join(self.lines())

    def lines(self) -> list[str]:
        found = []
        for step in range(self.steps + 1):
            early = self.warm and step <= 10
            at = 74.0 + step / 1e3 if early else self.seconds * step / self.steps
            average = "nanms" if early else f"{1e3 * self.seconds / self.steps:.2f}ms"
            shown = f"{at * 1e3:.0f}ms" if self.unit == "ms" else f"{at:.3f}s"
            train = f"train_loss:{5 - step / 100:.4f} " if self.warm else ""
            if step:
                found.append(f"step:{step}/{self.steps} {train}train_time:{shown} step_avg:{average}\n")
            if step % self.every == 0 or step == self.steps:
                loss = self.loss if step == self.steps else 10.8 - 7 * step / self.steps
                found.append(f"step:{step}/{self.steps} val_loss:{loss} train_time:{shown} step_avg:{average}\n")
        return [*found, "peak memory allocated: 29249 MiB reserved: 50528 MiB\n"]


def arm(folder: Path, runs: Sequence[Run]) -> Path:
    """Write one log a run."""
    folder.mkdir(parents=True, exist_ok=True)
    for index, run in enumerate(runs):
        (folder / f"{index:08d}.txt").write_text(run.text())
    return folder


def runs(
    losses: Sequence[float | str] = LOSSES, times: Sequence[float] = TIMES, **others: object
) -> list[Run]:
    """Make one run for each loss and time."""
    return [replace(Run(**others), loss=loss, seconds=time)  # type: ignore[arg-type]
            for loss, time in zip(losses, times, strict=True)]


def scaled(factor: float, times: Sequence[float] = TIMES) -> list[float]:
    """Return the times of an arm that takes `factor` as long."""
    return [round(time * factor, 3) for time in times]
