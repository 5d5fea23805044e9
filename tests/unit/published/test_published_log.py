"""One log: three generations read alike, damage refused with its line, no bytes that crash, hang or take memory."""

from __future__ import annotations

import math
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from repro.published.mlperf.folder import import_folder
from repro.published.mlperf.log import MAX_LINE, TOKEN, MlperfLog
from repro.published.record import PublishedResult
from repro.published.untrusted import files
from tests.unit.published.made_logs import log_lines, mllog, repository, v05_log, v06_log


def one(tmp_path: Path, content: str | bytes, round_name: str = "training_v4.0") -> PublishedResult:
    """The result of one log that must be taken."""
    folder = repository(tmp_path, {}, round_name=round_name)
    path = folder / "result_0.txt"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    found = import_folder(tmp_path)
    assert found.refused == []
    return found.results[0]


def refusal(tmp_path: Path, content: str | bytes) -> str:
    """The reason for which one log must be refused."""
    folder = repository(tmp_path, {})
    (folder / "result_0.txt").write_bytes(content.encode() if isinstance(content, str) else content)
    found = import_folder(tmp_path)
    assert found.results == [] and len(found.refused) == 1
    assert found.refused[0].cell_id == found.cells[0].cell_id and found.cells[0].score.failed == 1
    return found.refused[0].reason


def changed(change: Callable[[list[str]], None]) -> str:
    lines = log_lines()
    change(lines)
    return "".join(lines)


# ---- the content of a complete log


def test_a_log_of_today(tmp_path: Path) -> None:
    result = one(tmp_path, "".join(log_lines()))
    assert (result.status, result.seconds, result.epochs_to_target) == ("ok", 600.0, 12.0)
    assert (result.global_batch_size, result.seed, result.samples_to_target) == (256, 7, 12 * 1_281_167)
    assert result.hyperparameters == {"opt_name": "lars"}
    assert (result.org, result.system, result.benchmark, result.round) == ("Acme", "box", "resnet", "training_v4.0")
    assert (result.accelerator, result.accelerators, result.nodes, result.framework) == ("Chip 1", 16, 2, "Frame 1.0")
    assert [point.value for point in result.curve] == [0.3, 0.6, 0.76] and result.curve[-1].seconds == 599.0
    assert result.bracket is not None and result.init_seconds == 10.0
    assert (result.bracket.miss_samples, result.bracket.hit_seconds) == (8 * 1_281_167, 599.0)
    assert result.warnings == ()


def test_a_log_of_round_0_6(tmp_path: Path) -> None:
    result = one(tmp_path, v06_log(), "training_v0.6")
    assert (result.status, result.seconds, result.epochs_to_target) == ("ok", pytest.approx(600.0, abs=1e-5), 8.0)
    assert (result.global_batch_size, result.samples_to_target, result.org) == (4096, 8000, "Acme")


def test_a_log_of_round_0_5(tmp_path: Path) -> None:
    result = one(tmp_path, v05_log(), "v0.5.0")
    assert (result.status, result.seconds, result.seed) == ("ok", pytest.approx(600.0, abs=1e-5), 42)
    assert (result.round, result.epochs_to_target) == ("training_v0.5", 60.0)
    assert result.global_batch_size is None  # input_batch_size may be one worker's
    assert result.hyperparameters["input_batch_size"] == 1024 and result.hyperparameters["opt_name"] == "sgd"
    assert result.target == {"": 0.749}


def test_a_log_of_round_0_5_that_reports_failure(tmp_path: Path) -> None:
    assert one(tmp_path, v05_log(success="false"), "v0.5.0").status == "missed"


@pytest.mark.parametrize(("ending", "before"), [("\r\n", ""), ("\n", "99%|####\r100%|####\r"), ("\r", "")])
def test_line_ends_and_progress_bars(tmp_path: Path, ending: str, before: str) -> None:
    text = "".join(before + line.rstrip("\n") + ending for line in log_lines())
    assert one(tmp_path, text).seconds == 600.0


def test_the_last_event_of_a_line_counts_with_a_warning(tmp_path: Path) -> None:
    text = "".join(log_lines()).replace("\n:::MLLOG", " :::MLLOG", 1)
    result = one(tmp_path, text)
    assert result.status == "ok" and "1 lines have several events" in result.warnings[0]


