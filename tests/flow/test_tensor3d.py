"""The smoke form of suite tensor3d on emulated nodes: every cell ends well, its answers and bytes are checked."""

from __future__ import annotations

from pathlib import Path

import pytest

from repro.launchers.netns.probe import ability
from repro.record.folder.store import read_record
from tests.commands import command

pytest.importorskip("torch")
pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(ability().problem), reason=ability().problem or "")]


def test_the_smoke_form_checks_every_answer_and_every_byte(tmp_path: Path) -> None:
    code, _, error = command(tmp_path, "run", "tensor3d", "--seeds", "1", "-o", "stop.repeats=1", "-o",
                             "measurement.batch=8", "-o", "measurement.hidden=64", "--no-mlflow", "--out", "run")
    assert code == 0, error
    found = read_record(tmp_path / "run")
    assert len(found.results) == 5
    for item in found.results:
        assert item.status == "ok", item.reason
        assert item.operation is not None
        assert len(item.operation.checks) == 7
        assert item.network is not None and item.network.origin == "emulated"
        figures = {each.name: each.value for each in item.operation.figures}
        assert item.operation.busiest_sent_bytes == figures["sent_formula"]
        assert figures["peak_tensor_bytes"] == figures["peak_formula"]
    page = next((tmp_path / "run/report").glob("*.html")).read_text()
    assert "on 64 ranks" in page
