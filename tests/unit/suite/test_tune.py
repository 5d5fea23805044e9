"""Suites with `tune`: both phases, their seeds, and every mistake in one line with file, line and field."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import yaml
from scipy.stats import qmc

from repro.cli.workflows.tuning import Phases, plan_phases
from repro.core.errors import SuiteError
from repro.core.machine import Machine
from repro.suite.contenders import scored_suite, tuning_seed, tuning_suite
from repro.suite.field_problem import FieldProblem
from repro.suite.file import read_suite
from repro.suite.planning.matrix import tried_cells
from repro.suite.planning.plan import Drawn, make_plan
from repro.suite.tune import Axis, Search, Settings, draw_settings, grid_values, space_size
from tests.made_tuned import TUNED
from tests.plans import plan_file

TEXT = """\
suite: sample
title: two contenders
seeds: 5
trial:
  workload: digits
  engine: fake
  launcher: inline
  batch: {global: 64}
  stop: {metric: top1, target: 0.9, max_epochs: 8}
  evaluate_every: 1437
  device: cpu
matrix:
  optimizer: [sgd, adamw]
  processes: [1, 2]
primary:
  candidate: {optimizer: adamw, processes: 1}
  baseline: {optimizer: sgd, processes: 1}
tune:
  contenders: [optimizer]
  at: {processes: 1}
  trials: 4
  search: random
  seeds: 2
  metric: samples
  hopeless: {at: 0.5, after: 3}
  spaces:
    - for: {optimizer: sgd}
      origin: the defaults, ten times wider
      space:
        optimizer.lr: {log: [0.001, 1]}
        optimizer.momentum: [0.8, 0.9]
    - origin: a pilot
      space:
        optimizer.lr: {log: [0.0001, 0.1]}