def test_foreign_bytes_outside_events_are_ignored(tmp_path: Path) -> None:
    text = b"\xff\xfe stdout of a compiler\n" + "".join(log_lines()).encode() + b":::MLONE of another tool\n"
    assert one(tmp_path, text).status == "ok"


def test_a_complete_last_line_without_its_end_is_read(tmp_path: Path) -> None:
    assert one(tmp_path, "".join(log_lines()).rstrip("\n")).status == "ok"


# ---- runs that do not hold together


@pytest.mark.parametrize(("change", "status", "reason"), [
    (lambda lines: lines.pop(), "invalid", "no run_stop"),
    (lambda lines: lines.append(lines[-1]), "invalid", "run_stop more than once (line 18 again)"),
    (lambda lines: lines.remove(mllog("run_start", None, 0)), "invalid", "no run_start"),
    (lambda lines: lines.append(mllog("run_start", None, 1)), "invalid", "run_start more than once"),
    (lambda lines: lines.append(lines.pop().replace("success", "aborted")), "missed", "run_stop says 'aborted'"),
    (lambda lines: lines.append(lines.pop().replace("status", "state")), "invalid", "run_stop gives no status"),
    (lambda lines: lines.__setitem__(-1, mllog("run_stop", None, -5, status="success")), "invalid",
     "time goes backwards: run_stop"),
    (lambda lines: lines.insert(-1, mllog("eval_accuracy", 0.77, 5, epoch_num=13)), "invalid",
     "time goes backwards: an evaluation at 5 s after one at 599 s"),
    (lambda lines: lines.append(mllog("global_batch_size", 512, 601)), "invalid",
     "global_batch_size is logged with different values"),
])
def test_an_incomplete_log_has_no_time(
    tmp_path: Path, change: Callable[[list[str]], None], status: str, reason: str
) -> None:
    result = one(tmp_path, changed(change))
    assert (result.status, result.seconds, result.samples_to_target) == (status, None, None)
    assert result.reason.startswith(reason)


@pytest.mark.parametrize("values", [(0.3, 0.7589), (0.3, 76.1), (0.3, math.nan), (math.inf,), ()])
def test_success_without_the_target_is_not_believed(tmp_path: Path, values: tuple[float, ...]) -> None:
    result = one(tmp_path, "".join(log_lines(values=values)))
    assert (result.status, result.seconds) == ("invalid", None)
    assert result.reason == "run_stop says success, but no evaluation reaches the target"


def test_a_value_that_is_no_number_is_none_with_a_warning(tmp_path: Path) -> None:
    result = one(tmp_path, "".join(log_lines(values=(math.nan, 0.5, 0.76))))
    assert result.status == "ok" and result.curve[0].value is None
    assert "not a finite number" in result.warnings[0]


def test_with_an_unknown_target_the_status_of_the_log_counts_with_a_warning(tmp_path: Path) -> None:
    result = one(tmp_path, "".join(log_lines(division="open", values=(0.5,))))
    assert result.status == "ok" and result.target == {}
    assert "only the log says" in result.warnings[0]


def test_several_qualities_must_hold_of_the_same_state(tmp_path: Path) -> None:
    def log(*pairs: tuple[float, float]) -> str:
        lines = log_lines(benchmark="stable_diffusion", values=())
        for index, (fid, clip) in enumerate(pairs, 1):
            lines[-1:-1] = [
                mllog("eval_accuracy", fid, 100 * index, samples_count=512 * index, metric="FID"),
                mllog("eval_accuracy", clip, 100 * index + 5, samples_count=512 * index, metric="CLIP"),
            ]
        return "".join(lines)

    for text, status, samples in ((log((95, 0.1), (89, 0.1), (89, 0.16)), "ok", 3 * 512),
                                  (log((89, 0.1), (95, 0.16)), "invalid", None)):
        folder = repository(tmp_path / status, {"result_0.txt": text}, benchmark="stable_diffusion")
        result = import_folder(folder.parents[3]).results[0]
        assert (result.status, result.samples_to_target) == (status, samples)


def test_evaluations_without_a_position_are_not_merged(tmp_path: Path) -> None:
    lines = log_lines(values=())
    lines[-1:-1] = [mllog("eval_accuracy", 0.5, 100), mllog("eval_accuracy", 0.76, 300)]
    result = one(tmp_path, "".join(lines))
    assert (result.status, result.epochs_to_target, result.samples_to_target) == ("ok", None, None)
    assert result.bracket is not None
    assert (result.bracket.miss_seconds, result.bracket.hit_seconds) == (100.0, 300.0)


