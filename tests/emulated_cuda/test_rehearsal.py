"""Runs on the emulated device, from the gate to the page: `make rehearse`; `make test` has the fast ones."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from repro.bundle.verify import verify
from repro.record.folder.store import read_record
from tests.emulated_cuda.mutants import MUTANTS, Mutant
from tests.emulated_cuda.rehearsed import CASES, Rehearsed
from tests.emulated_cuda.running import repro

REACHED = ("ok", "missed")


def marked(case: Rehearsed) -> object:
    marks = [] if case.fast else [pytest.mark.rehearse]
    return pytest.param(case, marks=marks, id=case.name)


@pytest.mark.parametrize("case", list(map(marked, CASES)))
def test_a_run_reaches_its_page(tmp_path: Path, case: Rehearsed) -> None:
    arguments = shlex.split(case.text) if case.bundled else ["suite.yaml"]
    if not case.bundled:
        (tmp_path / "suite.yaml").write_text(case.text)
    ended = repro(tmp_path, "run", *arguments, "--no-mlflow", "--out", "run", "--json", "--master-seed", "7",
                  devices=case.devices)
    said = ended.out[-2000:] + ended.error[-4000:]
    assert ended.code in (0, 3), said
    record = read_record(tmp_path / "run")
    assert {result.status for result in record.results} <= set(REACHED), said
    assert len(record.results) == case.trials, said
    assert len(json.loads((tmp_path / "run" / "plan.json").read_text()).get("skipped", [])) == case.refused, said
    assert {result.model and result.model.device for result in record.results} == {"Emulated H100"}
    assert verify(record.folder.root).sound
    assert (tmp_path / "run" / "report" / "report.html").is_file()


@pytest.mark.rehearse
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_bug_in_the_project_is_seen(tmp_path: Path, mutant: Mutant) -> None:
    copy = mutant.plant(tmp_path / "copy")
    (tmp_path / "suite.yaml").write_text(mutant.run.text)
    ended = repro(tmp_path, "run", "suite.yaml", "--no-mlflow", "--out", "run", "--master-seed", "7",
                  PYTHONPATH=str(copy))
    said = [ended.error, *(path.read_text(errors="replace") for path in (tmp_path / "run").rglob("*")
                           if path.suffix in (".log", ".txt", ".jsonl"))]
    assert ended.code != 0 and any(mutant.words in text for text in said), ended.out + ended.error
