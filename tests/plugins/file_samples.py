"""A workload whose samples are files, read by a `SampleReader`; it writes down what its model was fed.

A sample is 16 bytes of noise and its class; where they begin in their file is drawn by epoch and sample, as a crop is.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from repro.core.errors import TrialError
from repro.core.random_streams import Streams
from repro.seams.training import Batch, DataIdentity, Direction, Fed, Read, SampleReader, TrainingParts, Workload

if TYPE_CHECKING:
    import torch

SHA256 = "f" * 64
TRAIN, HELD_OUT, BYTES, CLASSES = 96, 40, 16, 4


def write_samples(folder: Path) -> None:
    """Write the samples of the training and the evaluation data."""
    folder.mkdir()
    generator = np.random.default_rng(3)
    for number in range(TRAIN + HELD_OUT):
        values = generator.integers(256, size=2 * BYTES, dtype=np.uint8)
        (folder / f"{number}.bin").write_bytes(values.tobytes() + bytes([int(values[0]) * CLASSES // 256]))


class FileReader(SampleReader):
    """Reads one file a sample."""

    def __init__(self, options: FileSamples, streams: Streams) -> None:
        self.options, self.streams = options, streams
        self.described = False

    def open(self) -> str:
        return SHA256

    def draws(self, epoch: int, indices: np.ndarray) -> np.ndarray:
        return self.streams.generator("augmentation", epoch).integers(BYTES, size=TRAIN)[indices]

    def train(self, epoch: int, indices: np.ndarray) -> Read:
        drawn = self.draws(epoch, indices)
        return Read(self._batch(indices, drawn), (indices, drawn))

    def evaluation(self, indices: np.ndarray) -> Batch:
        return self._batch(indices + TRAIN, np.zeros(len(indices), np.int64))

    def _batch(self, numbers: np.ndarray, places: np.ndarray) -> Batch:
        import torch

        self._describe()
        samples = [self._decode(int(number), int(place)) for number, place in zip(numbers, places, strict=True)]
        images = np.stack([values for values, _ in samples]).astype(np.float32) / 256 + 1
        return torch.from_numpy(images), torch.tensor([label for _, label in samples])

    def _decode(self, number: int, place: int) -> tuple[np.ndarray, int]:
        time.sleep(self.options.decode_seconds)
        if number == self.options.bad_sample:
            self._fail(Path(self.options.folder, f"{number}.bin"))
        content = Path(self.options.folder, f"{number}.bin").read_bytes()
        return np.frombuffer(content, np.uint8, BYTES, place), content[-1]

    def _fail(self, path: Path) -> None:
        if self.options.failure == "undecodable":
            raise TrialError(f"{path}: cannot be decoded: 12 of 33 bytes")
        if self.options.failure == "raises":
            raise ValueError("a defect of the reader\nin two lines")
        os.kill(os.getpid(), signal.SIGKILL)

    def _describe(self) -> None:
        """Write once what this process has open, if it is an input worker."""
        if self.described or multiprocessing.parent_process() is None or self.options.told is None:
            return
        self.described = True
        import torch

        opened = []
        for entry in Path("/proc/self/fd").iterdir():
            try:
                opened.append(str(entry.readlink()))
            except OSError:
                continue
        about = {"pid": os.getpid(), "parent": os.getppid(), "threads": torch.get_num_threads(), "opened": opened}
        Path(self.options.told, f"process{os.getpid()}.json").write_text(json.dumps(about))


class FileSamples(Workload):
    """Samples in files."""

    title: ClassVar[str] = "samples in files"
    metrics: ClassVar[Mapping[str, Direction]] = {"top1": "higher"}
    ranges: ClassVar[Mapping[str, tuple[float, float]]] = {"top1": (0.0, 1.0)}
    reads_samples: ClassVar[bool] = True
    synthetic: ClassVar[bool] = True
    reference_samples_per_second: ClassVar[float] = 10000.0

    folder: str
    told: str | None = None
    """Folder in which the model writes the hash of every batch, and input workers what they have open."""
    decode_seconds: float = 0.0
    step_seconds: float = 0.0
    """Time that a forward pass waits, as a host waits for a device that computes."""
    bad_sample: int | None = None
    failure: Literal["undecodable", "raises", "killed"] = "undecodable"

    @property
    def train_samples(self) -> int:
        return TRAIN

    @property
    def eval_samples(self) -> int:
        return HELD_OUT

    def identity(self) -> DataIdentity:
        return DataIdentity("file-samples", "1", SHA256, TRAIN, HELD_OUT, "none", "made up")

    def build(self, streams: Streams, device: str) -> TrainingParts:
        from repro.workloads import classification
        from repro.workloads.reading import InProcess

        reader = FileReader(self, streams)
        batches = InProcess(reader, device)
        return TrainingParts(
            model=classification.initialised(lambda: _net(self), streams), loss=classification.loss,
            scores={"top1": classification.top1}, train_batch=batches.train_batch, eval_batch=batches.eval_batch,
            synthetic_batch=_synthetic, open_data=reader.open, fed=batches.fed, draws=reader.draws, reader=reader,
        )


def _synthetic(count: int) -> Batch:
    import torch

    return torch.zeros(count, BYTES), torch.zeros(count, dtype=torch.long)


def _net(options: FileSamples) -> torch.nn.Module:
    import torch

    class Net(torch.nn.Sequential):
        """Two layers, with dropout: the random numbers of a step must not depend on who reads its input."""

        def forward(self, inputs: Any) -> Any:
            if self.training and float(inputs.detach().abs().sum()):  # a warm-up is fed zeros
                time.sleep(options.step_seconds)
                if options.told is not None:
                    line = hashlib.sha256(inputs.numpy().tobytes()).hexdigest()
                    with Path(options.told, f"fed{os.environ['RANK']}.txt").open("a") as stream:
                        stream.write(f"{line}\n")
            return super().forward(inputs)

    return Net(torch.nn.Linear(BYTES, 32), torch.nn.ReLU(), torch.nn.Dropout(0.1), torch.nn.Linear(32, CLASSES))


__all__ = ["BYTES", "Fed", "FileSamples", "write_samples"]
