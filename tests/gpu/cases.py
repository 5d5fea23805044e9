"""Whether a case of an engine can be run on the devices of this machine."""

from __future__ import annotations

from repro.core.devices import on_gpu
from repro.core.machine import detect
from repro.seams.plugin import Setting
from tests.engine_ranks import Case

MACHINE = detect()


def unsupported(case: Case) -> str:
    """Return the reason that a plan would give for refusing the case, or ""."""
    if on_gpu(case.device) and case.world > MACHINE.device_count:
        return f"needs {case.world} GPUs, there are {MACHINE.device_count}"
    comm, precision = case.comm, case.precision
    setting = Setting(
        workload="", engine="", comm=type(comm).__name__, precision=type(precision).__name__, optimizer="",
        launcher="local", processes=case.world, accumulation=case.accumulation, device=case.device,
        device_count=MACHINE.device_count, compression=case.compression, overlap=case.overlap,
        own_algorithm=comm.own_algorithm, passed_through=tuple(comm.passes_through(case.world)),
        weights=precision.weights, autocast=precision.autocast, master_weights=precision.master, model=case.model)
    found = (plugin.unsupported(setting) for plugin in (case.engine, comm, precision))
    return next((reason for reason in found if reason), "")
