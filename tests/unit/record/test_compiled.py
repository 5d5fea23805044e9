"""Seconds of compilation and graphs that came too late, from a trial's log."""

from __future__ import annotations

from pathlib import Path

from repro.core.events import EventLog
from repro.record.derive.derive import derive
from repro.record.log.schema import Compilation, Compiled, CompiledLate
from repro.record.result import remarks
from tests.unit.record.test_results import FINE, Script, make_trial, play


def test_the_slowest_rank_counts_and_filling_a_cache_does_not(tmp_path: Path) -> None:
    def after(log: EventLog) -> None:
        log.write(Compilation(filling_seconds=1.5, ranks=[Compiled(seconds=each, graphs=2) for each in (1.0, 3.0)]))

    plain, found = (derive(make_trial(), 1, play(tmp_path / "log", script), FINE)
                    for script in (Script(), Script(after=after)))
    assert (plain.compile_seconds, found.compile_seconds) == (None, 3.0)
    assert plain.tta_cold is not None and found.tta_cold == plain.tta_cold - 1.5


def test_a_graph_compiled_on_the_clock_is_a_warning(tmp_path: Path) -> None:
    def warnings(*late: Compiled) -> list[remarks.CompiledLate]:
        script = Script(after=lambda log: log.write(CompiledLate(value=late)))
        found = derive(make_trial(), 1, play(tmp_path / "log", script), FINE)
        return [item for item in found.warnings if isinstance(item, remarks.CompiledLate)]

    assert warnings() == warnings(*[Compiled(seconds=0.0, graphs=0)] * 2) == []
    assert warnings(Compiled(seconds=0.0, graphs=0), Compiled(seconds=4.0, graphs=3)) == [
        remarks.CompiledLate(graphs=3, seconds=4.0)]
