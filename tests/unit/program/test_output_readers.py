"""Readers of what programs print: a suite's patterns, the ready ones, MLPerf's lines."""

from __future__ import annotations

import contextlib
import json
import math
import os
import time
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from repro.core.events import Event, parse_line
from repro.program.observation import LineSplitter, Observation, OutputProblem
from repro.program.output_readers import LONGEST_EVENT, AirbenchReader, MllogReader, PatternReader, StartFinder
from repro.suite.field_problem import FieldProblem
from repro.suite.kinds.evaluation import READY, Evaluation, compile_pattern, ready
from tests.unit.program.printed import SECOND, evaluations, output, printed, seen

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
        ("evaluation", 0, 11.033154), ("step", 1, None), ("step", 2, None), ("step", 3, None),
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


@pytest.mark.parametrize(("line", "expected"), [
    (b"1% 1/9\rstep 3 acc 0.5\r2% 2/9\n", [0.5]),       # a bar of another rank came before the end of the line
    (b"\r1% acc 0.4\r2% acc 0.5\r3% acc 0.6\n", [0.6]),  # of a bar the last state counts
    (b"\r9% acc 0.5\r        \rdone\n", []),            # a bar that its program erased
    (b"step 3 acc 0.5\r\n", [0.5])])
def test_a_bar_of_another_process_does_not_hide_an_evaluation(line: bytes, expected: list[float]) -> None:
    splitter = LineSplitter()
    lines = [*splitter.feed(line[:18], 0), *splitter.feed(line[18:], 0)]
    found = seen(PatternReader({"evaluation": r"acc (?P<value>\S+)"}), lines)
    assert [one.value for one in found] == expected


@pytest.mark.slow
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


GOOD = r"val_loss:(?P<value>\S+)"


@pytest.mark.parametrize(("name", "text", "problem"), [
    ("evaluation", r"val_loss:(\S+)", "no group `value`: write (?P<value>...) around the quality"),
    ("evaluation", r"step (?P<step>\d+)", "no group `value`"),
    ("evaluation", r"val_loss:(?P<value>\S+", "missing ), unterminated subpattern at position 9"),
    ("evaluation", r"(?P<valeu>\S+)", "group `valeu` means nothing here; did you mean 'value'?"),
    ("evaluation", r"(?P<value>\S+) (?P<seed>\d)", "group `seed` means nothing here"),
    ("evaluation", r"(?P<value>\S+) (?P<train_ms>\d)ms (?P<train_s>\d)s", "`train_ms` and `train_s` state one clock"),
    ("evaluation", r"(?P<value>a)(?P<value>b)", "redefinition of group name 'value'"),
    ("evaluation", r"(?<=:)(?P<value>\S+)", "no look-around, no back references"),
    ("evaluation", r"(?P<value>\S+) (?P=value)", "no look-around, no back references"),
    ("evaluation", r"(?P<value>\S*)", "matches an empty line"),
    ("evaluation", "(?P<value>" + "a" * 1000 + ")", "at most 1000"),
    ("evaluation", "(?P<value>a{99999999999999999999})", "not a usable regular expression"),
    ("evaluation", "(?P<value>(?:(?:a{1000}){1000}){1000})", "no repeats above 1000"),
    ("progress", r"(?P<value>\S+)", "a line with it is an evaluation, not progress"),
    ("progress", r"step \d+", "no named group; it needs one of step, samples, epoch"),
    ("context", r"time (?P<train_s>\d+)", "group `train_s` means nothing here"),
    ("start", r"begin (?P<step>\d+)", "start takes no named groups"),
])
def test_a_bad_pattern_is_one_line(name: str, text: str, problem: str) -> None:
    with pytest.raises(FieldProblem) as caught:
        compile_pattern(name, text)
    assert problem in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.path == (name,)


