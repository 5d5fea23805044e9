"""Lines of MLPerf's reference implementations as observations."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from repro.core.events import Event, parse_line
from repro.program.observation import LineSplitter, OutputProblem
from repro.program.output_readers import LONGEST_EVENT, MllogReader
from tests.unit.program.printed import evaluations, printed, seen

LOGS = Path(os.environ.get("REPRO_SHARED_DATA", Path(__file__).parents[3].parent / "shared" / "data")) / "mlperf"


def line(key: str, time_ms: float, value: object = None, **metadata: object) -> str:
    return Event(key, value, "POINT_IN_TIME", time_ms, metadata).line().rstrip("\n")


@pytest.mark.skipif(not LOGS.is_dir(), reason="the published logs are not on this machine")
def test_every_published_log_is_read_as_its_submitter_wrote_it() -> None:
    logs = sorted((LOGS / "training_v4.0").rglob("result_*.txt"))
    assert len(logs) > 20
    for log in logs:
        found = seen(MllogReader(), LineSplitter(LONGEST_EVENT).feed(log.read_bytes(), 0))
        events = [event for text in log.read_text(errors="replace").splitlines() if (event := parse_line(text))]
        told = [(event.value, event.metadata.get("epoch_num"), event.metadata.get("samples_count"))
                for event in events if event.key == "eval_accuracy"]
        assert [(one.value, one.epochs, one.samples) for one in evaluations(found)] == told, log
        assert told and all(epochs or samples for _, epochs, samples in told)
        clocks = [(one.seen, one.own_seconds) for one in found if one.seen in ("start", "stop")]
        [began] = [event.time_ms for event in events if event.key == "run_start"]
        stops = [("stop", (event.time_ms - began) / 1e3) for event in events if event.key == "run_stop"]
        assert clocks == [("start", 0.0), *stops], log  # one submitted log has no run_stop
        assert any(one.seen == "step" for one in found)


@pytest.mark.skipif(not LOGS.is_dir(), reason="the published logs are not on this machine")
def test_the_form_before_2020_is_named() -> None:
    log = next((LOGS / "training_v0.6").rglob("result_0.txt"))
    with pytest.raises(OutputProblem, match="form before 2020"):
        seen(MllogReader(), LineSplitter().feed(log.read_bytes(), 0))


def test_another_key_can_be_the_quality_and_our_own_lines_have_a_date() -> None:
    texts = [line("run_start", 1000, mono_ns=5), line("eval_loss", 3500, 2.5, step_num=10, samples_count=640),
             line("eval_accuracy", 3600, 0.5)]
    start, evaluation = seen(MllogReader("eval_loss"), printed(*texts))
    assert (start.own_ns, evaluation.own_ns) == (5, None)
    assert (evaluation.step, evaluation.samples, evaluation.value, evaluation.own_seconds) == (10, 640, 2.5, 2.5)


@pytest.mark.parametrize(("texts", "problem"), [
    ([line("run_start", 1), line("run_start", 2)], "a second run_start"),
    ([line("run_start", 2000), line("run_stop", 1000)], "train time goes back from 0 to -1"),
    ([line("eval_accuracy", 1, "0.5")], "'0.5' is no number"),
    ([line("eval_accuracy", 1, True)], "True is no number"),
    ([line("eval_accuracy", 1)], "None is no number"),
    ([line("eval_accuracy", 1, 0.5, samples_count=64)] * 2, "samples 64 is evaluated twice"),
    ([line("epoch_stop", 1, epoch_num=2), line("eval_accuracy", 1, 0.5, epoch_num=1)], "epoch goes back from 2 to 1"),
])
def test_what_cannot_be_is_a_problem(texts: list[str], problem: str) -> None:
    with pytest.raises(OutputProblem, match=problem):
        seen(MllogReader(), printed(*texts))


@pytest.mark.parametrize("text", [
    "loss 3", ":::MLLOG", ":::MLLOG {", ":::MLLOG []", ":::MLLOG " + json.dumps({"key": "eval_accuracy", "value": 1}),
    line("weights_initialization", 1), line("eval_accuracy", 1, 0.5)[:-1],
])
def test_other_and_damaged_lines_state_nothing(text: str) -> None:
    assert seen(MllogReader(), printed(text)) == []
