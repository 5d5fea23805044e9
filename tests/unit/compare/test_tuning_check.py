"""Fair and unfair tunings: a hidden larger budget, scored seeds, other settings; what the audit and the page say."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from repro.audit.rules import check
from repro.compare.tuning_check import check_tuning, near_an_end, tuned_by
from repro.core.errors import OutputError
from repro.core.files import write_model
from repro.record.folder.ledger import Attempt
from repro.record.folder.store import Record, RunFolder, read_record
from repro.scores.scores import Scores, record_scores
from repro.suite.model import Suite
from repro.suite.tune import Space
from tests.made_tuned import TUNED, make_tuned, tuned_course, unchecked
from tests.records import SUITE, make_record
from tests.unit.reporters.parsed_page import render


@pytest.fixture(scope="module")
def fair(tmp_path_factory: pytest.TempPathFactory) -> Record:
    return make_tuned(tmp_path_factory.mktemp("fair") / "run")


def problems(record: Record) -> tuple[str, ...]:
    found = check_tuning(record)
    assert found is not None
    return found.problems


def verdicts(record: Record) -> dict[str, tuple[str, str]]:
    return {item.id: (item.verdict, item.evidence) for item in check(record) if item.id.startswith("AP")}


def test_a_fair_tuning_passes(fair: Record, tmp_path: Path) -> None:
    assert problems(fair) == ()
    found = verdicts(fair)
    assert {key: verdict for key, (verdict, _) in found.items()} == {"AP1": "pass", "AP2": "pass", "AP3": "pass"}
    assert "4 contenders, each 5 settings x 1 seed by search random; 20 trials" in found["AP1"][1]
    assert "optimizer.lr 2 decades" in found["AP3"][1] and "a decade either way of 0.03" in found["AP3"][1]
    page = render(fair, tmp_path)
    assert "equal budgets" in page and "Unfair" not in page


def test_tuned_contenders_are_scored_by_their_levels(fair: Record) -> None:
    found = record_scores(fair)
    assert isinstance(found, Scores)
    assert [item.name for item in found.contenders] == ["sgd (momentum=0.9)", "adamw"]
    assert [item.name for item in found.workloads] == ["digits", "mnist1d"]
    assert any(text.startswith("not the same settings on every workload: sgd") for text in found.notes)


def test_every_scored_cell_has_the_cost_of_its_contender(fair: Record) -> None:
    found = tuned_by(fair)
    assert set(found) == {cell.cell_id for cell in fair.plan.cells}
    for cell in fair.plan.cells:
        assert found[cell.cell_id].label == f"{_name(cell.choices.optimizer.kind)}, {cell.choices.task}"
        cost = found[cell.cell_id].cost
        assert cost.trials == 5 and cost.wall_seconds >= 5.0 and cost.processor_seconds == 2 * cost.wall_seconds
    whole = sum(item.seconds for item in read_record(fair.folder.tuning.root).attempts)
    costs = {item.label: item.cost.wall_seconds for item in found.values()}
    assert sum(costs.values()) == pytest.approx(whole)


def _name(kind: str) -> str:
    return "sgd (momentum=0.9)" if kind == "sgd" else kind


def planted(tmp_path: Path, text: str = TUNED, **changes: Any) -> Record:
    return make_tuned(tmp_path / "run", text, **changes)


def hidden_reruns(tmp_path: Path) -> Record:
    """AdamW's trials on digits ran again and again: the ledger has them."""
    record = planted(tmp_path)
    folder = record.folder.tuning
    tuning = read_record(folder.root)
    chosen = [item for item in tuning.attempts if "adamw" in str(tuning.cell(item.cell_id).label)][:2]
    for item in chosen:
        folder.append_attempt(item.model_copy(update={"attempt": 2}))
    return record


def test_trials_of_no_declared_setting_are_refused(tmp_path: Path) -> None:
    record = planted(tmp_path)
    RunFolder(record.folder.root).tuning.append_attempt(Attempt(
        trial_id="ddp-p2-b64-fp32-s0-00000000", cell_id="ddp-p2-b64-fp32-00000000", repeat=0, attempt=1,
        started_ms=1.6e12, seconds=1.0, status="ok"))
    with pytest.raises(OutputError, match="names a cell that the plan does not have"):
        check_tuning(record)


def unequal_budget(tmp_path: Path) -> Record:
    text = TUNED.replace("origin: three decades around the default",
                         "origin: three decades around the default\n      trials: 12\n      unequal: it is new")
    return planted(tmp_path, text)


