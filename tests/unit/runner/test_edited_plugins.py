"""The source of a plug-in that is edited while its run goes on."""

from __future__ import annotations

from pathlib import Path

import pytest

from repro.bundle.verify import verify
from repro.compare.runs.run_warnings import run_warnings
from repro.core.machine import detect
from repro.record.folder.store import Record
from repro.record.result.results import Result
from repro.runner.run import Run, prepare
from repro.suite.file import read_suite
from repro.suite.planning.plan import make_plan
from tests.letters import installed, write_package
from tests.plans import suite
from tests.watcher import Silent

SUITE = suite("edited", seeds=2, engine="invented", stop="{metric: top1, target: 0.9, max_epochs: 2}",
              launcher="inline")
SOURCE = "from repro.engines.fake import Fake\nfrom .parts import LAYERS\n\n\nclass Invented(Fake):\n    pass\n"


class Editor(Silent):
    """Edits or removes a module of the package when the first trial ends."""

    def __init__(self, module: Path, text: str | None) -> None:
        super().__init__()
        self.module, self.text = module, text

    def trial_ended(self, result: Result, seconds: float) -> None:
        if self.text is None:
            self.module.unlink(missing_ok=True)
        else:
            self.module.write_text(self.text)


def edited_run(root: Path, text: str | None) -> tuple[Record, Editor]:
    write_package(root / "packages")
    (root / "packages/letters/__init__.py").write_text(SOURCE)
    points = root / "packages/letters-1.0.dist-info/entry_points.txt"
    points.write_text("[repro.engine]\ninvented = letters:Invented\n")
    (root / "s.yaml").write_text(SUITE)
    watcher = Editor(root / "packages/letters/parts.py", text)
    with installed(root / "packages"):
        source = read_suite(str(root / "s.yaml"))
        plan = make_plan(source.suite, detect(), source.problem)
        return Run(plan, prepare(plan, source.text, root / "run"), detect(), watcher).execute(), watcher


@pytest.mark.parametrize("text", ["LAYERS = 3\n", pytest.param(None, marks=pytest.mark.slow)])
def test_an_edit_during_the_run_is_in_the_record_and_next_to_the_verdict(tmp_path: Path, text: str | None) -> None:
    record, watcher = edited_run(tmp_path, text)
    (found,) = [item for item in run_warnings(record) if item.title == "Plug-in edited"]
    assert found.text.startswith("plug-in engine invented letters 1.0, source sha256 ")
    assert found.text.endswith("it was edited during the run, so trials may have run different code")
    assert any(line.startswith("warning: plug-in engine invented") for line in watcher.said)
    assert [item.kind for item in record.incidents] == ["edited"] and verify(tmp_path / "run").problems == []


@pytest.mark.slow
def test_a_plug_in_left_alone_is_no_warning(tmp_path: Path) -> None:
    record, _ = edited_run(tmp_path, "LAYERS = 2\n")
    assert len(record.environment.plugins) == 1 and record.incidents == ()
