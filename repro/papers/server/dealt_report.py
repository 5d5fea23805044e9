"""The final report of a trial whose workers did not train in lock step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from repro.papers.server.dealt_audit import DealtAudit
from repro.record.log.schema import (
    ControllerReading,
    EffectiveSettings,
    FactsGathered,
    FinalFacts,
    Hashes,
    ModelStated,
    ServerProtocol,
)
from repro.worker.context import TrialContext
from repro.worker.input.trial_input import DirectInput
from repro.worker.own_model import OwnModel
from repro.worker.rank_weights import wide_share
from repro.worker.report.final_report import log_consumed, log_controller, log_memory_of, log_traffic_of
from repro.worker.report.model_report import describe_model
from repro.worker.weights import weights_sha256


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
    log.write(ServerProtocol(value=session.protocol() | dict(figures.protocol)))
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