@given(st.text(alphabet="(?P<value>)[]{}|*+.^$\\\\aC1,-=!:&~\\n\u0663", max_size=60))
@example("(" * 488 + "a" + ")" * 488)
@example(r"(?P<value>\C)")
def test_any_text_is_a_pattern_that_reads_any_line_or_a_problem(text: str) -> None:
    with contextlib.suppress(FieldProblem):
        compile_pattern("evaluation", text).find("a1 \u2501 \ufffd".encode())


@pytest.mark.parametrize("nasty", [
    r"(?P<value>(a+)+)$", r"(?P<value>(?:a|aa)+)$", r"(?P<value>(?:.*a){25}x)", r"(?P<value>(?:\w+\s?)+)x$",
    r"(?P<value>(?:a?){300}a{300}b)",
])
def test_no_pattern_stalls_on_a_long_line(nasty: str) -> None:
    pattern = compile_pattern("evaluation", nasty)
    began = time.process_time()
    assert pattern.find(b"a" * 4096 + b"!") is None
    assert time.process_time() - began < 30  # the first of them takes `re` longer than the universe is old


def test_the_longest_nested_pattern_is_refused_and_a_long_plain_one_is_not() -> None:
    with pytest.raises(FieldProblem):
        compile_pattern("evaluation", r"(?P<value>(?:\pL{100}){10})")
    compile_pattern("evaluation", r"(?P<value>x" + r"[a-z]{50}" * 90 + ")")


@pytest.mark.parametrize(("name", "metric", "problem"), [
    ("kears", "val_loss", "no ready pattern named 'kears'; did you mean 'keras'?"),
    ("nanogpt-speedrun", "val_accuracy", "state no 'val_accuracy'; a name that fits: 'val_loss'"),
    ("huggingface-trainer", "accuracy", "a name that fits: 'eval_loss'"),
    ("keras", "accuracy", "a name that fits: 'val_accuracy'"),
    ("airbench", "accuracy", "a name that fits: 'tta_val_acc'"),
])
def test_a_ready_pattern_that_cannot_be_is_one_line(name: str, metric: str, problem: str) -> None:
    with pytest.raises(FieldProblem) as caught:
        ready(name, metric)
    assert problem in str(caught.value)


@pytest.mark.parametrize("name", sorted(READY))
def test_every_ready_pattern_is_a_good_one(name: str) -> None:
    entry = ready(name, READY[name].example)
    if entry.kind == "patterns":
        PatternReader(entry.patterns(entry.example))
    else:
        with pytest.raises(FieldProblem, match="by its columns"):
            entry.patterns(entry.example)
    assert "(" not in name, "else a suite that names it states a pattern"


EVALUATION = r"step (?P<step>\S+) loss (?P<value>\S+)(?: after (?P<train_ms>\S+) ms)?"


def reader(evaluation: str = EVALUATION, **others: str) -> PatternReader:
    return PatternReader({"evaluation": evaluation, **others})


def test_an_evaluation_has_all_that_its_line_states() -> None:
    pattern = r"(?P<epoch>\S+) epochs, (?P<step>\d+) steps, (?P<samples>\d+) seen, (?P<train_s>\S+) s: (?P<value>\S+)"
    assert seen(reader(pattern), printed("hello", "0.5 epochs, 7 steps, 224 seen, 1.25 s: 3.5e-1")) == [
        Observation("evaluation", 2 * SECOND, 2, step=7, samples=224, epochs=0.5, value=0.35, own_seconds=1.25)]


@pytest.mark.parametrize(("text", "value"), [
    ("3.28", 3.28), ("-1", -1.0), ("1.", 1.0), (".5", 0.5), ("1E+2", 100.0), ("6.25e-02", 0.0625), ("inf", math.inf),
    ("-Infinity", -math.inf), ("1e999", math.inf),
])
def test_numbers_of_every_common_form_are_values(text: str, value: float) -> None:
    assert seen(reader(), printed(f"step 1 loss {text}"))[0].value == value


@pytest.mark.parametrize("text", ["nan", "NaN", "-nan"])
def test_nan_is_a_value(text: str) -> None:
    value = seen(reader(), printed(f"step 1 loss {text}"))[0].value
    assert value is not None and math.isnan(value)


