"""DAWNBench entries: the first row at the target, both files or a reason for each."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from repro.published.cells import as_result
from repro.published.dawnbench import import_entries
from repro.published.record import PublishedResult
from tests.unit.published.made_logs import entry

HEAD = "epoch\thours\ttop5Accuracy\n"


def one(root: Path) -> PublishedResult:
    found = import_entries(root)
    assert found.refused == []
    return found.results[0]


def refusals(root: Path) -> dict[str, str]:
    return {item.source.rpartition("/")[2]: item.reason for item in import_entries(root).refused}


def test_the_first_row_at_the_target_counts(tmp_path: Path) -> None:
    entry(tmp_path)
    result = one(tmp_path)
    assert (result.status, result.seconds, result.epochs_to_target) == ("ok", 3600.0, 2.0)
    assert (result.org, result.model, result.accelerator) == ("A. Nother", "Net 9", "8 chips")
    assert result.date == "2019-01-01"
    assert result.bracket is not None and (result.bracket.miss_seconds, result.bracket.hit_seconds) == (1800.0, 3600.0)
    assert result.hyperparameters["batchSize"] == 128
    assert result.global_batch_size is None and result.samples_to_target is None
    assert as_result(result).tta_wall == 3600.0


def test_each_benchmark_has_its_own_target(tmp_path: Path) -> None:
    entry(tmp_path, benchmark="CIFAR10")
    result = one(tmp_path)
    assert (result.benchmark, result.seconds, result.target) == ("cifar10", 5400.0, {"": 94.0})


@pytest.mark.parametrize("tsv", [
    "\ufeffepoch\thours\ttop5Accuracy\r\n1\t1.0\t93.0\r\n\r\n",
    "hours\tepoch\ttop1Accuracy\ttop5Accuracy\n1.0\t1\t70\t93.0\n",
    "epoch\thours\ttop5Accuracy\r1\t1.0\t93.0",
])
def test_columns_in_any_order_and_any_line_ends(tmp_path: Path, tsv: str) -> None:
    entry(tmp_path, tsv=tsv)
    assert one(tmp_path).seconds == 3600.0


@pytest.mark.parametrize(("rows", "status", "reason"), [
    ("1\t1\t92.99\n", "missed", "best 92.99 % of 93 %"),
    ("1\t1\t0.93\n", "invalid", "the accuracies look like fractions; percentages are required"),
    ("1\t2\t50\n2\t1\t93\n", "invalid", "time goes backwards: 3600 s after 7200 s"),
    ("1\t0\t94\n", "invalid", "at the target before any time has passed"),
])
def test_curves_that_give_no_time(tmp_path: Path, rows: str, status: str, reason: str) -> None:
    entry(tmp_path, tsv=HEAD + rows)
    result = one(tmp_path)
    assert (result.status, result.reason, result.seconds, result.bracket) == (status, reason, None, None)
    assert import_entries(tmp_path).cells[0].score.valid is False


@pytest.mark.parametrize(("tsv", "reason"), [
    ("", "line 1: no column 'epoch'"), (HEAD, "no row below the header"),
    ("epoch\thours\tepoch\ttop5Accuracy\n", "line 1: a column occurs twice"),
    ("epoch\thours\ttop1Accuracy\n1\t1\t93\n", "line 1: no column 'top5Accuracy'"),
    (HEAD + "1\t1\n", "line 2: 2 fields where the header has 3"),
    (HEAD + "1\t1\tnan\n", "line 2: 'nan' is not a finite number"),
    (HEAD + "1\tinf\t1\n", "line 2: 'inf' is not a finite"),
    (HEAD + "1\t-1\t1\n", "line 2: '-1' is not a finite number of at least 0"),
    (HEAD + "1\t1\t101\n", "line 2: an accuracy"),
    (HEAD + "1\t1e9\t93\n", "line 2: 1e+09 hours"), (HEAD + "1\t1\t9\0\n", "a NUL byte at byte 31"),
    (HEAD + "1\t1\t1\n" * 10_001, "line 10002: more than 10,000 rows"), ("x" * (5 << 20), "larger than 4 MiB"),
])
def test_a_damaged_curve_is_refused_with_its_description(tmp_path: Path, tsv: str, reason: str) -> None:
    entry(tmp_path, tsv=tsv)
    found = refusals(tmp_path)
    assert found["fast.tsv"].startswith(reason) and found["fast.json"] == "its curve was refused"


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    entry(tmp_path).write_bytes(HEAD.encode() + b"1\t1\t9\xff\n")
    assert refusals(tmp_path)["fast.tsv"] == "not UTF-8 (byte 31)"


@pytest.mark.parametrize("description", ["{", "[]", '{"a": 1, "a": 2}', "[" * 9999, '{"author": {"x": 1}}'])
def test_without_a_description_the_curve_is_kept(tmp_path: Path, description: str) -> None:
    entry(tmp_path, description=description)
    found = import_entries(tmp_path)
    assert found.results[0].seconds == 3600.0 and found.results[0].org == "unknown"
    assert len(found.refused) == (0 if "author" in description else 1)


def test_files_other_than_training_entries_are_refused_by_name(tmp_path: Path) -> None:
    path = entry(tmp_path)
    (path.parent / "alone.json").write_text("{}")
    (path.parent / "notes.md").write_text("hello")
    (path.parent / "link.tsv").symlink_to("/etc/passwd")
    other = tmp_path / "ImageNet" / "inference"
    other.mkdir()
    (other / "quick.tsv").write_text(HEAD)
    entry(tmp_path, benchmark="SQuAD")
    found = refusals(tmp_path)
    assert found["alone.json"] == "a description without a curve (.tsv) next to it"
    assert found["notes.md"].startswith("not a training entry")
    assert found["link.tsv"] == "is a symbolic link; links are not followed"
    assert found["quick.tsv"] == "an inference entry; training entries are imported"
    assert found["fast.tsv"].startswith("neither ImageNet nor CIFAR10 is in its path")
    assert len(import_entries(tmp_path).results) == 1


def test_epochs_that_do_not_grow_are_reported(tmp_path: Path) -> None:
    entry(tmp_path, tsv=HEAD + "0\t1\t50\n0\t2\t93\n")
    warnings = one(tmp_path).warnings
    assert "does not increase" in warnings[0] and "counted from 0" in warnings[1]


@given(st.binary(max_size=300), st.binary(max_size=300))
@example(HEAD.encode() + b"1\t1\t\xd9\xa3\n", b'{"author": "\\ud800", "misc": {"a": NaN, "b": 1e999}}')
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_bytes_crash_the_import(tmp_path: Path, rows: bytes, description: bytes) -> None:
    path = entry(tmp_path)
    path.write_bytes(HEAD.encode() + rows)
    path.with_suffix(".json").write_bytes(description)
    found = import_entries(tmp_path)
    assert len(found.results) + len(found.refused) in (1, 2)
    assert all(item.model_dump_json() for item in found.results)
