"""Suite -> plan: what runs, in which order, under which names, and what does not and why."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from scipy.stats import ttest_1samp

from repro.core.errors import OutputError, SuiteError
from repro.core.files import read_model, write_json
from repro.core.machine import Machine
from repro.suite.file import read_suite
from repro.suite.kinds.training import TrainingConfig
from repro.suite.model import Suite
from repro.suite.planning.cost import estimate
from repro.suite.planning.plan import FIXED, Drawn, Plan, execution_order, make_plan, washed_out
from tests.plans import planned

CALM = settings(max_examples=50, deadline=None, derandomize=True, database=None)
CPU, GPUS = Machine("cpu", 0, 2), Machine("cuda", 2, 8)
TEXT = """\
suite: sample
title: A sample
seeds: 6
trial:
  workload: digits
  engine: ddp
  batch: {global: 64}
  optimizer: {kind: sgd, lr: 0.1}
  stop: {metric: top1, target: 0.9, max_epochs: 8}
  evaluate_every: 1437
matrix:
  engine: [ddp, {kind: deepspeed, stage: 1}]
  processes: [1, 2]
baseline: {engine: ddp}
"""


def plan(folder: Path, old: str = "", new: str = "", machine: Machine = CPU, drawn: Drawn = FIXED) -> Plan:
    assert old in TEXT
    (folder / "s.yaml").write_text(TEXT.replace(old, new, 1))
    source = read_suite(str(folder / "s.yaml"))
    return make_plan(source.suite, machine, source.problem, drawn=drawn)


# ---- order


def test_every_seed_is_a_block_of_all_cells(tmp_path: Path) -> None:
    found = plan(tmp_path)
    assert len(found.order) == 24
    for repeat in range(6):
        block = found.order[4 * repeat:4 * repeat + 4]
        assert {number for _, number in block} == {repeat}
        assert sorted(cell for cell, _ in block) == [0, 1, 2, 3]


def test_blocks_are_shuffled_by_the_order_seed_and_nothing_else(tmp_path: Path) -> None:
    found = plan(tmp_path)
    blocks = [tuple(cell for cell, repeat in found.order if repeat == number) for number in range(6)]
    assert len(set(blocks)) > 2
    assert plan(tmp_path).order == found.order
    assert plan(tmp_path, "title: A sample", "master_seed: 1").order == found.order
    assert plan(tmp_path, drawn=Drawn(order_seed=1)).order != found.order
    # More repeats go on where fewer ended.
    assert plan(tmp_path, "seeds: 6", "seeds: 8").order[:24] == found.order


def test_no_cell_is_early_in_every_run(tmp_path: Path) -> None:
    """Over many draws every cell has every slot alike; with the order of method 1.0 the slots were those of a suite."""
    source = plan(tmp_path).suite
    slots = np.zeros((4, 4))
    for seed in range(100):
        for at, (cell, _) in enumerate(make_plan(source, CPU, drawn=Drawn(order_seed=seed)).order):
            slots[cell, at % 4] += 1
    assert np.abs(slots / 600 - 0.25).max() < 0.07


def test_a_plan_states_the_seeds_that_were_drawn_for_it(tmp_path: Path) -> None:
    one, other = (plan(tmp_path, drawn=Drawn(seed, seed)) for seed in (1, 2))
    assert [item.suite.master_seed for item in (one, other)] == [1, 2]
    assert {trial.trial_id for trial in one.trials()}.isdisjoint(trial.trial_id for trial in other.trials())
    stated = plan(tmp_path, "title: A sample", "master_seed: 9", drawn=Drawn(1, 2))
    assert (stated.master_seed, stated.order_seed) == (9, 2)
    with pytest.raises(ValidationError, match=r"suite\.master_seed is missing: a plan holds the one"):
        Plan.model_validate({**one.model_dump(by_alias=True), "suite": source_of(one, master_seed=None)})


def source_of(found: Plan, **change: object) -> dict[str, object]:
    return {**found.suite.model_dump(by_alias=True), **change}


@pytest.mark.parametrize(("change", "said"), [
    ({"format": 2}, r"record format 2; this version of repro reads format 1"),
    ({"format": "1"}, r"record format '1'; this version of repro reads format 1"),
    ({"format": None}, r"record format None; this version"), ({"method": "1.0"}, r"method\s+Input should be '2\.0'"),
])
def test_a_plan_of_another_format_or_method_is_refused(tmp_path: Path, change: dict[str, object], said: str) -> None:
    data = plan(tmp_path).model_dump(by_alias=True)
    with pytest.raises(ValidationError, match=said):
        Plan.model_validate({**data, **change})


def test_a_plan_without_a_format_is_refused_in_one_line(tmp_path: Path) -> None:
    data = plan(tmp_path).model_dump(mode="json", by_alias=True)
    del data["format"]
    write_json(tmp_path / "plan.json", {"schema": 1, **data})
    with pytest.raises(OutputError) as error:
        read_model(tmp_path / "plan.json", Plan)
    assert str(error.value) == f"{tmp_path}/plan.json: record format not stated; this version of repro reads format 1"


def test_trials_follow_the_order(tmp_path: Path) -> None:
    found = plan(tmp_path)
    trials = [(trial.cell_id, trial.repeat) for trial in found.trials()]
    assert trials == [(found.cells[cell].cell_id, repeat) for cell, repeat in found.order]


# ---- names


def test_names_are_unique_and_readable(tmp_path: Path) -> None:
    found = plan(tmp_path)
    assert len({trial.trial_id for trial in found.trials()}) == 24
    assert sorted(cell.cell_id.rpartition("-")[0] for cell in found.cells) == [
        "ddp-p1-b64-fp32", "ddp-p2-b64-fp32", "deepspeed-z1-p1-b64-fp32", "deepspeed-z1-p2-b64-fp32"]
    assert found.trial(found.cells[0], 3).trial_id.startswith(f"{found.cells[0].cell_id[:-9]}-s3-")


def test_a_copy_with_other_fields_has_another_name(tmp_path: Path) -> None:
    """Names are computed once for each object; a copy must not keep that of the original."""
    found = plan(tmp_path)
    trial = found.trial(found.cells[0], 0)
    cell_id, trial_id = trial.choices.cell_id, trial.trial_id
    longer = trial.choices.model_copy(update={"timeout_seconds": trial.choices.timeout_seconds + 1})
    again = trial.model_copy(update={"repeat": 1}, deep=True)
    assert longer.cell_id != cell_id and again.trial_id != trial_id and again.cell_id == trial.cell_id
    assert trial.model_copy() == trial and trial.model_copy().trial_id == trial_id
    assert "trial_id" not in trial.model_dump()


def test_fields_at_their_default_name_the_same_cell(tmp_path: Path) -> None:
    ids = [cell.cell_id for cell in plan(tmp_path).cells]
    spelt = plan(tmp_path, "{kind: sgd, lr: 0.1}", "{lr: 0.10, momentum: 0.9, kind: sgd}")
    assert [cell.cell_id for cell in spelt.cells] == ids
    assert [cell.cell_id for cell in plan(tmp_path, "{global: 64}", "64").cells] == ids


# ---- digest


@pytest.mark.parametrize(("old", "new"), [
    ("title: A sample", "title: Another"), ("title: A sample", "description: text"), ("seeds: 6", "seeds: 9"),
    ("  workload: digits\n  engine: ddp\n", "  engine: ddp\n  workload: digits\n"),
    ("[ddp, {kind: deepspeed, stage: 1}]", "[{stage: 1, kind: deepspeed}, ddp]"),
    ("  engine: ddp\n", "  engine: ddp\n  precision: fp32\n"), ("title: A sample", "master_seed: 1"),
])
def test_the_digest_ignores_fields_outside_the_experiment(tmp_path: Path, old: str, new: str) -> None:
    assert plan(tmp_path, old, new).digest == plan(tmp_path).digest


@pytest.mark.parametrize(("old", "new"), [
    ("lr: 0.1", "lr: 0.2"), ("global: 64", "global: 128"), ("target: 0.9", "target: 0.91"), ("stage: 1", "stage: 2"),
    ("[1, 2]", "[1]"), ("evaluate_every: 1437", "evaluate_every: 1436"), ("suite: sample", "suite: other"),
    ("baseline: {engine: ddp}", "baseline: {engine: ddp, processes: 1}"),
    ("  engine: ddp\n", "  engine: ddp\n  timeout_seconds: 60\n"),
    ("  engine: ddp\n", "  engine: ddp\n  gradient_clip: 1\n"),
    ("baseline:", "primary: {candidate: {engine: deepspeed, processes: 1}, baseline: {engine: ddp, processes: 1}}\n"
     "baseline:"),
    ("baseline:", "exclude: [{engine: deepspeed, processes: 1}]\nbaseline:"),
])
def test_the_digest_follows_every_change_of_a_cell_or_a_contrast(tmp_path: Path, old: str, new: str) -> None:
    assert plan(tmp_path, old, new).digest != plan(tmp_path).digest


def test_unmeasured_trials_are_part_of_the_digest_and_of_the_time(tmp_path: Path) -> None:
    plain, washed = plan(tmp_path), plan(tmp_path, "trial:", "wash_out: true\ntrial:")
    assert washed.washes_out and not plain.washes_out
    assert washed.digest != plain.digest and washed.order == plain.order
    assert estimate(plain).full_budget_seconds < estimate(washed).full_budget_seconds


def test_only_a_block_that_begins_after_another_cell_is_washed_out() -> None:
    order = [("a", 0), ("b", 0), ("b", 1), ("a", 1), ("b", 2), ("a", 2), ("a", 3), ("b", 3)]
    assert list(washed_out(order)) == [("a", 0), ("b", 2)]


def test_the_digest_is_the_same_on_another_machine(tmp_path: Path) -> None:
    assert plan(tmp_path, machine=GPUS).digest == plan(tmp_path).digest


# ---- what does not run


@pytest.mark.parametrize("pattern", [
    "{engine: deepspeed, processes: 1}", "{engine: {kind: deepspeed, stage: 1}, processes: [1]}",
    "{engine.kind: deepspeed, processes: 1}", "{engine: deepspeed, processes: 1, comm: backend, precision: fp32}",
])
def test_exclusions_name_fields_as_they_are_written_or_left_to_their_defaults(tmp_path: Path, pattern: str) -> None:
    found = plan(tmp_path, "baseline:", f"exclude: [{pattern}]\nbaseline:")
    assert [(cell.choices.engine.kind, cell.choices.processes) for cell in found.cells] == [
        ("ddp", 1), ("ddp", 2), ("deepspeed", 2)]
    assert found.skipped == ()


def test_an_excluded_combination_need_not_make_sense(tmp_path: Path) -> None:
    found = plan(tmp_path, "[1, 2]\n", "[1, 3]\nexclude: [{processes: 3}]\n")
    assert len(found.cells) == 2


def test_unsupported_cells_are_skipped_with_the_reason(tmp_path: Path) -> None:
    found = plan(tmp_path, "[ddp, {kind: deepspeed, stage: 1}]", "[ddp, single]")
    assert [(item.label, item.reason) for item in found.skipped] == [
        ("single, 2 processes", "engine single: engine single trains in one process, not 2")]
    assert len(found.cells) == 3
    assert len(found.order) == 18


def test_a_plan_of_which_nothing_can_run_is_an_error_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(SuiteError, match=r"nothing can run on this machine: .*device cuda is requested"):
        plan(tmp_path, "  engine: ddp\n", "  engine: ddp\n  device: cuda\n")


def test_the_device_is_settled_by_the_machine(tmp_path: Path) -> None:
    assert {cell.choices.device for cell in plan(tmp_path).cells} == {"cpu"}
    there = plan(tmp_path, machine=GPUS)
    assert {cell.choices.device for cell in there.cells} == {"cuda"}
    assert there.cells[0].cell_id != plan(tmp_path).cells[0].cell_id


def test_two_devices_that_come_to_the_same_are_one_cell_twice(tmp_path: Path) -> None:
    with pytest.raises(SuiteError, match=r"s\.yaml:13: matrix.device: .* requested twice: device auto is cpu here"):
        plan(tmp_path, "  processes: [1, 2]", "  device: [auto, cpu]")


def test_few_repeats_are_noted(tmp_path: Path) -> None:
    assert plan(tmp_path, "seeds: 6", "seeds: 3").smoke
    assert "smoke test, not a result" in plan(tmp_path, "seeds: 6", "seeds: 3").notes[-1]
    assert any(note.startswith("1 repeat makes a smoke") for note in plan(tmp_path, "seeds: 6", "seeds: 1").notes)
    assert "5 pairs cannot be significant" in plan(tmp_path, "seeds: 6", "seeds: 5").notes[-1]
    assert plan(tmp_path).notes == ()


# ---- batches


@CALM
@given(st.integers(1, 300), st.integers(1, 12), st.integers(1, 12))
def test_the_global_batch_is_micro_x_accumulation_x_processes_or_refused(
    size: int, accumulation: int, ranks: int
) -> None:
    data = {
        "workload": "digits", "engine": "ddp", "processes": ranks, "optimizer": {"kind": "sgd", "lr": 0.1},
        "batch": {"global": size, "accumulation": accumulation}, "evaluate_every": 100,
        "stop": {"metric": "top1", "target": 0.9, "max_epochs": 1},
    }
    if size % (accumulation * ranks):
        with pytest.raises(ValidationError, match="not divisible"):
            TrainingConfig.model_validate(data)
        return
    choices = TrainingConfig.model_validate(data)
    assert choices.micro_batch * accumulation * ranks == size == choices.batch.global_
    assert choices.batch.micro == choices.micro_batch


def test_a_suite_is_frozen(tmp_path: Path) -> None:
    suite = plan(tmp_path).suite
    assert isinstance(suite, Suite)
    with pytest.raises(ValidationError):
        suite.seeds = 1  # type: ignore[misc]


# ---- contrasts and exclusions that do not say what they mean


def test_a_primary_that_several_cells_agree_with_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SuiteError, match=r"primary\.candidate: .*matches 2 cells, not one: deepspeed .*1 process"):
        plan(tmp_path, "baseline:", "primary: {candidate: {engine: deepspeed}, baseline: {engine: ddp, processes: 1}}\n"
             "baseline:")


def test_a_primary_of_a_cell_with_itself_is_refused_and_dropped_after_an_override(tmp_path: Path) -> None:
    both = "primary: {candidate: {engine: ddp, processes: 1}, baseline: {engine: ddp, PROCESSES}}\nbaseline:"
    with pytest.raises(SuiteError, match=r"primary\.candidate: candidate and baseline are one cell, ddp, 1 process: "):
        plan(tmp_path, "baseline:", both.replace("PROCESSES", "processes: 1"))
    text = TEXT.replace("baseline:", both.replace("PROCESSES", "batch: {global: 64}"))
    found = planned(tmp_path, text, "processes=1", machine=CPU)
    assert found.suite.primary is None
    assert any("candidate and baseline are one cell, ddp" in note for note in found.notes)


def test_a_primary_made_ambiguous_by_an_override_becomes_a_note(tmp_path: Path) -> None:
    text = TEXT.replace("baseline:", "primary:\n  candidate: {engine: deepspeed, processes: 1}\n"
                                     "  baseline: {engine: ddp, processes: 1}\nbaseline:")
    found = planned(tmp_path, text, "batch.global=64,128", machine=CPU)
    assert found.suite.primary is None
    assert any("matches 2 cells" in note for note in found.notes)


def test_an_exclusion_that_excludes_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SuiteError, match=r"exclude\[0\]: .*excludes no combination"):
        plan(tmp_path, "baseline:", "exclude: [{engine: dpd}]\nbaseline:")


CELLS, SEEDS, EXPERIMENTS, CV = 4, 10, 1500, 0.01
SUITE = Suite(suite="sample", seeds=SEEDS, trial={})


def slots(seed: int) -> np.ndarray:
    """(repeat, cell) -> the place of its trial in the run."""
    found = np.empty((SEEDS, CELLS))
    for place, (cell, repeat) in enumerate(execution_order(SUITE.seeds, CELLS, seed)):
        found[repeat, cell] = place
    return found


def errors(places: np.ndarray, drift: float, one: int, other: int) -> float:
    """Share of experiments that find a difference between two equal cells at 5 %."""
    noise = np.random.default_rng(3).normal(0, CV, (EXPERIMENTS, SEEDS, CELLS))
    times = noise + np.log1p(drift * places / (SEEDS * CELLS))
    return float((ttest_1samp(times[:, :, one] - times[:, :, other], 0, axis=1).pvalue <= 0.05).mean())


@pytest.mark.slow
def test_orders_that_are_drawn_keep_the_level_and_one_for_all_runs_does_not() -> None:
    drawn = np.stack([slots(seed) for seed in range(EXPERIMENTS)])
    limit = 0.05 + 3.3 * (0.05 * 0.95 / EXPERIMENTS) ** 0.5
    assert max(errors(drawn, drift, 0, 1) for drift in (0.0, 0.1, 0.3)) <= limit
    fixed = slots(20151102)  # of method 1.0, in every run of a suite
    assert max(errors(fixed, 0.3, one, other) for one in range(CELLS) for other in range(one)) > 0.15