"""
"""Line 18 is `tune:`; a suite whose lines change keeps this order."""


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def phases(text: str = TEXT, *overrides: str, master_seed: int | None = 7) -> Phases:
    Path("s.yaml").write_text(text)
    given = {} if master_seed is None else {"master_seed": master_seed}
    return plan_phases(read_suite("./s.yaml", overrides, None, given), overrides)


def refused(old: str, new: str, *overrides: str, master_seed: int | None = 7) -> str:
    assert old in TEXT
    with pytest.raises(SuiteError) as error:
        phases(TEXT.replace(old, new, 1), *overrides, master_seed=master_seed)
    return str(error.value)


def test_every_contender_gets_the_same_number_of_settings_in_one_cell() -> None:
    found = phases()
    assert (found.tuning.kind, len(found.tuning.cells), len(found.tuning.order)) == ("tuning", 8, 16)
    assert [(item.label, len(item.settings)) for item in found.contenders] == [("sgd", 4), ("adamw", 4)]
    assert {cell.choices.processes for cell in found.tuning.cells} == {1}
    assert len({cell.label for cell in found.tuning.cells}) == 8
    assert not found.tuning.smoke and found.tuning.suite.primary is None
    assert (len(found.draft.cells), len(found.draft.order)) == (4, 20)
    ids = [name for _, names in tried_cells(found.tuning.suite, "cpu") for name in names]
    assert ids == [cell.cell_id for cell in found.tuning.cells]


def test_without_contenders_every_cell_competes() -> None:
    text = TEXT.replace("  contenders: [optimizer]\n  at: {processes: 1}\n", "")
    assert [item.label for item in phases(text).contenders] == ["sgd, 1", "sgd, 2", "adamw, 1", "adamw, 2"]


def test_a_setting_may_change_any_field_and_is_shown() -> None:
    text = TEXT.replace("optimizer.momentum: [0.8, 0.9]", "batch.global: [32, 128]")
    found = phases(text)
    sgd = [cell for cell in found.tuning.cells if cell.training.optimizer.kind == "sgd"]
    assert {cell.training.batch.global_ for cell in sgd} == {32, 128}
    assert all(set(cell.factors) == {"optimizer", "batch.global"} for cell in sgd)


def test_the_seeds_of_the_phases_differ_and_follow_from_one() -> None:
    found, again, other = phases(), phases(), phases(master_seed=8)
    assert found.draft.master_seed == 7
    assert found.tuning.master_seed not in (7, other.tuning.master_seed)
    assert found.tuning.cells == again.tuning.cells
    assert found.tuning.master_seed == again.tuning.master_seed == tuning_seed(found.declared.seeded)
    drawn = phases(master_seed=None)
    assert drawn.declared.suite.master_seed is None and drawn.declared.master_seed == drawn.draft.master_seed
    assert drawn.tuning.master_seed == tuning_seed(drawn.declared.seeded)


def test_a_stated_master_seed_of_the_tuning_is_used() -> None:
    assert phases(TEXT, "tune.master_seed=11").tuning.master_seed == 11


def test_the_chosen_settings_are_the_cells_of_their_contender_alone() -> None:
    found = phases()
    chosen = [({"optimizer": "sgd"}, {"optimizer.lr": 0.5, "optimizer.momentum": 0.8}),
              ({"optimizer": "adamw"}, {"optimizer.lr": 0.01})]
    suite = scored_suite(found.declared.seeded, chosen, "0" * 64)
    plan = make_plan(suite, Machine("cpu", 0, 2))
    assert [cell.label for cell in plan.cells] == [
        "sgd (lr=0.5, momentum=0.8), 1 process", "sgd (lr=0.5, momentum=0.8), 2 processes",
        "adamw (lr=0.01), 1 process", "adamw (lr=0.01), 2 processes"]
    assert suite.tuned is not None and suite.tuned.master_seed == found.tuning.master_seed
    plain = make_plan(suite.model_copy(update={"tuned": None}), Machine("cpu", 0, 2))
    assert plain.digest == plan.digest, "where settings come from is no part of the experiment"


def test_the_declaration_is_in_the_digest_of_the_tuning_only() -> None:
    found = phases()
    wider = phases(TEXT.replace("[0.001, 1]", "[0.001, 2]"))
    assert found.tuning.digest != wider.tuning.digest
    suite = tuning_suite(found.declared.seeded)
    assert make_plan(suite, Machine("cpu", 0, 2), drawn=Drawn(7, 1)).digest == found.tuning.digest


def test_small_forms_by_overrides() -> None:
    small = phases(TEXT, "tune.trials=2", "tune.seeds=1")
    assert len(small.tuning.order) == 4
    Path("s.yaml").write_text(TEXT)
    plain = read_suite("./s.yaml", ("tune=null", "optimizer.lr=0.1"))
    assert plain.suite.tune is None
    with pytest.raises(SuiteError, match=r"-o tune.metric=x: of a tuning only these can be given"):
        read_suite("./s.yaml", ("tune.metric=x",))


def test_another_budget_needs_a_reason_and_is_shown() -> None:
    text = TEXT.replace("    - origin: a pilot\n", "    - origin: a pilot\n      trials: 6\n      unequal: two more\n")
    found = phases(text)
    assert [len(item.settings) for item in found.contenders] == [4, 6]
    assert refused("    - origin: a pilot\n", "    - origin: a pilot\n      trials: 6\n") == (
        "./s.yaml:33: tune.spaces[1].trials: gives these contenders another number of settings; say why in `unequal`")


@pytest.mark.parametrize(("old", "new", "message"), [
    *(("optimizer.momentum: [0.8, 0.9]", f"{field}: [0.8, 0.9]", f"./s.yaml:31: tune.spaces[0].space.{field}: is not "
       "tuned: the contenders must train the same task, to one target, in one budget")
      for field in ("optimiser.momentum", "stop.target", "stop.max_epochs", "evaluate_every", "workload", "engine",
                    "processes", "optimizer.kind", "optimizer", "workload.hidden", "timeout_seconds")),
    ("optimizer.momentum: [0.8, 0.9]", "optimizer.momentun: [0.8, 0.9]",
     "./s.yaml:31: tune.spaces[0].space.optimizer.momentun: unknown key; did you mean 'momentum'?"),
    ("optimizer.momentum: [0.8, 0.9]", "optimizer.momentum: [0.8, 1.9]",
     "./s.yaml:31: tune.spaces[0].space.optimizer.momentum: "),
    ("      space:\n        optimizer.lr: {log: [0.0001, 0.1]}", "      space: {}",
     "./s.yaml:33: tune.spaces[1].space: is empty: name at least one field to tune"),
    ("{log: [0.0001, 0.1]}", "[]", "./s.yaml:34: tune.spaces[1].space.optimizer.lr: is empty: list at least one"),
    ("{log: [0.0001, 0.1]}", "[0.1, 0.1]", "./s.yaml:34: tune.spaces[1].space.optimizer.lr: lists 0.1 twice"),
    ("{log: [0.0001, 0.1]}", "{log: [0, 0.1]}",
     "./s.yaml:34: tune.spaces[1].space.optimizer.lr.log[0]: 0 has no logarithm: both ends must be above 0"),
    ("{log: [0.0001, 0.1]}", "{log: [-1, 0.1]}", "tune.spaces[1].space.optimizer.lr.log[0]: -1 has no logarithm"),
    ("{log: [0.0001, 0.1]}", "{int: [1, 1000000000000000000000]}",
     "./s.yaml:34: tune.spaces[1].space.optimizer.lr.int[1]: a search cannot draw whole numbers beyond 2^53 = "),
    ("{log: [0.0001, 0.1]}", "{int: [-9007199254740993, 1]}", "tune.spaces[1].space.optimizer.lr.int[0]: a search"),
    ("{log: [0.0001, 0.1]}", "{log: [1.0e-300, 1.0e+300]}",
     "./s.yaml:34: tune.spaces[1].space.optimizer.lr.log: is too wide: the ratio of its ends 1e-300 and 1e+300 is no "),
    ("{log: [0.0001, 0.1]}", "{linear: [-1.7e+308, 1.7e+308]}",
     "./s.yaml:34: tune.spaces[1].space.optimizer.lr.linear: is too wide: the difference of its ends"),
    ("{log: [0.0001, 0.1]}", "{linear: [1, 0.1]}",
     "./s.yaml:34: tune.spaces[1].space.optimizer.lr.linear: is empty: 1 is not below 0.1"),
    ("{log: [0.0001, 0.1]}", "{log: [0.1, 1], linear: [0.1, 1]}",
     "./s.yaml:34: tune.spaces[1].space.optimizer.lr: must be a list of choices, or a range"),
    ("    - origin: a pilot\n      space:", "    - space:", "./s.yaml:32: tune.spaces[1].origin: is missing"),
    ("origin: a pilot", "origin: ' '", "./s.yaml:32: tune.spaces[1].origin: is empty: say where the range comes from"),
    ("metric: samples", "metric: sample", "./s.yaml:24: tune.metric: no metric named 'sample'; did you mean 'samples"),
    ("metric: samples", "metric: end_wall", "./s.yaml:24: tune.metric: end_wall is a time to the end of a fixed"),
    ("stop: {metric: top1, target: 0.9, max_epochs: 8}\n  evaluate_every: 1437",
     "stop: {design: fixed_steps, steps: 9}",
     "./s.yaml:23: tune.metric: samples is not a figure that design fixed_steps has; use one of: train_throughput"),
    ("    - origin: a pilot", "    - origin: a pilot\n      for: {optimizer: {kind: adamw, lr: 3}}",
     "./s.yaml:26: tune.spaces: the contender 'adamw' has no space"),
    ("    - for: {optimizer: sgd}\n", "    - for: {processes: 2}\n",
     "./s.yaml:27: tune.spaces[0].for: matches no contender that an earlier space has not: sgd; adamw"),
    ("    - for: {optimizer: sgd}\n", "    - for: {optimiser: sgd}\n",
     "./s.yaml:27: tune.spaces[0].for.optimiser: unknown key; did you mean 'optimizer'?"),
    ("contenders: [optimizer]", "contenders: []",
     "./s.yaml:19: tune.contenders: is empty, so no contender would be tuned; name factors of the matrix"),
    ("contenders: [optimizer]", "contenders: [engine]",
     "./s.yaml:19: tune.contenders[0]: 'engine' is not a factor; factors of this suite: optimizer, processes"),
    ("  at: {processes: 1}\n", "",
     "./s.yaml:18: tune.at: the contender 'sgd' has 2 cells; name the one in which it is tuned, for example at: "
     '{"processes": 1}'),
    ("at: {processes: 1}", "at: {processes: 4}",
     "./s.yaml:20: tune.at: no cell of the contender 'sgd' matches {\"processes\": 4}"),
    ("optimizer.lr: {log: [0.0001, 0.1]}", "optimizer.lr: [0.1, 0.2]",
     "./s.yaml:21: tune.trials: adamw: 4 trials are more than the space has settings: 2"),
    ("  trials: 4\n", "  trials: 0\n", "./s.yaml:21: tune.trials: "),
    ("hopeless: {at: 0.5, after: 3}", "hopeless: {at: 1.5}", "./s.yaml:25: tune.hopeless.at: "),
    ("seeds: 2\n  metric", "master_seed: 7\n  metric",
     "./s.yaml:23: tune.master_seed: 7 is the master seed of the scored trials too"),
])
def test_every_mistake_is_one_line_with_its_place(old: str, new: str, message: str) -> None:
    said = refused(old, new)
    assert message in said
    assert "\n" not in said


def test_a_suite_of_any_size_is_refused_before_anything_is_drawn() -> None:
    text = TEXT.replace("processes: [1, 2]", "processes: [1, 2]\n  gradient_clip: [1.0, 2.0, 3.0]").replace(
        "contenders: [optimizer]\n  at: {processes: 1}", "contenders: null").replace("trials: 4", "trials: 1000")
    with pytest.raises(SuiteError, match=r"tune.trials: its contenders have 12000 settings in all; at most 5000"):
        phases(text)
    many = ", ".join(map(str, range(1, 1001)))
    with pytest.raises(SuiteError, match=r"matrix: its factors have 12000 combinations; at most 5000 are allowed"):
        phases(text.replace("[1.0, 2.0, 3.0]", f"[{many}]").replace("[1, 2]", "[1, 2, 3, 4, 5, 6]"))
    with pytest.raises(SuiteError, match=r"tune.spaces\[1\].space.optimizer.lr: lists 1,001 choices; at most 1,000"):
        phases(TEXT.replace("{log: [0.0001, 0.1]}", f"[{many}, 1001]"))


def test_more_trials_than_the_grid_has() -> None:
    text = TEXT.replace("search: random", "search: grid").replace("{log: [0.001, 1]}", "[0.1, 0.2]").replace(
        "{log: [0.0001, 0.1]}", "{log: [0.0001, 0.1], points: 3}")
    with pytest.raises(SuiteError, match=r"^./s.yaml:21: tune.trials: adamw: 4 trials are more than the grid has "
                                         r"settings: 3$"):
        phases(text)
    with pytest.raises(SuiteError, match=r"^./s.yaml:34: tune.spaces\[1\].space.optimizer.lr: adamw: search: grid "
                                         r"needs the number of points"):
        phases(text.replace(", points: 3", ""))


def test_a_frozen_suite_is_not_scored_on_the_seeds_that_it_was_tuned_with() -> None:
    found = phases()
    chosen = [(item.levels, item.settings[0]) for item in found.contenders]
    suite = scored_suite(found.declared.seeded, chosen, "0" * 64).model_copy(update={"master_seed": None})
    text = yaml.safe_dump(suite.model_dump(mode="json", by_alias=True, exclude_none=True))
    Path("tuned.yaml").write_text(text)
    assert read_suite("./tuned.yaml").suite == suite
    with pytest.raises(SuiteError, match=r"--master-seed \d+: master_seed: \d+ is the master seed that its settings "
                                         r"were tuned with"):
        read_suite("./tuned.yaml", (), None, {"master_seed": found.tuning.master_seed})
    assert suite.settings[0].where == {"optimizer": "sgd"}
    Path("tuned.yaml").write_text(text.replace("    optimizer: sgd\n", "    optimizer: lamb\n", 1))
    with pytest.raises(SuiteError, match=r"tuned.yaml:\d+: "):
        plan_file("./tuned.yaml")


def test_a_suite_to_be_tuned_is_no_suite_for_other_commands() -> None:
    from repro.cli.workflows.starting import expand

    Path("s.yaml").write_text(TEXT)
    with pytest.raises(SuiteError, match=r"^./s.yaml:18: tune: the settings of this suite are to be tuned first"):
        expand(read_suite("./s.yaml"), ())


def test_the_example_of_the_documentation_can_be_planned() -> None:
    import repro

    page = (Path(repro.__file__).parents[1] / "docs/tuning.md").read_text()
    found = phases(page.partition("```yaml\n")[2].partition("```")[0])
    assert [(item.label, len(item.settings)) for item in found.contenders] == [("sgd", 20), ("adamw", 20)]
    assert len(found.draft.order) == 40


def test_an_override_may_take_the_contenders_of_a_space_away() -> None:
    source = read_suite("optimizers", ["workload=digits,mnist1d", "tune.trials=2"])
    found = plan_phases(source, ["workload=digits,mnist1d", "tune.trials=2"])
    assert not any("muon" in item.label for item in found.contenders)


def test_a_contender_of_which_settings_cannot_be_tried_is_refused(tmp_path: Path) -> None:
    text = (TUNED.replace("search: random", "search: grid")
            .replace("optimizer.lr: {log: [0.00003, 0.03]}", "optimizer.lr: [0.0003, 0.001, 0.003, 0.01, 0.03]")
            .replace("optimizer.lr: {log: [0.003, 0.3]}", "optimizer.lr: [0.003, 0.01, 0.03, 0.1, 0.3]"))
    (tmp_path / "own.yaml").write_text(text)
    assert len(plan_phases(read_suite(str(tmp_path / "own.yaml")), ()).contenders) == 4
    (tmp_path / "own.yaml").write_text(
        text.replace("tune:\n", "exclude:\n  - {optimizer: {kind: adamw, lr: 0.0003}}\ntune:\n"))
    with pytest.raises(SuiteError, match=re.escape(
            "adamw, digits: 1 of its 5 settings cannot be tried, the first with optimizer.lr=0.0003 (excluded)")):
        plan_phases(read_suite(str(tmp_path / "own.yaml")), ())


def test_a_frozen_setting_that_was_not_drawn_is_a_note() -> None:
    found = phases(TEXT)
    chosen = [(item.levels, item.settings[1]) for item in found.contenders]
    honest = scored_suite(found.declared.seeded, chosen, record="0" * 64)
    changed = honest.model_copy(update={"settings": (
        honest.settings[0].model_copy(update={"set_": {**(honest.settings[0].set_ or {}), "optimizer.lr": 0.1234}}),
        *honest.settings[1:])})
    told = [[note for note in make_plan(suite, Machine("cpu", 0, 2)).notes if "does not draw" in note]
            for suite in (honest, changed)]
    assert told[0] == []
    assert len(told[1]) == 1 and told[1][0].startswith("sgd has a setting")


SPACE = {"optimizer.lr": Axis(log=(1e-4, 1.0)), "optimizer.momentum": Axis(linear=(0.5, 0.99)),
         "batch.global": Axis.model_validate([32, 64, 128]), "epochs": Axis.model_validate({"int": [1, 9]})}
SEARCHES: tuple[Search, ...] = ("random", "halton")


def drawn(search: Search, trials: int, seed: int = 7, name: str = "a", space: Mapping[str, Axis] = SPACE) -> list[
        Settings]:
    return list(draw_settings(space, search, trials, seed, name))


@pytest.mark.parametrize("search", SEARCHES)
def test_the_same_seed_gives_the_same_settings_and_more_trials_begin_alike(search: Search) -> None:
    first = drawn(search, 20)
    assert drawn(search, 20) == first
    assert drawn(search, 30)[:20] == first, "a larger budget goes on, it does not start over"
    assert drawn(search, 20, space=dict(reversed(SPACE.items()))) == first, "the order of writing has no effect"


@pytest.mark.parametrize("search", SEARCHES)
def test_another_seed_or_contender_gives_others(search: Search) -> None:
    assert not any(one == other for one in drawn(search, 20) for other in drawn(search, 20, seed=8))
    assert not any(one == other for one in drawn(search, 20) for other in drawn(search, 20, name="b"))


@pytest.mark.parametrize("search", SEARCHES)
def test_every_value_is_in_its_range_and_no_setting_twice(search: Search) -> None:
    found = drawn(search, 200)
    for item in found:
        assert 1e-4 <= item["optimizer.lr"] <= 1.0
        assert 0.5 <= item["optimizer.momentum"] <= 0.99
        assert item["batch.global"] in (32, 64, 128) and type(item["batch.global"]) is int
        assert item["epochs"] in range(1, 10) and type(item["epochs"]) is int
    assert len({tuple(sorted(item.items())) for item in found}) == 200
    assert {item["epochs"] for item in found} == set(range(1, 10))


def test_a_logarithmic_range_is_uniform_in_the_logarithm() -> None:
    shares = [(math.log10(item["lr"]) + 4) / 4 for item in drawn("random", 400, space={"lr": Axis(log=(1e-4, 1))})]
    assert np.histogram(shares, 4, (0, 1))[0] == pytest.approx([100] * 4, abs=30)


def test_halton_is_more_even_than_random() -> None:
    """The centred discrepancy of 64 points in two dimensions, over 20 seeds (Niederreiter 1992, chapter 3)."""
    plane = {"a": Axis(linear=(0, 1)), "b": Axis(linear=(0, 1))}

    def discrepancy(search: Search, seed: int) -> float:
        points = np.array([[item["a"], item["b"]] for item in drawn(search, 64, seed, space=plane)])
        return float(qmc.discrepancy(points))

    both = [(discrepancy("halton", seed), discrepancy("random", seed)) for seed in range(20)]
    assert sum(even < uneven for even, uneven in both) >= 19
    assert np.mean([even for even, _ in both]) < 0.3 * np.mean([uneven for _, uneven in both])


def test_a_small_space_is_emptied_without_repeats() -> None:
    space = {"a": Axis.model_validate([1, 2, 3]), "b": Axis.model_validate({"int": [1, 2]})}
    for search in SEARCHES:
        assert len({tuple(item.items()) for item in drawn(search, 6, space=space)}) == 6
        with pytest.raises(FieldProblem, match="7 trials are more than the space has settings: 6"):
            drawn(search, 7, space=space)


def test_a_grid_has_its_ends_and_its_points_in_a_drawn_order() -> None:
    space = {"lr": Axis.model_validate({"log": [0.001, 1], "points": 4}), "b": Axis.model_validate([1, 2])}
    assert grid_values(space["lr"]) == [0.001, 0.01, 0.1, 1.0]
    assert space_size(space, "grid") == 8
    found = drawn("grid", 8, space=space)
    assert {(item["lr"], item["b"]) for item in found} == {(lr, b) for lr in (0.001, 0.01, 0.1, 1.0) for b in (1, 2)}
    assert drawn("grid", 8, seed=8, space=space) != found
    with pytest.raises(FieldProblem, match="9 trials are more than the grid has settings: 8"):
        drawn("grid", 9, space=space)
    assert grid_values(Axis.model_validate({"int": [1, 10], "points": 4})) == [1, 4, 7, 10]
    assert list(grid_values(Axis.model_validate({"int": [3, 5]}))) == [3, 4, 5]
    with pytest.raises(FieldProblem, match="needs the number of points"):
        drawn("grid", 2, space={"lr": Axis(log=(0.001, 1))})