@pytest.mark.parametrize("text", [
    "3,28", "1_000", "97%", "tensor(0.3)", "3.28,", "None", "0x10", "\u0663", "1e", "--1"])
def test_what_is_no_number_is_a_problem_that_shows_the_line(text: str) -> None:
    with pytest.raises(OutputProblem, match="is no number") as caught:
        seen(reader(), printed(f"step 1 loss {text}"))
    assert "step 1 loss" in str(caught.value)


@given(st.floats(allow_nan=False))
def test_every_float_that_python_prints_is_read_back(value: float) -> None:
    assert seen(reader(), printed(f"step 1 loss {value!r}"))[0].value == value


@pytest.mark.parametrize(("lines", "problem"), [
    (("step 5 loss 1", "step 5 loss 1"), r"step 5 is evaluated twice \(1, then 1\)"),
    (("step 5 loss 1", "step 5 loss 2"), r"step 5 is evaluated twice \(1, then 2\)"),
    (("step 5 loss 1", "step 4 loss 2"), "step goes back from 5 to 4"),
    (("step 1 loss 1 after 20 ms", "step 2 loss 1 after 10 ms"), "train time goes back from 0.02 to 0.01"),
    (("step 1 loss 1 after nan ms",), "train time 'nan' is no number of at least 0"),
    (("step 1 loss 1 after -3 ms",), "no number of at least 0"),
    (("step 1.5 loss 1",), "step '1.5' is no whole number"),
    (("step 1,000 loss 1",), "step '1,000' is no whole number"),
    (("step 99999999999999999999 loss 1",), "at most|no whole number"),
])
def test_a_line_that_cannot_be_is_a_problem(lines: tuple[str, ...], problem: str) -> None:
    with pytest.raises(OutputProblem, match=problem):
        seen(reader(), printed(*lines))


def test_the_same_samples_twice_are_a_problem_where_no_step_is_stated() -> None:
    with pytest.raises(OutputProblem, match="samples 64 is evaluated twice"):
        seen(reader(r"after (?P<samples>\d+): (?P<value>\S+)"), printed("after 64: 1", "after 64: 1"))


def test_epochs_may_repeat_because_programs_round_them() -> None:
    found = seen(reader(r"epoch (?P<epoch>\S+): (?P<value>\S+)"), printed("epoch 0.1: 1", "epoch 0.1: 2"))
    assert [one.value for one in found] == [1.0, 2.0]


def test_progress_is_no_evaluation_and_shares_its_order() -> None:
    progress = r"^step (?P<step>\d+) time (?P<train_time>\S+)"
    found = seen(reader(progress=progress), printed("step 1 time 10ms", "step 2 time 0.5s", "step 2 loss 3", "x"))
    assert [(one.seen, one.step, one.own_seconds) for one in found] == [
        ("step", 1, 0.01), ("step", 2, 0.5), ("evaluation", 2, None)]
    with pytest.raises(OutputProblem, match="step goes back"):
        seen(reader(progress=progress), printed("step 9 loss 3", "step 8 time 1s"))


@pytest.mark.parametrize(("text", "expected"), [("250ms", 0.25), ("2s", 2.0), ("1.5min", 90.0), ("2 h", 7200.0)])
def test_a_train_time_has_its_unit(text: str, expected: float) -> None:
    found = seen(reader(r"(?P<train_time>.+): (?P<value>\S+)"), printed(f"{text}: 1"))
    assert found[0].own_seconds == expected


@pytest.mark.parametrize("text", ["250", "250us", "ms", "1.2.3s"])
def test_a_train_time_without_a_known_unit_is_a_problem(text: str) -> None:
    with pytest.raises(OutputProblem, match="train time"):
        seen(reader(r"(?P<train_time>.+): (?P<value>\S+)"), printed(f"{text}: 1"))


