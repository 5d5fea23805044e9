"""Energy: what is modelled is never called measured, the tracker's process cannot hold up or outlive a run."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from repro.bundle.verify import verify
from repro.core.errors import UsageError
from repro.core.files import read_model, write_model
from repro.record.derive.derive import with_energy
from repro.record.folder import index
from repro.record.folder.store import read_record
from repro.record.result.parts import Energy, Part
from repro.record.result.result_warnings import EnergyOfLastAttempt, Resumed
from repro.record.result.results import Result
from repro.runner import energy_meter
from repro.runner.energy_meter import EnergyMeter
from tests.records import make_record

ANSWER = ('{"joules": 90.0, "provenance": "modelled", "seconds": 10.0, "tool": "CodeCarbon 3.3.2", '
          '"observer_seconds": 0.02, "parts": {"cpu": {"joules": 90.0, "provenance": "modelled", "how": "by load"}}}')


def stand_in(code: str) -> tuple[str, ...]:
    """A tracker's process that speaks the same lines."""
    return (sys.executable, "-S", "-c", f"import sys, time\n{code}")


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(energy_meter, "find_spec", lambda name: object())


def test_without_codecarbon_it_is_refused_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(energy_meter, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"pip install 'repro-harness\[energy\]'"):
        EnergyMeter()


def test_a_tracker_that_does_not_start_is_refused(installed: None) -> None:
    with pytest.raises(UsageError, match="tracker has ended; run without --energy"):
        EnergyMeter(stand_in("sys.exit(3)"))


@pytest.mark.usefixtures("installed")
def test_a_figure_for_every_trial_and_no_process_left() -> None:
    meter = EnergyMeter(stand_in(
        f"print('{{\"ready\": true}}', flush=True)\n"
        f"for line in sys.stdin:\n    print('{{}}' if line == 'start\\n' else '{ANSWER}', flush=True)"))
    child = psutil.Process(meter._child.pid)
    for _ in range(2):
        meter.start()
        found = meter.stop()
        assert found is not None and found.watts == 9.0 and found.observer_share == pytest.approx(0.002)
    meter.close()
    assert not child.is_running() and meter.problem == ""


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(("then", "said"), [
    ("time.sleep(60)", "gave no answer for 0 s"), ("sys.exit()", "has ended"), ("print('no JSON')", "not JSON"),
    ("print('{\"joules\": null}')", "answered"),
])
def test_a_tracker_that_fails_costs_a_figure_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch, then: str, said: str
) -> None:
    monkeypatch.setattr(energy_meter, "ANSWER_SECONDS", 0.3 if "sleep" in then else 60)
    meter = EnergyMeter(stand_in(
        f"print('{{\"ready\": true}}', flush=True)\nsys.stdin.readline()\nprint('{{}}', flush=True)\n"
        f"sys.stdin.readline()\n{then}"))
    meter.start()
    assert meter.stop() is None
    assert said in meter.problem
    meter.start()
    assert meter.stop() is None, "it is not asked again"
    meter._child.kill()
    meter.close()


def test_the_trackers_process_gets_no_credential_and_no_settings_of_the_user(
    installed: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CODECARBON_API_KEY", "planted")
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "planted")
    meter = EnergyMeter(stand_in("print('{}', flush=True)\nsys.stdin.read()"))
    told = meter._environment()
    meter.close()
    assert "planted" not in told.values() and told["HOME"] != str(Path.home())


@pytest.mark.parametrize(("kind", "hardware", "provenance"), [
    ("cpu", SimpleNamespace(_mode="intel_rapl", _tdp=65), "measured"),
    ("cpu", SimpleNamespace(_mode="cpu_load", _tdp=65), "modelled"),
    ("cpu", SimpleNamespace(_mode="constant", _tdp=65), "modelled"),
    ("cpu", SimpleNamespace(), "modelled"),
    ("ram", SimpleNamespace(), "modelled"),
    ("gpu", SimpleNamespace(), "measured"),
])
def test_only_a_counter_is_called_measured(kind: str, hardware: object, provenance: str) -> None:
    assert energy_meter._how(kind, hardware)[0] == provenance


