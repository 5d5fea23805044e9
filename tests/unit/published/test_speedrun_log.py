"""One log of a speed-run: every year's form, and each way in which a log is no result."""

from __future__ import annotations

from pathlib import Path

import pytest

from repro.published.speedrun.log import SpeedrunLog, read_log
from repro.published.untrusted import files
from repro.published.untrusted.files import DamagedInput
from tests.unit.published.made_speedruns import PROGRAM, Box, Run


def read(tmp_path: Path, text: str) -> SpeedrunLog:
    path = tmp_path / "a.txt"
    path.write_text(text)
    return read_log(path)


@pytest.mark.parametrize("run", [
    Run(), Run(unit="s"), Run(warm=True), Run(box=None), Run(every=30), Run(program=PROGRAM * 5000),
], ids=["ms", "seconds", "warm-up", "console", "grid", "long program"])
def test_every_form_gives_loss_time_and_curve(tmp_path: Path, run: Run) -> None:
    log = read(tmp_path, run.text())
    assert (log.lost, log.fault, log.final, log.steps) == ("", "", 3.2784, 200)
    assert log.seconds == pytest.approx(80.7, abs=1e-9)
    assert log.curve[0].value == 10.8 and log.curve[-1].value == 3.2784
    assert len(log.curve) == 1 + -(-200 // run.every)
    assert bool(log.program) is (run.box is not None)


def test_the_block_names_software_and_machine(tmp_path: Path) -> None:
    log = read(tmp_path, Run().text())
    assert log.machine.versions == {"python": "3.12.3", "pytorch": "2.10.0+cu128", "triton": "3.6.0"}
    assert len(log.machine.gpus) == 8 and log.machine.driver == "580.1"
    assert log.machine.started == "2026-07-17T11:47:52"
    assert log.machine.name.startswith("8 x NVIDIA H100 80GB HBM3, driver 580.1, at 10:00.0 11:00.0")


def test_the_oldest_block_is_read(tmp_path: Path) -> None:
    text = Run(warm=True).text().replace("Running Python 3.12.3 (main) [GCC 13.3.0]\n", "").replace(
        "Running PyTorch 2.10.0+cu128", "Running pytorch 2.4.1+cu121").replace("Running Triton version 3.6.0\n", "")
    log = read(tmp_path, text)
    assert log.machine.versions == {"pytorch": "2.4.1+cu121"} and len(log.machine.gpus) == 8 and log.program


def test_the_text_of_the_program_is_no_step_and_no_machine(tmp_path: Path) -> None:
    program = "# Running PyTorch 9.9\n    step:200/200 val_loss:1.0 train_time:1ms step_avg:1ms\n" + PROGRAM
    log = read(tmp_path, Run(program=program).text())
    assert (log.final, log.machine.versions["pytorch"]) == (3.2784, "2.10.0+cu128")


def test_pieces_of_any_size_give_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = Run().text()
    whole = read(tmp_path, text)
    for size in (1, 7, 64, 4095):
        monkeypatch.setattr(files, "CHUNK", size)
        found = read(tmp_path, text)
        assert (found.sha256, found.lines_sha256, found.program, found.curve) == (
            whole.sha256, whole.lines_sha256, whole.program, whole.curve)


@pytest.mark.parametrize("end", ["\r\n", "\n"])
def test_a_line_of_any_length_is_passed(tmp_path: Path, end: str) -> None:
    text = Run().text().replace("Resetting Model\n", "x" * 3_000_000 + "\n").replace("\n", end)
    path = tmp_path / "a.txt"
    path.write_bytes(text.encode())
    assert read_log(path).final == 3.2784


def cut_at(step: int, keep: int = 0) -> str:
    text = Run().text()
    at = text.index(f"step:{step}/200 ")
    return text[:at + keep]


@pytest.mark.parametrize(("text", "reason"), [
    (cut_at(151), "cut: its last line is step 150 of 200"),
    (cut_at(151, 12), "cut: its last line is step 150 of 200"),
    (Run().text()[: Run().text().index("step:200/200 val_loss") + 45],
     "cut: no evaluation at its last step 200; the last one is at step 100"),
    (Run(every=1000).text().replace("val_loss", "other"), "it has no evaluation (no val_loss)"),
    (Run().text()[:500], "cut before its first step"),
    ("s:0 tel:11.0092\ns:250 tel:6.1710\n", "its lines (s:N tel:V) state no time"),
], ids=["between steps", "within a step", "within the last line", "no evaluation", "in the program", "llm.c"])
def test_a_log_without_an_end_says_why(tmp_path: Path, text: str, reason: str) -> None:
    assert read(tmp_path, text).lost == reason


def test_another_text_is_no_log(tmp_path: Path) -> None:
    log = read(tmp_path, "torch==2.10\nnumpy\n")
    assert log.steps is None and log.lost == ""


def backwards() -> str:
    return Run().text().replace("step:150/200 train_time:60525ms", "step:150/200 train_time:50525ms")


@pytest.mark.parametrize(("text", "fault"), [
    (backwards(), "train time goes back: 50.525 s at step 150 after 60.122 s at step 149"),
    (Run().text().replace("train_time:80700ms", "train_time:80700s"), "a unit cannot be right: 80700 s at step 200"),
    (Run(unit="s").text().replace("train_time:80.700s", "train_time:80.700ms"), "train time goes back: 0.0807 s"),
    (Run(seconds=0.0).text(), "its clock shows no time"),
    (Run().text().replace("peak memory", "step:200/200 val_loss:3.1 train_time:80701ms step_avg:403.50ms\npeak memory"),
     "two evaluations at step 200"),
    (Run().text().replace("step_avg:403.50ms", "step_avg:nanms"), "step_avg is nanms at its end"),
])
def test_an_impossible_clock_is_named(tmp_path: Path, text: str, fault: str) -> None:
    log = read(tmp_path, text)
    assert log.fault.startswith(fault)
    assert log.lost == ""


def test_a_line_written_twice_counts_once(tmp_path: Path) -> None:
    line = "step:200/200 val_loss:3.2784 train_time:80700ms step_avg:403.50ms\n"
    assert line in Run().text()
    log = read(tmp_path, Run().text().replace(line, line * 2))
    assert (log.fault, len(log.curve)) == ("", 3)


@pytest.mark.parametrize("value", ["nan", "inf", "NaN"])
def test_a_loss_that_is_no_number_is_kept(tmp_path: Path, value: str) -> None:
    log = read(tmp_path, Run(loss=value).text())
    assert str(log.final) == value.lower() and log.curve[-1].value is None and log.lost == log.fault == ""


@pytest.mark.parametrize(("text", "reason"), [
    (Run().text() + Run().text(), "more than one run in one log"),
    (Run().text() + Run(steps=300).text(), "step 0 of 300 after a run of 200 steps: more than one run in one log"),
    (Run(loss="abc").text(), "'abc' is no number"), (Run().text() + "\0", "a NUL byte"),
    (Run().text().replace("train_time:80700ms", "train_time:1e999ms"), "'1e999' is no time"),
])
def test_what_cannot_be_one_run_is_refused(tmp_path: Path, text: str, reason: str) -> None:
    with pytest.raises(DamagedInput, match=reason):
        read(tmp_path, text)


def test_a_machine_differs_where_its_addresses_do(tmp_path: Path) -> None:
    names = {read(tmp_path, Run(box=box).text()).machine.name
             for box in (Box(), Box(bus=0x40), Box(driver="570.9"), Box(gpus=1))}
    assert len(names) == 4
