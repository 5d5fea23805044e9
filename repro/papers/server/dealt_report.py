"""The final report of a trial whose workers did not train in lock step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from repro.record.log.schema import (
    ControllerReading,
    EffectiveSettings,
    FactsGathered,
    FinalFacts,
    Hashes,
    ModelStated,
    ServerProtocol,
)
from repro.seams.training import Fed, TrainingParts
from repro.worker.context import TrialContext
from repro.worker.input.data_audit import BatchSplit, DataAudit, Tally
from repro.worker.input.data_order import DataOrder
from repro.worker.input.trial_input import DirectInput
from repro.worker.own_model import OwnModel
from repro.worker.rank_weights import wide_share
from repro.worker.report.final_report import log_consumed, log_controller, log_memory_of, log_traffic_of
from repro.worker.report.model_report import describe_model
from repro.worker.weights import weights_sha256


class DealtAudit(DataAudit):
    """Compares what this worker consumed with what the seed has at the places that it was dealt."""

    def __init__(self, parts: TrainingParts, order: DataOrder, split: BatchSplit, train_samples: int) -> None:
        super().__init__(parts, order, split, train_samples)
        self._dealt: list[np.ndarray] = []

    def count_dealt(self, step: int, rank: int, consumed: list[Fed]) -> None:
        """Add the micro-batches of one ticket to the tallies.

        Args:
            step: global batch in the seeded order.
            rank: whose micro-batches of it were dealt.
        """
        split = self.split
        self.split = BatchSplit(rank, split.world, split.accumulation, split.global_batch)
        self.calls = step * split.accumulation
        self._dealt.extend(self._next_positions(len(indices)) for indices, _ in consumed)
        self.calls = step * split.accumulation
        self.count(consumed)

    def expected_tallies(self, samples: int) -> tuple[Tally, Tally]:
        """Return the tallies (order, draws) that the seed gives for the places that this worker was dealt."""
        order, draws = Tally(), Tally()
        if not self._dealt:
            return order, draws
        positions = np.sort(np.concatenate(self._dealt))
        epochs = positions // self.train_samples
        for epoch in np.unique(epochs).tolist():
            here = positions[epochs == epoch]
            indices = self.order.draw(epoch)[here - epoch * self.train_samples]
            order.add(here, indices)
            if self.parts.draws is not None:
                self._add_expected_draws(draws, here, indices, self.parts.draws)
        return order, draws


@dataclass(frozen=True, slots=True)
class DealtFigures:
    """One rank's figures."""

    protocol: Mapping[str, Any]
    """What the loop adds to `Session.protocol`."""
    traffic: Mapping[str, Any]
    peak_bytes: int | None
    init_peak_bytes: int | None
    audit: DealtAudit
    input: DirectInput
    last: Mapping[str, np.ndarray] | None
    """The weights of the trial, on rank 0."""
    controller: Sequence[ControllerReading | None]
    """Counters at `run_start` and after this rank's last update."""


def report_dealt(context: TrialContext, figures: DealtFigures) -> None:
    """Gather the figures of all ranks that are left and log them; all of them take part."""
    session, log = context.session, context.log
    effective = session.effective() | figures.input.effective()
    if protocol := session.protocol():  # a collective; rank 0 alone has the figures
        log.write(ServerProtocol(value=protocol | dict(figures.protocol)))
    log_traffic_of(context, figures.traffic)
    log_controller(context, figures.controller)
    log_memory_of(context, figures.init_peak_bytes, figures.peak_bytes)
    log_consumed(context, figures.audit, 0)
    if model := describe_model(context):
        log.write(ModelStated(value=model))
    if figures.last is not None:
        log.write(Hashes(value={"final_weights": weights_sha256(figures.last)}))
        functions = context.started.functions
        assert functions is not None
        # The harness itself evaluated, in one process: no engine's evaluation has to be repeated.
        log.write(FactsGathered(value=FinalFacts(
            ranks=(None,), wide_share=round(wide_share(figures.last, context.job.precision), 6),
            optimizer=OwnModel(context.trial, context.job, functions).describe_optimizer(),
        )))
    log.write(EffectiveSettings(value=effective))
    log.flush()