@pytest.fixture
def tracked(tmp_path: Path) -> Path:
    """A record whose trials have energy, modelled in part."""
    record = make_record(tmp_path / "run", only=4)
    parts = {"cpu": Part(joules=30.0, provenance="measured", how="RAPL counters"),
             "ram": Part(joules=60.0, provenance="modelled", how="a constant by size")}
    for item in record.results:
        energy = Energy(joules=90.0, provenance="modelled", parts=parts, seconds=10.0, tool="CodeCarbon 3.3.2",
                        observer_seconds=0.2)
        write_model(record.folder.result(item.trial_id), with_energy(item, energy))
    index.seal(record.folder)
    return record.folder.root


def test_the_energy_of_the_gpus_alone_is_measured_although_that_of_memory_never_is(tracked: Path) -> None:
    (item, *_) = read_record(tracked).results
    assert item.energy is not None and item.samples and item.gpu_joules_per_sample is None
    parts = item.energy.parts | {"gpu": Part(joules=500.0, provenance="measured", how="NVML energy counter")}
    found = item.model_copy(update={"energy": item.energy.model_copy(update={"parts": parts})})
    assert found.gpu_joules_per_sample == 500.0 / item.samples and found.joules_per_sample is None


def test_the_tracker_removes_only_its_own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, other = tmp_path / "repro-energy-x", tmp_path / "home"
    for home, left in ((ours, False), (other, True)):
        home.mkdir()
        monkeypatch.setenv("HOME", str(home))
        energy_meter._leave(home)
        assert home.exists() is left


def test_the_energy_of_a_resumed_trial_is_not_taken_for_all_of_it(tracked: Path) -> None:
    record = read_record(tracked)
    lost = Resumed(attempt=1, step=12, samples=768, lost_seconds=61.3, clock="monotonic")
    before = record.results[0].model_copy(update={"warnings": (lost,)})
    assert before.energy is not None
    assert with_energy(before, before.energy).warnings[-1] == EnergyOfLastAttempt()


def test_it_is_in_the_result_the_page_the_tables_and_the_metrics_with_its_label(tracked: Path) -> None:
    from repro.reporters.html_page import HtmlPage
    from repro.reporters.tracking.metric_points import result_points

    from repro.tables.tables import tables

    record = read_record(tracked)
    item = read_model(record.folder.result(record.results[0].trial_id), Result)
    assert item.energy_joules_modelled == 90.0 and item.energy_joules_measured is None
    assert [one.words for one in item.warnings] == ["energy tracking took 2.0 % of a core (limit 0.5 %)"]
    assert verify(tracked).unmodified
    page = Path(HtmlPage().write(record, tracked / "report")[0]).read_text()
    section = page[page.index('id="energy"'):page.index("</section>", page.index('id="energy"'))]
    assert "cpu: measured</b> (RAPL counters)" in section and "ram: modelled</b> (a constant by size)" in section
    assert "MODELLED" in section.upper() and ": exceeded" in section and "CodeCarbon 3.3.2" in section
    row = next(table for table in tables(record) if table.name == "trials").rows[0]
    assert (row["energy_joules_modelled"], row["energy_joules_measured"]) == (90.0, None)
    points = {point.key: point.value for point in result_points(item, 64)}
    assert points["energy/energy_joules_modelled"] == 90.0
    assert not any("energy_joules_measured" in key for key in points)


def test_a_run_without_it_reports_no_energy(tmp_path: Path) -> None:
    from repro.reporters.page.sections.figures import energy

    assert energy(make_record(tmp_path / "run", only=4)) is None


@pytest.mark.slow
def test_codecarbon_itself_offline() -> None:
    """The real tracker, where it is installed: an estimate above nothing, every part labelled, few CPU seconds."""
    pytest.importorskip("codecarbon", reason="the extra `energy` is not installed")
    meter = EnergyMeter()
    try:
        meter.start()
        time.sleep(4)
        found = meter.stop()
    finally:
        meter.close()
    assert found is not None, meter.problem
    assert found.joules > 0 and 3.5 < found.seconds < 8 and {"cpu", "ram"} <= found.parts.keys()
    assert found.parts["ram"].provenance == "modelled" == found.provenance
    assert sum(part.joules for part in found.parts.values()) == pytest.approx(found.joules, rel=0.01)
    print(f"{found.watts:.1f} W, {found.parts}, tracker {found.observer_share:.2%} of a core")
