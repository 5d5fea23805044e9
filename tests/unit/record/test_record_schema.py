"""The schema of a run folder describes every JSON file of real records, and refuses what no record holds."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from repro.bundle.source import unpack
from repro.record.record_schema import LOG, MODELS, record_schema
from tests.in_process import called
from tests.records import make_record

ROOT = Path(__file__).parents[3]
CHECKERS = {name: Draft202012Validator(schema) for name, schema in record_schema().items() if name != LOG}
EVENTS = {key: Draft202012Validator(schema) for key, schema in record_schema()[LOG].items()}
WITHOUT_MODEL = ("ro-crate-metadata.json", "parity/*", "trials/*/network.json")
"""RO-Crate is a standard of its own; traces are the gate's, details of a network the launcher's."""


def described(root: Path) -> Iterator[tuple[str, Any]]:
    """Every JSON file of a run folder, or line of one: (its pattern, the data)."""
    for path in sorted((*root.rglob("*.json"), *root.rglob("*.jsonl"))):
        name = path.relative_to(root).as_posix()
        if any(fnmatch(name, pattern) for pattern in WITHOUT_MODEL):
            continue
        (pattern,) = [pattern for pattern in MODELS if fnmatch(name, pattern)]
        text = path.read_text(encoding="utf-8")
        yield from ((pattern, json.loads(item)) for item in (text.splitlines() if path.suffix == ".jsonl" else [text]))


def check(root: Path) -> set[str]:
    """Validate every file; return the patterns that occurred."""
    seen = set()
    for pattern, data in described(root):
        errors = [f"{pattern}: {'.'.join(map(str, item.absolute_path))}: {item.message}"[:300]
                  for item in CHECKERS[pattern].iter_errors(data)]
        assert errors == []
        seen.add(pattern)
    for path in root.glob(LOG):
        for line in path.read_text(encoding="utf-8").splitlines():
            event = json.loads(line.removeprefix(":::MLLOG "))
            assert [item.message[:300] for item in EVENTS[event["key"]].iter_errors(event)] == [], event["key"]
    return seen


@pytest.mark.parametrize("path", sorted((ROOT / "docs/gallery/records").glob("*.zip")), ids=lambda path: path.stem)
def test_every_file_of_the_gallery_is_as_described(path: Path, tmp_path: Path) -> None:
    unpack(path, tmp_path)
    assert check(tmp_path) >= {"plan.json", "environment.json", "launchers.json", "ledger.jsonl",
                               "trials/*/trial.json", "trials/*/result.json"}


def test_a_record_of_today_is_as_described(tmp_path: Path) -> None:
    record = make_record(tmp_path / "run")
    assert check(record.folder.root) >= {"plan.json", "environment.json", "ledger.jsonl", "trials/*/result.json"}


@pytest.mark.parametrize(("name", "change"), [
    ("plan.json", {"format": 2}), ("plan.json", {"surplus": 1}), ("trials/*/result.json", {"status": "won"}),
    ("trials/*/result.json", {"repeat": "0"}),
])
def test_what_no_record_holds_is_refused(tmp_path: Path, name: str, change: dict[str, Any]) -> None:
    record = make_record(tmp_path / "run", only=1)
    data = next(data for pattern, data in described(record.folder.root) if pattern == name)
    assert CHECKERS[name].is_valid(data)
    assert not CHECKERS[name].is_valid({**data, **change})


@pytest.mark.parametrize(("key", "value", "metadata"), [
    ("x_target", "high", {}), ("seed", None, {"master_seed": 1}), ("run_stop", None, {"outcome": "won"}),
])
def test_what_no_log_holds_is_refused(key: str, value: Any, metadata: dict[str, Any]) -> None:
    kind = {"run_stop": "INTERVAL_END"}.get(key, "POINT_IN_TIME")
    assert not EVENTS[key].is_valid({"key": key, "event_type": kind, "value": value, "metadata": metadata})


def test_the_page_names_every_file(tmp_path: Path) -> None:
    page = (ROOT / "docs/record.md").read_text(encoding="utf-8")
    assert [name for name in MODELS if f"`{name}`" not in page] == []
    modelled = dict(re.findall(r"^\| `(\S+)` \| `(repro\S+)` \|", page, re.MULTILINE))
    assert modelled == {name: f"{model.__module__}.{model.__qualname__}" for name, model in MODELS.items()
                        if name != "launchers.json"}, "an early record's, among the files without a model"
    shown = json.loads(called("schema", "record").stdout)
    assert shown == record_schema()
