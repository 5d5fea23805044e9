"""A small network with one oddity at a time that is no defect: what its inputs are, and what its model keeps."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from repro.core.random_streams import Streams
from repro.seams.training import Batch, DataIdentity, Direction, TrainingParts, Workload

TRAIN, HELD_OUT, FEATURES, CLASSES, WIDTH = 512, 64, 12, 4, 32


class OddModel(Workload):
    """Rows of noise in four classes."""

    title: ClassVar[str] = "rows of noise, an odd network"
    unit: ClassVar[str] = "rows"
    metrics: ClassVar[Mapping[str, Direction]] = {"top1": "higher"}
    ranges: ClassVar[Mapping[str, tuple[float, float]]] = {"top1": (0.0, 1.0)}
    synthetic: ClassVar[bool] = True
    reference_samples_per_second: ClassVar[float] = 10000.0
    eval_batch_size: ClassVar[int] = 64

    case: str = "plain"

    @property
    def train_samples(self) -> int:
        return TRAIN

    @property
    def eval_samples(self) -> int:
        return HELD_OUT

    def _rows(self) -> tuple[np.ndarray, np.ndarray]:
        generator = np.random.default_rng(0)
        rows = generator.standard_normal((TRAIN + HELD_OUT, FEATURES)).astype(np.float32)
        classes = (rows @ generator.standard_normal((FEATURES, CLASSES))).argmax(1)
        if self.case == "missing values":
            rows[:, 3] = np.nan
        return rows, classes

    def identity(self) -> DataIdentity:
        digest = hashlib.sha256(self._rows()[0].tobytes()).hexdigest()
        return DataIdentity("odd", "1", digest, TRAIN, HELD_OUT, "none: no data", "computed")

    def build(self, streams: Streams, device: str) -> TrainingParts:
        import torch
        from torch.nn import functional

        from repro.workloads import classification

        data: list[torch.Tensor] = []

        def open_data() -> str:
            rows, classes = self._rows()
            data[:] = [torch.from_numpy(rows).to(device), torch.from_numpy(classes).to(device)]
            return hashlib.sha256(rows.tobytes()).hexdigest()

        def batch(rows: torch.Tensor, classes: torch.Tensor) -> Batch:
            inputs: Any = {"mask": {"mask": torch.ones(1, FEATURES, device=device), "rows": rows},
                           "edges": {"edges": torch.zeros(7, 2, device=device), "rows": rows},
                           "steps first": rows[None].expand(5, -1, -1).contiguous()}.get(self.case, rows)
            return inputs, classes

        def of(indices: np.ndarray) -> Batch:
            chosen = torch.from_numpy(np.asarray(indices)).to(device)
            return batch(data[0][chosen], data[1][chosen])

        def top1(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
            return (outputs.argmax(1) == targets).sum()

        def unfinished(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
            raise NotImplementedError("a metric that this trial does not use")

        return TrainingParts(
            model=classification.initialised(lambda: network(self.case), streams), loss=functional.cross_entropy,
            scores={"top1": top1, "unfinished": unfinished}, train_batch=lambda epoch, indices: of(indices),
            eval_batch=lambda indices: of(indices + TRAIN), open_data=open_data,
            synthetic_batch=lambda n: batch(torch.zeros(n, FEATURES, device=device),
                                            torch.zeros(n, dtype=torch.long, device=device)))


class StatefulModel(OddModel):
    """A network that keeps more than weights and buffers, and says so."""

    repeatable: ClassVar[bool] = False


def network(case: str) -> Any:
    import torch
    from torch import nn

    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last, self.passes = nn.Linear(FEATURES, WIDTH), nn.Linear(WIDTH, CLASSES), 0
            if case == "teacher":
                self.teacher = nn.Linear(FEATURES, WIDTH).requires_grad_(False)
            if case == "running mean":
                self.register_buffer("mean", torch.zeros(FEATURES))
            if case == "sparse":
                self.table = nn.Embedding(50, WIDTH, sparse=True)

        def forward(self, rows: torch.Tensor, mask: Any = None, edges: Any = None) -> torch.Tensor:
            rows = rows.mean(0) if case == "steps first" else torch.nan_to_num(rows)
            if case == "in place":
                rows.mul_(0.9)
            if case == "running mean":
                before = rows - self.mean
                if self.training:
                    with torch.no_grad():
                        self.mean.mul_(0.9).add_(0.1 * rows.mean(0))
                rows = before
            hidden = self.first(rows if mask is None else rows * mask)
            if case == "teacher":
                with torch.no_grad():
                    for theirs, own in zip(self.teacher.parameters(), self.first.parameters(), strict=True):
                        theirs.lerp_(own, 0.1 * self.training)
                hidden = hidden + 0.5 * self.teacher(rows)
            if case == "sparse":
                hidden = hidden + self.table((10 * rows[:, 0].abs()).long().clamp(max=49))
            if case == "counter":
                self.passes += self.training
                hidden = hidden * (1 + 1 / (1 + self.passes / 20))
            return self.last(hidden.relu())

    return Odd()