def setting_from_elsewhere(tmp_path: Path) -> Record:
    """The scored setting of AdamW on digits comes from a search that was not declared."""
    def change(suite: Suite) -> Suite:
        first, second, *rest = suite.settings
        return suite.model_copy(update={"settings": (
            first, second.model_copy(update={"set_": {"optimizer.lr": 0.00123}}), *rest)})
    return planted(tmp_path, change=change)


def second_best(tmp_path: Path) -> Record:
    """SGD on digits is scored with a setting that was drawn, but did not win."""
    def change(suite: Suite) -> Suite:
        first, *rest = suite.settings
        assert suite.tuned is not None
        found = check_tuning(make_tuned(tmp_path / "other"))
        assert found is not None and found.tuning is not None
        other = found.tuning.contenders[0].ranked[1].values
        return suite.model_copy(update={"settings": (first.model_copy(update={"set_": other}), *rest)})
    return planted(tmp_path, change=change)


def larger_search_than_declared(tmp_path: Path) -> Record:
    """AdamW was tuned with 12 settings, the scored suite declares 5 for everyone."""
    honest = check_tuning(make_tuned(tmp_path / "honest"))
    assert honest is not None

    def change(suite: Suite) -> Suite:
        assert suite.tuned is not None
        return unchecked(suite, tuned=suite.tuned.model_copy(update={"tune": honest.tune}))
    text = TUNED.replace("origin: three decades around the default",
                         "origin: three decades around the default\n      trials: 12\n      unequal: it is new")
    return planted(tmp_path, text, change=change)


EXCLUDED = (TUNED.replace("search: random", "search: grid")
            .replace("optimizer.lr: {log: [0.00003, 0.03]}", "optimizer.lr: [0.0003, 0.001, 0.003, 0.01, 0.03]")
            .replace("optimizer.lr: {log: [0.003, 0.3]}", "optimizer.lr: [0.003, 0.01, 0.03, 0.1, 0.3]")
            .replace("        optimizer.weight_decay: [0.0, 0.0005]\n", "")
            .replace("tune:\n", "exclude:\n  - {optimizer: {kind: adamw, lr: 0.0003}}\n  - {optimizer: {kind: adamw, "
                                "lr: 0.01}}\ntune:\n"))
"""Two of the five settings of AdamW are excluded, which `repro plan` and `repro run` refuse."""


def excluded_settings(tmp_path: Path) -> Record:
    return planted(tmp_path, EXCLUDED)


@pytest.mark.slow
@pytest.mark.parametrize(("plant", "said"), [
    (excluded_settings, "adamw, digits: 2 of its 5 settings were never tried"),
    (excluded_settings, "sgd (momentum=0.9), digits had 5 tuning trials, adamw, digits 3"),
    (larger_search_than_declared, "the search that ran is not the one that the suite declares"),
    (larger_search_than_declared, "adamw, digits had 12 tuning trials, sgd (momentum=0.9), digits 5"),
    (hidden_reruns, "2 starts in the ledger ended with a result beyond its 5 declared trials"),
    (unequal_budget, "adamw, digits had 12 tuning trials, sgd (momentum=0.9), digits 5 (declared: it is new)"),
    (setting_from_elsewhere, "the scored setting of adamw, digits is none of the 5 that the declared search draws"),
    (second_best, "the scored setting of sgd (momentum=0.9), digits is not the best one of its tuning"),
])
def test_a_planted_budget_fails_and_is_on_the_page(
    tmp_path: Path, plant: Callable[[Path], Record], said: str
) -> None:
    record = plant(tmp_path)
    assert any(said in text for text in problems(record)), problems(record)
    verdict, evidence = verdicts(record)["AP1"]
    assert verdict == "fail"
    assert said in evidence
    page = render(record, tmp_path)
    assert 'class="level">Unfair' in page and "equal budgets</span>" not in page
    assert said in page
    assert verdicts(record)["AP2"][0] == "pass"


def tuned_on_scored_seeds(tmp_path: Path) -> Record:
    """The tuning drew what the scored trials drew, whatever its stated seed."""
    return planted(tmp_path, tuning_drawn="")


def one_master_seed(tmp_path: Path) -> Record:
    """The plan of the tuning has the master seed of the scored trials, the suite states another."""
    record = planted(tmp_path)
    folder = record.folder.tuning
    plan = read_record(folder.root).plan
    write_model(folder.plan, plan.model_copy(update={"suite": unchecked(plan.suite, master_seed=11)}))
    return record


@pytest.mark.parametrize(("plant", "said"), [
    (tuned_on_scored_seeds, "4 scored trials have the initial weights and the data order of a tuning trial"),
    (one_master_seed, "tuned and scored with one master seed, 11"),
])
def test_tuning_on_scored_seeds_fails_and_is_on_the_page(
    tmp_path: Path, plant: Callable[[Path], Record], said: str
) -> None:
    record = plant(tmp_path)
    verdict, evidence = verdicts(record)["AP2"]
    assert verdict == "fail" and said in evidence, evidence
    page = render(record, tmp_path)
    assert said in page and "equal budgets</span>" not in page


