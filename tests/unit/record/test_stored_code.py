"""The source of a class from a file in its run folder: what ranks import, refused if it changes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from repro.core import source_code
from repro.core.errors import TrialError
from repro.record.environment.plugin_code import plugin_code
from repro.record.folder.stored_code import allow_code_of_trial, keep_code
from tests.commands import git
from tests.file_classes import write_suite
from tests.hostile_records import invoke_words
from tests.plans import plan_file

TAMPER = """
    def clock(self, job, streams):
        for path in Path("run/code").glob("*/pace.py"):
            path.write_text(path.read_text() + "#")
        return super().clock(job, streams)
"""


def test_a_rank_imports_the_kept_source_and_refuses_one_that_changed(tmp_path: Path) -> None:
    plan = plan_file(write_suite(tmp_path))
    keep_code(tmp_path / "run/code", plan)
    trial = next(plan.trials()).model_dump(mode="json", by_alias=True)
    payload = {"trial": trial, "code": str(tmp_path / "run/code")}
    source_code._allowed.clear()
    allow_code_of_trial(payload)
    assert source_code._allowed[trial["choices"]["engine"]["code"]].root.parent == tmp_path / "run/code"
    next((tmp_path / "run/code").glob("*/pace.py")).write_text("SECONDS = 3\n")
    with pytest.raises(TrialError, match=r"^code/\w{16}: is not the source of the record: its sha256 is \w{16}, not"):
        allow_code_of_trial(payload)
    allow_code_of_trial({"trial": {"choices": {"engine": {"kind": "ddp"}, "processes": 2}}})


def test_code_that_changes_between_two_trials_ends_the_second_and_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    suite = write_suite(tmp_path)
    with (tmp_path / "own/paced.py").open("a") as file:
        file.write(TAMPER)
    code, _, output = invoke_words("run", suite.name, "--seeds", "1", "--no-mlflow", "--out", "run")
    results = [json.loads(path.read_text()) for path in Path("run/trials").glob("*/result.json")]
    assert code == 1, output
    assert sorted(item["status"] for item in results) == ["crashed", "ok"], output
    assert "is not the source of the record" in next(
        item["reasons"][0]["said"] for item in results if item["status"] == "crashed")
    code, _, output = invoke_words("verify", "run")
    assert code == 3 and "code: code/" in output, output


def test_the_environment_names_file_hash_and_commit(tmp_path: Path) -> None:
    plan = plan_file(write_suite(tmp_path))
    before = plugin_code(plan, tmp_path)[0]
    assert before.plugin == "engine paced.py:Paced" and before.text().startswith("a file, source sha256 ")
    assert before.files == 2 and before.commit is None
    for words in (["init", "-q"], ["add", "own"], ["commit", "-qm", "first"]):
        git(tmp_path, *words)
    assert plugin_code(plan, tmp_path)[0].commit and plugin_code(plan, tmp_path)[0].dirty is False
