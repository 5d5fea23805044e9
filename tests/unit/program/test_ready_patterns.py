"""Ready patterns on the output of the real programs (`outputs/README.md`)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from repro.program.observation import LineSplitter, Observation, OutputProblem
from repro.program.output_readers import AirbenchReader, PatternReader
from repro.suite.kinds.evaluation import ready
from tests.unit.program.printed import evaluations, output, printed, seen

SPEEDRUN = Path(os.environ.get("REPRO_SHARED_DATA", Path(__file__).parents[3].parent / "shared" / "data")) / "speedrun"


def read(name: str, metric: str, file: str) -> list[Observation]:
    return seen(PatternReader(ready(name, metric).patterns(metric)), output(file))


@pytest.mark.parametrize("file", ["keras_pty.txt", "keras_verbose2.txt"])
def test_keras(file: str) -> None:
    found = read("keras", "val_accuracy", file)
    assert [(one.seen, one.epochs, one.value) for one in found] == [
        ("evaluation", 1.0, 0.7344), ("evaluation", 2.0, 0.9688), ("evaluation", 3.0, 0.9844)]
    assert [one.value for one in read("keras", "val_loss", file)] == [0.4585, 0.2739, 0.1647]


def test_hugging_face_trainer_5_states_four_digits_and_ends_before_the_scripts_own_evaluation() -> None:
    found = read("huggingface-trainer", "eval_loss", "huggingface_5.txt")
    assert [(one.epochs, one.value) for one in evaluations(found)] == [
        (0.5, 0.6761), (1.0, 0.6761), (1.5, 0.676), (2.0, 0.676)]
    assert [one.epochs for one in found if one.seen == "step"] == [0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 1.75, 2.0]
    assert found[-1].seen == "stop"


def test_hugging_face_trainer_4() -> None:
    found = read("huggingface-trainer", "eval_accuracy", "huggingface_4.txt")
    assert [(one.seen, one.epochs, one.value) for one in found] == [
        ("step", 0.5, None), ("evaluation", 1.0, 0.856), ("stop", None, None)]


def test_nanogpt() -> None:
    found = read("nanogpt", "val_loss", "nanogpt.txt")
    assert [(one.step, one.value) for one in evaluations(found)] == [(0, 10.9209), (20000, 1.742)]
    assert [one.step for one in found if one.seen == "step"] == [0, 40, 19960, 20000]


def test_llm_c_takes_the_step_from_the_line_before() -> None:
    found = read("llm.c", "val_loss", "llm_c.txt")
    assert [(one.seen, one.step, one.value) for one in found] == [
        ("evaluation", None, 11.033154), ("step", 1, None), ("step", 2, None), ("step", 3, None),
        ("evaluation", 3, 10.609911)]


@pytest.mark.parametrize(("file", "first", "last"), [
    # The clock of published logs starts over after ten steps, where `step_avg` is no number yet: it is no clock there.
    ("speedrun_2024.txt", (0, 10.9264, None), (6200, 3.2785, 1339.067)),
    ("speedrun_2025.txt", (0, 10.8258, None), (1390, 3.2785, 204.345)),
    ("speedrun_2026.txt", (0, 10.8311, 0.0), (1390, 3.2775, 79.532)),
])
def test_nanogpt_speedrun(
    file: str, first: tuple[int, float, float | None], last: tuple[int, float, float | None],
) -> None:
    found = read("nanogpt-speedrun", "val_loss", file)
    shown = [(one.step, one.value, one.own_seconds) for one in evaluations(found)]
    assert (shown[0], shown[-1]) == (first, last)
    assert sum(one.seen == "step" and one.own_seconds is not None for one in found) > 2


def test_a_rank_in_front_of_a_line_does_not_hide_it() -> None:
    reader = PatternReader(ready("nanogpt-speedrun", "val_loss").patterns("val_loss"))
    [found] = seen(reader, printed("[default0]:step:125/1390 val_loss:4.1 train_time:9s step_avg:72ms"))
    assert (found.step, found.value, found.own_seconds) == (125, 4.1, 9.0)


@pytest.mark.skipif(not SPEEDRUN.is_dir(), reason="the public records' logs are not on this machine")
def test_every_log_of_the_sample_records_is_read_from_step_0_to_its_last() -> None:
    logs = sorted(SPEEDRUN.rglob("*.txt"))
    assert len(logs) > 30
    for log in logs:
        data = log.read_bytes()
        found = seen(PatternReader(ready("nanogpt-speedrun", "val_loss").patterns("val_loss")),
                     LineSplitter().feed(data, 0))
        told = [line for line in data.decode().splitlines() if line.startswith("step:") and " val_loss:" in line]
        assert [one.value for one in evaluations(found)] == [
            float(line.split(" val_loss:")[1].split()[0]) for line in told], log
        steps = [line for line in data.decode().splitlines() if line.startswith("step:")]
        assert len(found) == len(steps) and found[-1].own_seconds is not None, log


def test_airbench() -> None:
    lines = output("airbench.txt")
    found = seen(AirbenchReader("val_acc"), lines)
    assert [(one.epochs, one.value, one.own_seconds) for one in evaluations(found)][::7] == [
        (1.0, 0.636, 0.5603), (8.0, 0.9319, 4.2733)]
    assert (found[-1].seen, found[-1].own_seconds) == ("step", 4.4502)
    found = seen(AirbenchReader("tta_val_acc"), lines)
    assert [one.seen for one in found] == ["step"] * 8 + ["evaluation"]
    assert (found[-1].epochs, found[-1].value, found[-1].own_seconds) == (8.0, 0.9388, 4.4502)


def test_the_warm_up_of_airbench_states_nothing_and_a_second_run_is_a_problem() -> None:
    head, *rows = [line for line in output("airbench.txt") if line.text.startswith("|")]
    texts = [row.text for row in rows]
    warm = [texts[0].replace("     0  |      0", "warmup  |      0"), *texts[1:]]
    found = seen(AirbenchReader("tta_val_acc"), printed(head.text, *warm, *texts))
    assert [one.seen for one in found] == ["start"] + ["step"] * 8 + ["evaluation"]
    with pytest.raises(OutputProblem, match="run 1 begins after run 0"):
        seen(AirbenchReader("tta_val_acc"), printed(head.text, *texts, texts[0].replace("     0  |", "     1  |", 1)))


def test_a_table_without_the_quality_is_a_problem() -> None:
    with pytest.raises(OutputProblem, match="no column tta_val_acc"):
        seen(AirbenchReader("tta_val_acc"), printed("|  run     |  epoch  |  val_acc  |"))
    assert seen(AirbenchReader("val_acc"), printed("| a | b |", "|  1 |  0 |", "|", "||")) == []
