"""JSON by a stranger that takes a hundred times its text in memory: refused in one line, measured in a child."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import repro
from repro.core.errors import OutputError
from repro.core.files import MAX_PARTS, parse_model, read_model, refuse_crowded, write_model
from repro.record.folder.store import MAX_TRIALS, check_plan
from tests.records import SUITE, make_record

ROOT = Path(repro.__file__).parents[1]
LIMIT_MB = 500
CHILD = """
import sys
from pathlib import Path
from repro.core.errors import OutputError
from repro.suite.planning.plan import Plan
from repro.published.record import PublishedResult
from repro.published.store import _read
from repro.record.result.results import Result
from repro.core.files import read_model
from repro.record.folder.ledger import Attempt, read_lines
from repro.record.folder.store import _read_gate
from repro.record.folder.index import read_sums
from repro.reporters.tracking.state import read_state

path = Path(sys.argv[1])
readers = {
    "plan.json": lambda: read_model(path, Plan), "result.json": lambda: read_model(path, Result),
    "parity.json": lambda: _read_gate(path), "ledger.jsonl": lambda: read_lines(path, Attempt),
    "sha256sums.txt": lambda: read_sums(path), "tracking.json": lambda: read_state(path),
}
try:
    readers[path.name]()
    print("read")
except OutputError as error:
    print(error)
# Not ru_maxrss: it begins with what the process had that this one was started from.
status = Path("/proc/self/status").read_text()
print(int(status.partition("VmHWM:")[2].split()[0]) // 1024)
"""
ROOM = 32 << 20


def filled(head: bytes, unit: bytes, tail: bytes, size: int = ROOM) -> bytes:
    """A text of at most `size` bytes: as many units between head and tail as there is room for."""
    return head + unit * ((size - len(head) - len(tail)) // len(unit)) + tail


CASES = {
    "lists in a gate": ("parity.json", lambda: filled(b'{"findings": [', b"[],", b"0]}"), "holds more values"),
    "lists in a result": ("result.json", lambda: filled(b'{"curve": [', b"[],", b"0]}"), "holds more values"),
    "objects in a result": ("result.json", lambda: filled(b'{"curve": [', b'{"a":1},', b"0]}"), "holds more values"),
    "short texts": ("parity.json", lambda: filled(b'{"why": [', '"ē",'.encode(), b"0]}"), "holds more values"),
    "as many as pass": ("result.json", lambda: filled(b'{"curve": [', b'{"a":1},', b"0]}", 3_190_000),
                     "Field required"),
    "numbers as pass": ("plan.json", lambda: filled(b'{"format": 1, "cells": [', b"1,", b"0]}", 2_990_000),
                        "Field required"),
    "one long text": ("plan.json", lambda: filled(b'{"format": 1, "zzz": "', b"a", b'"}'), "Field required"),
    "keys": ("result.json", lambda: b'{"hashes": {' + b",".join(b'"%x":1' % n for n in range(500_000)) + b"}}",
             "an object of 500,000 entries"),
    "empty lines": ("ledger.jsonl", lambda: b"\n" * (64 << 20), "Invalid JSON"),
    "short lines": ("ledger.jsonl", lambda: b"{}\n" * (21 << 20), "Field required"),
    "one long line": ("ledger.jsonl", lambda: filled(b"[", b"[],", b"0]\n"), "a line longer than any run writes"),
    "an index of nothing": ("sha256sums.txt", lambda: b"\n" * (48 << 20), ":1: not a line of"),
    "a cache of lists": ("tracking.json", lambda: filled(b'{"stores": [', b"[],", b"0]}"), "read"),
}


def measured(folder: Path, name: str, content: bytes) -> tuple[str, int]:
    """(what the reader says, its peak in MB)."""
    (folder / name).write_bytes(content)
    ended = subprocess.run([sys.executable, "-c", CHILD, str(folder / name)], capture_output=True, text=True,
                           env={**os.environ, "PYTHONPATH": str(ROOT)}, timeout=60, check=True)
    said, peak = ended.stdout.splitlines()
    return said, int(peak)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_no_file_needs_more_than_500_mb(tmp_path: Path, case: str) -> None:
    name, made, expected = CASES[case]
    content = made()
    said, peak = measured(tmp_path, name, content)
    print(f"{case}: {len(content) >> 20} MiB, peak {peak} MB")
    assert peak < LIMIT_MB
    assert expected in said and (said == "read" or said.startswith(str(tmp_path / name)))


@pytest.mark.slow
def test_a_file_of_empty_lists_is_refused_in_one_line(tmp_path: Path) -> None:
    said, peak = measured(tmp_path, "parity.json", filled(b'{"findings": [', b"[],", b"0]}", 4 << 20))
    assert said.startswith(f"{tmp_path / 'parity.json'}: holds more values than any file of a run")
    assert peak < 220  # 160 of them for what the child imports


@pytest.mark.slow
def test_the_largest_plan_is_read(tmp_path: Path) -> None:
    record = make_record(tmp_path / "run", SUITE, only=0)
    plan = record.plan
    seeds = MAX_TRIALS // len(plan.cells)
    order = tuple((index, repeat) for repeat in range(seeds) for index in range(len(plan.cells)))
    large = plan.model_copy(update={"order": order})
    write_model(tmp_path / "plan.json", large)
    found = read_model(tmp_path / "plan.json", type(plan))
    check_plan(tmp_path / "plan.json", found)
    assert found == large and len(order) <= MAX_PARTS / 2


def test_errors_of_large_and_small_files_are_equal(tmp_path: Path) -> None:
    record = make_record(tmp_path / "run", SUITE, only=0)
    data = record.plan.model_dump(mode="json", by_alias=True)
    data["cells"][1]["label"] = 5
    said = []
    for extra in (0, 60_000):
        data["order"] = [[0, repeat] for repeat in range(extra)]
        with pytest.raises(OutputError) as caught:
            parse_model("plan.json", json.dumps(data).encode(), type(record.plan))
        said.append(str(caught.value))
    assert said[0] == said[1] == "plan.json: cells.1.label: Input should be a valid string"


def test_crowded_files_are_refused() -> None:
    refuse_crowded("x", b"[" * MAX_PARTS)
    with pytest.raises(OutputError, match=r"^x: holds more values than .* \(at most 1,500,000, of which 400,000"):
        refuse_crowded("x", b"[" * (MAX_PARTS + 1))