def test_context_holds_until_the_next_and_states_nothing_itself() -> None:
    found = seen(reader(r"^loss (?P<value>\S+)", context=r"^epoch (?P<epoch>\d+)"),
                 printed("loss 9", "epoch 1", "loss 8", "epoch 2", "loss 7"))
    assert [(one.seen, one.epochs) for one in found] == [("evaluation", 0.0), ("evaluation", 1.0), ("evaluation", 2.0)]


def test_llm_c_on_a_processor_counts_its_steps_in_another_form() -> None:
    found = seen(PatternReader(ready("llm.c", "val_loss").patterns("val_loss")), printed(
        "val loss 5.32", "step 0: train loss 5.35 (took 912.1 ms)", "step 9: train loss 4.9 (took 900.2 ms)",
        "val loss 4.89"))
    assert [(one.seen, one.step, one.value) for one in found] == [
        ("evaluation", 0, 5.32), ("step", 0, None), ("step", 9, None), ("evaluation", 9, 4.89)]


def test_nothing_counts_after_the_end_of_the_training() -> None:
    found = seen(reader(stop="^done$"), printed("step 1 loss 3", "step 2 loss 2", "done", "step 2 loss 1", "done"))
    assert [(one.seen, one.step) for one in found] == [("evaluation", 1), ("evaluation", 2), ("stop", None)]


def begins(name: str, metric: str, *texts: str) -> list[str]:
    """Return the lines with which a ready pattern sees the training begin."""
    logs = {"logs": "metrics.csv"} if name == "lightning-csv" else {}
    finder = StartFinder(Evaluation.model_validate({"pattern": name, "metric": metric, "direction": "lower", **logs}))
    return [line.text for line in printed(*texts) if finder.take(line)]


@pytest.mark.parametrize(("name", "metric", "before", "line"), [
    ("nanogpt", "val_loss", "number of parameters: 10.65M", "using fused AdamW: False"),
    ("nanogpt-speedrun", "val_loss", "Resetting Model", "step:0/1390 val_loss:10.8311 train_time:0ms step_avg:0.03ms"),
    ("llm.c", "val_loss", "train dataset num_batches: 1192", "val dataset num_batches: 128"),
    ("llm.c", "val_loss", "num_parameters: 124475904 => bytes: 248951808", "=> setting grad_accum_steps=8"),
    ("huggingface-trainer", "eval_loss", "Map: 100%|###| 10/10 [00:00<00:00, 99.1 examples/s]",
     "  0%|          | 0/500 [00:00<?, ?it/s]"),
    ("huggingface-trainer", "eval_loss", "Loading weights:   0%|   | 0/148 [00:00<?, ?it/s]",
     "[INFO|trainer.py:2382] 2026-01-02 10:11:12,000 >> ***** Running training *****"),
    ("keras", "val_loss", "Model: functional", "Epoch 1/3"),
    ("lightning-csv", "val_loss", "Sanity Checking: |          | 0/? [00:00<?, ?it/s]",
     "Training: |          | 0/? [00:00<?, ?it/s]"),
    ("lightning-csv", "val_loss", "Trainable params: 9", "Total estimated model params size (MB): 0.000"),
])
def test_a_ready_pattern_knows_where_training_begins(name: str, metric: str, before: str, line: str) -> None:
    assert begins(name, metric, before, line, line) == [line]


def test_every_ready_pattern_has_a_start_rule() -> None:
    assert [name for name, known in READY.items() if not (known.start or known.kind == "airbench")] == []


def test_a_message_shows_control_characters_as_escapes_and_a_long_line_cut() -> None:
    with pytest.raises(OutputProblem) as caught:
        seen(reader(), printed("step 1 loss \x07" + "z" * 5000))
    assert "\x07" not in str(caught.value) and len(str(caught.value)) < 500


def test_ranks_that_print_alike_are_told_so() -> None:
    lines = printed("step 10 loss 3", "step 10 loss 3")
    assert len(evaluations(seen(reader(), lines[:1]))) == 1
    with pytest.raises(OutputProblem, match="one process prints"):
        seen(reader(), lines)
