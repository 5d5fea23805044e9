"""Other words for every warning, reason and advice change nothing that is decided; another value does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from repro.audit.audit import audit
from repro.board.read import read_entry
from repro.bundle.source import open_record
from repro.bundle.verify import verify
from repro.compare import compare
from repro.core.files import write_model
from repro.record.folder import index, resume
from repro.record.folder.resume import trials_to_run
from repro.record.folder.store import read_record
from repro.record.result.remarks import Stated, Worded
from repro.record.result.result_warnings import SlowLogging
from repro.record.result.status import meaning

RECORDS = Path(__file__).parents[2] / "docs" / "gallery" / "records"
OTHER_WORDS = "Lorem ipsum: crashed, missed 0.5 %"
SENTENCES = {"because", "cautions", "settles"}


def decided(path: Path) -> dict[str, Any]:
    """Return all decisions about a bundle, without sentences."""
    with open_record(path) as root:
        record = read_record(root)
        checked = verify(root)
        entry, _ = read_entry(root, root.parent, lambda *_: "")
        return {
            "verify": (checked.sound, checked.checked, len(checked.problems)),
            "resume": [trial.trial_id for trial in trials_to_run(record, again=True)],
            "damaged": resume.find(record.folder, record.plan),
            "compare": [item.model_dump(exclude=SENTENCES) for item in compare(record.plan, record.results)],
            "audit": [(item.id, item.verdict) for item in audit(str(root)).findings],
            "board": (entry.standing, entry.arms, [item.verdict for item in entry.answers]),
            "statuses": [meaning(item.status) for item in record.results],
        }


@pytest.mark.parametrize("name", ["missed", "resumed", "settled"])
def test_no_words_decide(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = decided(RECORDS / f"{name}.zip")
    monkeypatch.setattr(Worded, "words", property(lambda self: OTHER_WORDS))
    assert decided(RECORDS / f"{name}.zip") == before
    assert before["verify"][0]


def test_a_record_holds_kinds_and_values_without_words() -> None:
    with open_record(RECORDS / "settled.zip") as root:
        record = read_record(root)
        found = next(item for item in record.results if item.warnings)
        stored = json.loads(record.folder.result(found.trial_id).read_text())
        assert stored["warnings"] == [item.model_dump(mode="json") for item in found.warnings]
        assert found.warnings[0].words not in record.folder.result(found.trial_id).read_text()


def test_verify_compares_values_of_warnings_and_reasons() -> None:
    for name, change in (("settled", {"warnings": (SlowLogging(share=0.02),)}),
                         ("missed", {"reasons": (Stated(text="was stopped"),)})):
        with open_record(RECORDS / f"{name}.zip") as root:
            folder = read_record(root).folder
            result = next(item for item in read_record(root).results if item.status in ("ok", "missed")
                          and (name == "settled" or item.reasons))
            write_model(folder.result(result.trial_id), result.model_copy(update=change))
            index.seal(folder)
            checked = verify(root)
            assert next(iter(change)) in " ".join([*(item.what for item in checked.problems), *checked.notes])
