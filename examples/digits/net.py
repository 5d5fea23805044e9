from typing import ClassVar

from repro.core.random_streams import Streams
from repro.seams.training import TrainingParts
from repro.workloads.digits import DigitsWorkload


class Net(DigitsWorkload):
    title: ClassVar[str] = "handwritten digits, my network"
    reference_samples_per_second: ClassVar[float] = 50_000.0
    width: int = 128
    augment: bool = False

    def build(self, streams: Streams, device: str) -> TrainingParts:
        from torch import nn

        def make() -> nn.Module:
            return nn.Sequential(nn.Flatten(), nn.Linear(64, self.width), nn.ReLU(), nn.Linear(self.width, 10))

        return self.parts(make, streams, device)