def test_a_frozen_suite_says_what_it_declares_and_no_more(tmp_path: Path, fair: Record) -> None:
    from repro.suite.planning.plan import make_plan
    from tests.made_tuned import MACHINE
    from tests.records import write_record

    suite = fair.plan.suite.model_copy(update={"master_seed": 99})
    frozen = write_record(tmp_path / "frozen", make_plan(suite, MACHINE, overridden=True), course=tuned_course)
    found = check_tuning(frozen)
    assert found is not None and found.tuning is None and found.problems == ()
    assert [item.trials for item in found.budgets] == [None] * 4
    assert {key: verdict for key, (verdict, _) in verdicts(frozen).items()} == {
        "AP1": "cannot tell", "AP2": "cannot tell", "AP3": "pass"}
    page = render(frozen, tmp_path)
    assert "frozen after its tuning" in page and "a decade either way of 0.03" in page
    first = suite.settings[0].model_copy(update={"set_": {"optimizer.lr": 0.0777, "optimizer.weight_decay": 0.0}})
    other = write_record(tmp_path / "edited", make_plan(
        suite.model_copy(update={"settings": (first, *suite.settings[1:])}), MACHINE, overridden=True),
        course=tuned_course, only=4)
    assert verdicts(other)["AP1"] == (
        "fail", "the scored setting of sgd (momentum=0.9), digits is none of the 5 that the declared search draws")


def test_untuned_optimizers_are_not_judged_and_other_records_need_no_tuning(tmp_path: Path) -> None:
    text = SUITE.replace("  processes: [1, 2]", "  optimizer: [{kind: sgd, lr: 0.1}, {kind: adamw, lr: 0.003}]")
    text = text[:text.index("primary:")]
    record = make_record(tmp_path / "untuned", text)
    assert {verdict for verdict, _ in verdicts(record).values()} == {"cannot tell"}
    assert "optimizers are compared with settings of unknown origin" in verdicts(record)["AP1"][1]
    assert "Not tuned here" in render(record, tmp_path)
    plain = make_record(tmp_path / "plain")
    assert {verdict for verdict, _ in verdicts(plain).values()} == {"not applicable"}
    assert 'id="tuning"' not in render(plain, tmp_path)
    assert check_tuning(plain) is None and tuned_by(plain) == {}


def test_a_tuning_alone_has_its_page(fair: Record, tmp_path: Path) -> None:
    record = read_record(fair.folder.tuning.root)
    found = check_tuning(record)
    assert found is not None and found.scored_seed is None and found.problems == ()
    page = render(record, tmp_path)
    assert "The whole search" in page and 'id="scores"' not in page


def test_an_unfinished_tuning_is_said(fair: Record) -> None:
    found = check_tuning(fair)
    assert found is not None and found.tuning is not None
    part = dataclasses.replace(found.tuning.record, results=found.tuning.record.results[:-1])
    assert any("1 of 20 tuning trials have no result" in text for text in problems(part))


def test_tables_have_the_tuning(fair: Record) -> None:
    from importlib import import_module

    rows = import_module("repro.tables.tables")
    found = {table.name: table.rows for table in rows.tables(fair)}
    assert [row["trials"] for row in found["tuning"]] == [5, 5, 5, 5]
    assert len(found["tuning_settings"]) == 20 and len(found["tuning_spaces"]) == 6
    best = [row for row in found["tuning_settings"] if row["rank"] == 1]
    assert [json.loads(str(row["setting"])) for row in best] == [item.set_ for item in fair.plan.suite.settings]
    assert [row["setting"] for row in best] == [row["best_setting"] for row in found["tuning"]]


@pytest.mark.parametrize(("axis", "value", "said"), [
    ({"log": [0.001, 1.0]}, 0.0015, "lower"), ({"log": [0.001, 1.0]}, 0.03, ""), ({"log": [0.001, 1.0]}, 0.9, "upper"),
    ({"linear": [0.0, 1.0]}, 0.95, "upper"), ({"int": [1, 11]}, 6, ""), ([0.1, 0.2], 0.2, ""),
])
def test_a_choice_near_an_end_of_its_range_is_said(axis: Any, value: float, said: str) -> None:
    space = Space.model_validate({"origin": "by hand", "space": {"optimizer.lr": axis}})
    found = near_an_end(space, {"optimizer.lr": value})
    assert found == ([f"optimizer.lr is near the {said} end of its range"] if said else [])