# ---- damage


@pytest.mark.parametrize(("content", "reason"), [
    ("", "it has no MLPerf event line"),
    ("".join(log_lines())[:-30], "line 17: not JSON"),
    ("".join(log_lines())[:-30], "(the file ends inside this line)"),
    ("".join(log_lines()).encode().replace(b"opt_name", b"opt\x00name"), "line 9: a NUL byte"),
    ("".join(log_lines()).encode().replace(b"some other", b"\x00"), "line 11: a NUL byte"),
    ("".join(log_lines()).encode().replace(b"opt_name", b"opt\xffname"), "line 9: not UTF-8 (byte"),
    ("".join(log_lines()).replace('"lars"', "[" * 100_000), "line 9: JSON nested deeper than 32 levels"),
    ("".join(log_lines()).replace('"lars"', "[" * 40 + "]" * 40), "line 9: JSON nested deeper than 32 levels"),
    ("".join(log_lines()).replace('"lars"', '{"a": 1, "a": 2}'), "line 9: the key 'a' occurs twice in one object"),
    ("".join(log_lines()).replace('"key": "opt_name"', '"key": "seed", "key": "opt_name"'),
     "line 9: the key 'key' occurs twice"),
    ("".join(log_lines()).replace('"lars"', "9" * 5000), "line 9: a number in it is too long"),
    ("".join(log_lines()).replace(f"{1_700_000_600_000}", "NaN"), "line 17: time_ms is 'nan', not a finite number"),
    ("".join(log_lines()).replace(f"{1_700_000_600_000}", "1e999"), "line 17: time_ms is 'inf'"),
    ("".join(log_lines()).replace(f"{1_700_000_600_000}", "1e300"), "is not a valid time of a run"),
    ("".join(log_lines()).replace(f"{1_700_000_600_000}", "true"), "line 17: time_ms is 'True'"),
    ("".join(log_lines()).replace(f"{1_700_000_600_000}", '"now"'), "line 17: time_ms is 'now'"),
    ("".join(log_lines()).replace('"key": "opt_name"', '"key": null'), "line 9: an event without a key"),
    ("".join(log_lines()) + ":::MLLOG [1]\n", "line 18: no JSON object after the token"),
    ("".join(log_lines()) + ":::MLLOG {\"key\": \"a\", \"time_ms\": 1, \"metadata\": 3}\n", "line 18: metadata is no"),
    ("".join(log_lines()) + v06_log(), "line 18: a line of form v0.6 in a log of form mllog"),
    (v06_log() + ":::MLL 1.2.3 key: {}\n", "line 9: '1.2.3' is not a time in seconds"),
    (v06_log() + ":::MLL 1.2 key\n", "line 9: not a line of the form `:::MLL TIME KEY: {...}`"),
    (v05_log() + ":::MLPv0.5.0 resnet yesterday (a:1) key\n", "line 9: not a line of the form `:::MLPv0.5.0"),
    (v05_log() + ":::MLPv0.5.0 resnet 1 (a:1) key: {]\n", "line 9: not JSON"),
    (v05_log() + ":::MLPv0." + "5" * 500_000 + "\n", "line 9: not a line of the form"),  # no pattern may backtrack
    (v05_log() + ":::MLPv0.5.0 " + "a" * 500_000 + "\n", "line 9: not a line of the form"),
    (v06_log() + ":::MLL " + "1" * 500_000 + " " + "a" * 400_000 + "\n", "line 9: not a line of the form"),
    ("".join(log_lines()) + "".join(mllog("eval_accuracy", 0.1, 1) for _ in range(10_001)), "more than 10,000 eval"),
    ("".join(log_lines()) + "".join(mllog(f"k{index}") for index in range(2_001)), "more than 2,000 different keys"),
])
def test_damage_is_refused_with_its_reason(tmp_path: Path, content: str | bytes, reason: str) -> None:
    assert reason in refusal(tmp_path, content)


