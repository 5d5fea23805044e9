"""The harness's own model of a trial: it evaluates the weights of an engine by a loop that no engine runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from repro.core.random_streams import Streams
from repro.engines.plain.numerics import Numerics
from repro.engines.plain.state import class_of, options_of
from repro.seams.training import Batch, Job, TrainingParts, Workload
from repro.seams.workload import call_model
from repro.suite.model import Trial


class OwnModel:
    """A model built again from the trial's seed.

    Args:
        functions: the workload's functions as they were before the engine started.
    """

    def __init__(self, trial: Trial, job: Job, functions: TrainingParts) -> None:
        self.job, self.functions = job, functions
        self.workload = trial.training.workload.get(Workload)
        self.model = self.workload.build(Streams(trial.master_seed, trial.repeat), job.device).model
        self.numerics = Numerics(job.precision, job.device)
        self.numerics.prepare(self.model)
        self.numerics.cast_parameters(self.model)
        self.model.to(job.device)

    def load(self, weights: Mapping[str, np.ndarray], buffers: Mapping[str, np.ndarray]) -> None:
        """Copy weights, rounded to the type of the model's, and buffers into the model."""
        import torch

        with torch.no_grad():
            for name, parameter in self.model.named_parameters():
                if name in weights:
                    parameter.copy_(torch.from_numpy(weights[name]).view_as(parameter))
            for name, buffer in self.model.named_buffers():
                buffer.copy_(torch.from_numpy(buffers[name]).view_as(buffer))

    def score(self, batches: Iterable[Batch], metric: str) -> tuple[float, int]:
        """Return the sum of `metric` over `batches`, and the number of samples."""
        import torch

        total, samples, score = 0.0, 0, self.functions.scores[metric]
        self.model.eval()
        with torch.no_grad():
            for inputs, targets in batches:
                with self.numerics.autocast():
                    outputs = call_model(self.model, self.numerics.inputs(inputs))
                total += float(score(self.numerics.outputs(outputs), targets))
                samples += len(targets)
        return total, samples

    def describe_optimizer(self) -> dict[str, str]:
        """Return class and hyper-parameters of the requested optimizer, built for this model."""
        named = [(name, parameter) for name, parameter in self.model.named_parameters() if parameter.requires_grad]
        optimizer = self.job.optimizer.build(named)
        return {"optimizer": class_of(optimizer), "optimizer_options": options_of(optimizer)}
