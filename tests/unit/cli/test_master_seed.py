"""New data for every run: seeds and orders are drawn, unless somebody states the master seed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from repro.cli.main import cli
from repro.cli.workflows.seen_data import refuse_same_data, seen_data
from repro.core.errors import UsageError
from repro.core.files import write_json
from repro.record.questions import keep_answer
from repro.suite.planning.plan import Plan
from repro.suite.planning.question import question_of
from tests.in_process import called
from tests.plans import suite

SUITE = suite("sample", "matrix: {engine: [ddp, single]}\n", seeds=6, engine=None)


def planned(folder: Path, *arguments: str, head: str = "") -> dict[str, Any]:
    (folder / "s.yaml").write_text(head + SUITE)
    ended = CliRunner().invoke(cli, ["plan", str(folder / "s.yaml"), "--json", *arguments], catch_exceptions=False)
    assert ended.exit_code == 0, ended.output
    found: dict[str, Any] = json.loads(ended.stdout)
    del found["$schema"], found["cost"], found["out_of_reach"], found["absent_data"]
    stated = head or any("master" in text for text in arguments)
    assert found.pop("drawn_again_by_run") == (["order_seed"] if stated else ["master_seed", "order_seed"])
    return found


def test_every_plan_draws_its_own_seeds_for_one_experiment(tmp_path: Path) -> None:
    found = [planned(tmp_path) for _ in range(4)]
    assert len({item["suite"]["master_seed"] for item in found}) == 4
    assert len({item["order_seed"] for item in found}) == 4
    assert len({json.dumps(item["order"]) for item in found}) > 1
    assert len({item["digest"] for item in found}) == 1


def test_a_plan_says_which_seeds_the_run_will_draw(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(SUITE)
    for arguments, line in (([], "seeds: drawn by each run, for its data and its order; --master-seed N states those"),
                            (["--master-seed", "4"], "seeds: master seed 4 as stated; each run draws its order")):
        ended = CliRunner().invoke(cli, ["plan", str(tmp_path / "s.yaml"), *arguments], catch_exceptions=False)
        assert ended.output.splitlines()[2].startswith(line)


def test_a_stated_master_seed_is_kept_and_the_command_line_decides(tmp_path: Path) -> None:
    stated = [planned(tmp_path, *more, head="master_seed: 3\n") for more in ([], ["--master-seed", "4"])]
    assert [item["suite"]["master_seed"] for item in stated] == [3, 4]
    assert stated[0]["order_seed"] != stated[1]["order_seed"]
    assert planned(tmp_path, "-o", "master_seed=5")["suite"]["master_seed"] == 5


def earlier_run(folder: Path, plan: dict[str, Any]) -> Path:
    write_json(folder / "plan.json", plan)
    (folder / "ledger.jsonl").touch()
    return folder


def test_the_same_data_again_are_refused_with_the_way_to_new_ones(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    first = planned(tmp_path, head="master_seed: 3\n")
    earlier_run(runs / "sample-20260101-120000", first)
    (runs / "sample-damaged").mkdir()
    (runs / "sample-damaged" / "plan.json").write_text("[")
    now = Plan.model_validate(planned(tmp_path, head="master_seed: 3\n"))
    with pytest.raises(UsageError, match=r"sample-20260101-120000: is a run of 'sample' with master seed 3, which .*"
                                         r"for new data: --master-seed with another number") as caught:
        refuse_same_data(now, runs)
    assert "\n" not in str(caught.value)
    for other in (planned(tmp_path, head="master_seed: 4\n"),
                  planned(tmp_path, "-o", "batch.global=32", head="master_seed: 3\n")):
        refuse_same_data(Plan.model_validate(other), runs)
    refuse_same_data(now, tmp_path / "missing")


OTHER_TARGET = ("-o", "stop.target=0.5", "-o", "evaluate_every=128")


@pytest.mark.parametrize("stated", [True, False])
def test_a_target_that_is_edited_after_its_data_were_seen_is_refused(tmp_path: Path, stated: bool) -> None:
    runs = tmp_path / "runs"
    earlier_run(runs / "sample-20260101-120000", planned(tmp_path, head="master_seed: 3\n"))
    now = planned(tmp_path, *OTHER_TARGET, head="master_seed: 3\n")
    with pytest.raises(UsageError, match=r"sample-20260101-120000: is a run of the same cells with master seed 3 "
                                         r"and another target, or rule to stop: .*leave out master_seed and "
                                         r"--master-seed, so that the run draws new data$") as caught:
        refuse_same_data(Plan.model_validate(now), runs, stated)
    assert "\n" not in str(caught.value)
    refuse_same_data(Plan.model_validate(planned(tmp_path, *OTHER_TARGET)), runs, stated)  # new data
    same = Plan.model_validate(planned(tmp_path, "--seeds", "8", head="master_seed: 3\n"))
    refuse_same_data(same, runs, stated=False)  # on purpose
    with pytest.raises(UsageError, match="would draw the same data again"):
        refuse_same_data(same, runs)


def test_a_target_that_is_edited_in_another_folder_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The user's record of questions knows runs in any folder."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    first, other = (Plan.model_validate(planned(tmp_path, *words, head="master_seed: 3\n"))
                    for words in ((), OTHER_TARGET))
    keep_answer(question_of(first), first, tmp_path / "elsewhere" / "one", "same")
    with pytest.raises(UsageError, match="the run 'one' of this machine: is a run of the same cells with master seed 3 "
                                         "and another target"):
        refuse_same_data(other, tmp_path / "runs", stated=False)
    refuse_same_data(first, tmp_path / "runs", stated=False)
    new = Plan.model_validate(planned(tmp_path, *OTHER_TARGET, head="master_seed: 4\n"))
    refuse_same_data(new, tmp_path / "runs", stated=False)


def test_a_run_that_ended_before_its_first_trial_has_seen_nothing(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    (earlier_run(runs / "sample-20260101-120000", planned(tmp_path, head="master_seed: 3\n")) / "ledger.jsonl").unlink()
    for words in ((), OTHER_TARGET):
        assert seen_data(Plan.model_validate(planned(tmp_path, *words, head="master_seed: 3\n")), runs) == ""


def test_plan_says_that_its_data_were_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    earlier_run(tmp_path / "runs" / "sample-20260101-120000", planned(tmp_path, head="master_seed: 3\n"))
    monkeypatch.chdir(tmp_path)
    for arguments, words in (([], "would draw the same data again"), (OTHER_TARGET, "and another target")):
        ended = CliRunner().invoke(cli, ["plan", "s.yaml", *arguments], catch_exceptions=False)
        assert "warning: this plan cannot be run: runs/sample-20260101-120000: is a run" in ended.stderr
        assert words in ended.stderr


def test_a_run_of_a_suite_that_states_its_seed_looks_for_an_earlier_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    earlier_run(tmp_path / "runs" / "sample-20260101-120000", planned(tmp_path, head="master_seed: 3\n"))
    monkeypatch.chdir(tmp_path)
    ended = called("run", "s.yaml", "--no-mlflow")
    assert isinstance(ended.exception, UsageError)
    assert "would draw the same data again" in str(ended.exception)
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["sample-20260101-120000"]


def test_a_resumed_run_keeps_its_master_seed(tmp_path: Path) -> None:
    ended = called("run", "--resume", tmp_path, "--master-seed", "3")
    assert ended.exit_code == 2
    assert "leave out SUITE, -o, --seeds, --master-seed and --out" in ended.output