def test_an_endless_event_line_is_refused_without_memory(tmp_path: Path) -> None:
    folder = repository(tmp_path, {})
    with (folder / "result_0.txt").open("wb") as stream:
        stream.write(b':::MLLOG {"key": "')
        for _ in range(50):
            stream.write(b"x" * (1 << 20))
        stream.write(b'"}\n')
    tracemalloc.start()
    try:
        found = import_folder(tmp_path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert found.refused[0].reason == "line 1: an event line of more than 1 MiB"
    assert peak < 8 << 20


def test_an_endless_line_of_others_is_passed_over(tmp_path: Path) -> None:
    folder = repository(tmp_path, {})
    with (folder / "result_0.txt").open("wb") as stream:
        for _ in range(20):
            stream.write(b"." * (1 << 20))
        stream.write(b"\n" + "".join(log_lines()).encode())
    assert import_folder(tmp_path).results[0].status == "ok"


def test_a_log_larger_than_the_limit_is_not_opened(tmp_path: Path) -> None:
    folder = repository(tmp_path, {})
    with (folder / "result_0.txt").open("wb") as stream:
        stream.truncate(1 << 40)  # no bytes on the disk
    assert import_folder(tmp_path).refused[0].reason == "larger than 256 MiB"


# ---- any bytes


@given(st.binary(max_size=400), st.integers(1, 64))
@example(b":::MLLOG " + b"a" * 20 + b"\r\n:::MLLOG :::MLLOG b", 3)
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_lines_do_not_depend_on_how_the_file_is_cut_into_pieces(tmp_path: Path, noise: bytes, chunk: int) -> None:
    path = tmp_path / "log"
    content = noise.replace(b"\0", b":::ML")
    path.write_bytes(content)
    whole = list(MlperfLog(path).event_lines())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "CHUNK", chunk)
        pieces = list(MlperfLog(path).event_lines())
    assert pieces == whole
    expected = []
    for number, line in enumerate(content.split(b"\n"), 1):
        for piece in line.split(b"\r"):
            if TOKEN in piece:
                expected.append((number, piece[piece.rindex(TOKEN):]))  # noqa: PERF401
    assert whole == expected
    assert len(content) < MAX_LINE


GRAINS = st.sampled_from([
    b":::MLLOG ", b":::MLL ", b":::MLPv0.5.0 ", b"\n", b"\r", b"\0", b"{", b"}", b"[", b"]", b'"key": "run_stop"',
    b'"key": "run_start"', b'"key": "eval_accuracy"', b'"time_ms": 1', b'"time_ms": 2e3', b'"value": NaN',
    b'"value": -1e999', b'"value": {"a": {}}', b'"metadata": {"epoch_num": 1e308}',
    b'"metadata": {"status": "success"}',
    b", ", b"1.5 run_start: ", b"(f:1) ", b"\xff", b"\xed\xa0\x80", b'"\\ud800"', b"9" * 400,
])


@pytest.mark.slow
@given(st.lists(st.one_of(GRAINS, st.binary(max_size=8)), max_size=40), st.integers(0, 17), st.booleans())
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_bytes_crash_the_import(tmp_path: Path, grains: list[bytes], at: int, whole: bool) -> None:
    folder = repository(tmp_path, {})
    lines = [line.encode() for line in log_lines()] if whole else []
    lines.insert(at, b"".join(grains))
    (folder / "result_0.txt").write_bytes(b"".join(lines))
    found = import_folder(tmp_path)
    assert len(found.results) + len(found.refused) == 1
    for item in found.results:
        assert item.model_dump_json().encode()
        assert (item.seconds is not None) == (item.status == "ok") == (not item.reason)
        assert item.seconds is None or 0 < item.seconds < math.inf
    assert all(item.reason and "\n" not in item.reason for item in found.refused)


@given(st.integers(0, 4000), st.integers(0, 255))
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_changed_byte_or_a_cut_never_makes_a_better_time(tmp_path: Path, at: int, byte: int) -> None:
    folder = repository(tmp_path, {})
    content = bytearray("".join(log_lines()).encode())
    content[at % len(content)] = byte
    (folder / "result_0.txt").write_bytes(content)
    (folder / "result_1.txt").write_bytes(bytes(content[: at % (len(content) - 1)]))  # more than the last line end
    found = import_folder(tmp_path)
    assert len(found.results) + len(found.refused) == 2
    assert all(item.source.endswith("result_0.txt") for item in found.results if item.status == "ok")
