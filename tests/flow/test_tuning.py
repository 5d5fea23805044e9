"""Suites with `tune` by the real command on invented figures: both phases, resuming, freezing, verifying."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from repro.bundle.verify import verify
from repro.record.folder.index import NAME, seal
from repro.record.folder.store import RunFolder, read_record
from repro.record.tuning import Tuning, read_declared, read_tuning, tuning_sha256
from tests.commands import Ended, command, start
from tests.plans import suite
from tests.waiting import until

pytestmark = pytest.mark.slow

SUITE = suite("invented", """\
matrix:
  optimizer: [{kind: sgd, lr: 0.1}, {kind: adamw, lr: 0.1}]
primary:
  candidate: {optimizer: adamw}
  baseline: {optimizer: sgd}
tune:
  trials: 8
  search: random
  metric: samples
  hopeless: {at: 0.25, after: 2}
  spaces:
    - for: {optimizer: sgd}
      origin: around the fake engine's default
      space: {engine.samples_scale: {log: [1000, 100000]}}
    - origin: the same range
      space: {engine.samples_scale: {log: [1000, 100000]}}
""", seeds=3, head="master_seed: 5\n", engine="{kind: fake, spread: 0.02, samples_scale: 5000}",
    stop="{metric: top1, target: 0.9, max_epochs: 20}", launcher="inline")
MANY = 400
"""Tuning settings of a run that is to be killed while it tunes: far more than it gets to."""


def run(folder: Path, *arguments: str) -> Ended:
    if not (folder / "suite.yaml").is_file():
        (folder / "suite.yaml").write_text(SUITE)
    return command(folder, "run", "suite.yaml", "--no-mlflow", *arguments)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tuned")
    code, out, error = run(folder, "--out", "one")
    assert code == 0, error
    (folder / "one.txt").write_text(out)
    return folder


@pytest.fixture(scope="module")
def tuning(folder: Path) -> Tuning:
    found = read_tuning(folder / "one")
    assert found is not None
    return found


@pytest.fixture
def copy(folder: Path, tmp_path: Path) -> Path:
    """A copy of the run, to be changed."""
    return Path(shutil.copytree(folder / "one", tmp_path / "one"))


def test_the_best_setting_of_every_contender_is_scored(folder: Path, tuning: Tuning) -> None:
    scored = read_record(folder / "one")
    assert (scored.plan.kind, tuning.record.plan.kind) == ("suite", "tuning")
    assert len(tuning.record.results) == 16 and tuning.complete
    assert len(scored.results) == 6
    for item in tuning.contenders:
        assert [len(one.results) for one in item.settings] == [1] * 8
        reached = [one for one in item.settings if one.results[0].status == "ok"]
        best = min(reached, key=lambda one: one.results[0].samples_to_target or 0)
        assert item.chosen is not None
        assert item.chosen.figure == best.figure == best.results[0].samples_to_target
        # No setting learns faster than the one with the smallest scale, but for the spread of 2 %.
        scale = item.chosen.values["engine.samples_scale"]
        assert scale < 1.2 * min(one.values["engine.samples_scale"] for one in item.settings)
        cell = next(cell for cell in scored.plan.cells if cell.label.startswith(item.label.split(" ")[0]))
        assert cell.choices.model_dump(mode="json")["engine"]["samples_scale"] == scale


def test_settings_that_reach_the_target_come_before_those_that_miss_it(tuning: Tuning) -> None:
    for item in tuning.contenders:
        assert [one.rank for one in item.ranked] == list(range(1, 9))
        figures = [one.figure for one in item.ranked]
        known = [figure for figure in figures if figure is not None]
        assert figures == known + [None] * (8 - len(known)) and known == sorted(known)
        qualities = [one.quality or 0.0 for one in item.ranked if one.figure is None]
        assert qualities == sorted(qualities, reverse=True) and qualities, "some setting missed the target"


def test_hopeless_trials_are_abandoned_by_the_declared_rule_and_counted(tuning: Tuning) -> None:
    abandoned = [item for item in tuning.record.results if item.status == "abandoned"]
    assert abandoned and len(abandoned) == tuning.cost.abandoned == sum(item.cost.abandoned
                                                                        for item in tuning.contenders)
    for item in abandoned:
        assert item.curve[-1].samples == 23 * 320, "the first evaluation after a quarter of 20 epochs of 1437 samples"
        assert "is worse than" in item.reason and item.tta_wall is None
    order = [trial.trial_id for trial in tuning.record.plan.trials()]
    first = {item.label: [order.index(one.results[0].trial_id) for one in item.settings] for item in tuning.contenders}
    early = {order[place] for places in first.values() for place in sorted(places)[:2]}
    assert not early & {item.trial_id for item in abandoned}, "two trials have to end before one is judged"


def test_the_cost_is_that_of_the_ledger(tuning: Tuning) -> None:
    assert tuning.cost.trials == tuning.cost.starts == 16
    assert tuning.cost.wall_seconds == pytest.approx(sum(item.seconds for item in tuning.record.attempts), abs=0.01)
    assert tuning.cost.processor_seconds == tuning.cost.wall_seconds, "one process each"


def test_the_phases_have_different_seeds(folder: Path, tuning: Tuning) -> None:
    scored = read_record(folder / "one")
    assert scored.plan.master_seed == 5 == read_declared(folder / "one").master_seed
    assert tuning.master_seed != 5
    ours, theirs = ({item.hashes["init_weights"] for item in each.results} for each in (scored, tuning.record))
    assert not ours & theirs
    assert scored.plan.suite.tuned is not None
    assert scored.plan.suite.tuned.record == tuning_sha256(tuning.record)


def test_the_end_says_what_was_chosen_and_what_it_took(folder: Path, tuning: Tuning) -> None:
    text = (folder / "one.txt").read_text()
    for item in tuning.contenders:
        assert item.chosen is not None
        assert f"engine.samples_scale {item.chosen.values['engine.samples_scale']}, the best of 8 settings" in text
    assert f"tuning: 16 trials, {tuning.cost.abandoned} abandoned" in text


def test_the_run_is_sound_and_so_is_its_bundle(folder: Path) -> None:
    found = verify(folder / "one")
    assert found.sound, found.text()
    assert found.checked["tunings ranked again"] == 1
    assert found.checked["results derived from their log again"] == 22
    code, _, error = command(folder, "bundle", "one", "--out", "one.zip")
    assert code == 0, error
    packed = verify(folder / "one.zip")
    assert packed.sound, packed.text()
    assert packed.checked["tunings ranked again"] == 1
    code, out, _ = command(folder, "diff", "one", "one.zip")
    assert code == 0, out


def test_the_same_seed_draws_the_same_settings(folder: Path, tmp_path: Path, tuning: Tuning) -> None:
    code, _, error = run(tmp_path, "--out", "two")
    assert code == 0, error
    again = read_tuning(tmp_path / "two")
    drawn = [[[one.values for one in item.settings] for item in each.contenders] for each in (tuning, again) if each]
    assert len(drawn) == 2 and drawn[0] == drawn[1]


def test_the_frozen_suite_reruns_with_new_seeds_and_says_where_its_settings_come_from(
        folder: Path, tmp_path: Path) -> None:
    shutil.copy(folder / "one" / "tuned.yaml", tmp_path / "tuned.yaml")
    code, _, error = command(tmp_path, "run", "tuned.yaml", "--no-mlflow", "--master-seed", "6", "--out", "two")
    assert code == 0, error
    plan, first = read_record(tmp_path / "two").plan, read_record(folder / "one").plan
    assert plan.digest == first.digest and plan.suite.tuned == first.suite.tuned
    assert not (tmp_path / "two" / "tuning").exists()
    found = verify(tmp_path / "two")
    assert found.sound, found.text()
    assert any("8 settings for every contender" in note for note in found.notes)
    seed = str(first.suite.tuned.master_seed) if first.suite.tuned else ""
    code, _, error = command(tmp_path, "run", "tuned.yaml", "--no-mlflow", "--master-seed", seed)
    assert code == 2 and "is the master seed that its settings were tuned with" in error


def test_a_run_of_the_same_declared_seed_is_refused(tmp_path: Path) -> None:
    assert run(tmp_path, "-o", "tune.trials=2", "-o", "tune.hopeless=null")[0] == 2
    code, _, error = run(tmp_path, "-o", "tune.trials=2")
    assert code == 0, error
    code, _, error = run(tmp_path, "-o", "tune.trials=2")
    assert code == 2 and "with master seed" in error


@pytest.mark.parametrize("of", [pytest.param("reproduce", marks=pytest.mark.slow), "report"])
def test_commands_on_the_scored_record_go_on_working(folder: Path, tmp_path: Path, of: str) -> None:
    where = ("reproduce", str(folder / "one"), "--even-if-undecided", "--out", "again") if of == "reproduce" else \
        ("report", str(folder / "one"), "--to", "csv,markdown", "--out", "again")
    code, _, error = command(tmp_path, *where)
    assert code in (0, 3), error
    assert (tmp_path / "again").is_dir()
    if of == "reproduce":
        assert verify(tmp_path / "again").sound


def test_a_tuning_alone_is_not_resumed(copy: Path) -> None:
    code, _, error = command(copy.parent, "run", "--resume", "one/tuning", "--no-mlflow")
    assert code == 2 and "is the tuning of the run one; resume that" in error


def wait_for(process: subprocess.Popen[str], ledger: Path, lines: int) -> None:
    until(lambda: ledger.is_file() and ledger.read_bytes().count(b"\n") >= lines, process)


@pytest.mark.parametrize("killed", ["tuning", *(pytest.param(name, marks=pytest.mark.slow)
                                                for name in ("choosing", "planned", "scoring"))])
def test_a_killed_run_goes_on_where_it_was_cut(tmp_path: Path, killed: str) -> None:
    """kill -9, in either phase and between the two; nothing is lost and nothing runs twice."""
    trials, seeds = ("16", "3") if killed == "tuning" else ("4", "14" if killed == "scoring" else "3")
    (tmp_path / "suite.yaml").write_text(SUITE)
    process = start(tmp_path, "run", "suite.yaml", "--no-mlflow", "--out", "run", "-o", f"tune.trials={trials}",
                    "--seeds", seeds)
    root = tmp_path / "run"
    wait_for(process, root / ("ledger.jsonl" if killed == "scoring" else "tuning/ledger.jsonl"), 11)
    if killed in ("choosing", "planned"):
        wait_for(process, root / "ledger.jsonl", 1)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    if killed in ("choosing", "planned"):  # as if it had been killed just before or after the plan was written
        kept = ["plan.json"] if killed == "planned" else []
        for name in {"ledger.jsonl", "plan.json", "environment.json", "launchers.json", "parity.json"}.difference(kept):
            (root / name).unlink(missing_ok=True)
        shutil.rmtree(root / "trials")
    before = {path: path.read_bytes() for path in root.rglob("result.json")}
    assert before
    code, _, error = command(tmp_path, "run", "--resume", "run", "--no-mlflow")
    assert code == 0, error
    tuning, scored = read_tuning(root), read_record(root)
    assert tuning is not None and tuning.complete and not scored.missing()
    assert (len(tuning.record.results), len(scored.results)) == (2 * int(trials), 2 * int(seeds))
    assert all(path.read_bytes() == content for path, content in before.items())
    for record in (tuning.record, scored):
        ended = Counter(item.trial_id for item in record.attempts if item.status not in ("started", "interrupted"))
        assert set(ended.values()) == {1}
    found = verify(root)
    assert found.sound, found.text()


def test_ctrl_c_during_the_tuning_says_how_to_go_on(tmp_path: Path) -> None:
    (tmp_path / "suite.yaml").write_text(SUITE)
    process = start(tmp_path, "run", "suite.yaml", "--no-mlflow", "--out", "run", "-o", f"tune.trials={MANY}")
    wait_for(process, tmp_path / "run" / "tuning" / "ledger.jsonl", 9)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 130 and "Traceback" not in error
    assert "completed tuning trials are kept; resume with: " in error and "run --resume run" in error
    assert not (tmp_path / "run" / "plan.json").exists()
    code, _, error = command(tmp_path, "run", "--resume", "run", "--rerun-failed", "--no-mlflow")
    assert code == 2 and "--rerun-failed" in error


def test_nothing_is_scored_if_no_trial_can_be_judged(tmp_path: Path) -> None:
    code, _, error = run(tmp_path, "--out", "run", "-o", "tune.trials=2", "-o", "timeout_seconds=1e-6")
    assert code == 2, error
    assert "no trial could be judged" in error and "2 timed_out" in error
    assert not (tmp_path / "run" / "plan.json").exists()


def test_a_contender_that_cannot_be_judged_is_left_out_and_the_others_are_scored(tmp_path: Path) -> None:
    text = SUITE.replace("matrix:\n", "matrix:\n  timeout_seconds: [60, 1.0e-6]\n").replace("trials: 8", "trials: 2")
    head, _, rest = text.partition("primary:")
    (tmp_path / "suite.yaml").write_text(head + rest[rest.index("tune:"):])
    code, out, error = run(tmp_path, "--out", "run")
    assert code == 1, error
    root = tmp_path / "run"
    plan = read_record(root).plan
    assert {cell.choices.timeout_seconds for cell in plan.cells} == {60}
    assert len(plan.cells) == 2
    lost = [item.where for item in plan.suite.settings if item.set_ is None]
    assert [item["timeout_seconds"] for item in lost] == [1e-6, 1e-6]
    assert sum("is not scored: no trial of its tuning could be judged" in note for note in plan.notes) == 2
    assert "not scored: none of its 2 settings could be judged (2 timed_out)" in out
    assert verify(root).sound, verify(root).text()
    assert "is not scored" in (root / "report" / "report.html").read_text()
    # The frozen suite leaves it out, too.
    frozen = command(tmp_path, "plan", "run/tuned.yaml")
    assert frozen[0] == 0 and "6 trials = 2 cells" in frozen[1], frozen

    def score(data: dict[str, Any]) -> None:
        data["suite"]["settings"] = [item for item in data["suite"]["settings"] if item["set"] is not None]
    edit_plan(root, score)
    assert "is scored with no settings" in sealed(root)


# ---- what verify finds


def edit_plan(root: Path, change: Callable[[dict[str, Any]], None]) -> None:
    path = root / "plan.json"
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data, indent=1) + "\n")


def sealed(root: Path) -> str:
    """Seal the changed record as its author could, and return what verify finds."""
    (root / NAME).unlink()
    seal(RunFolder(root))
    found = verify(root)
    assert not found.sound
    return found.text()


def test_verify_names_settings_that_were_not_chosen(copy: Path) -> None:
    """The author scores another setting of sgd than the tuning chose, in the plan and in the frozen suite."""
    data = yaml.safe_load((copy / "tuned.yaml").read_text())
    data["settings"][0]["set"]["engine.samples_scale"] = 999.0
    (copy / "tuned.yaml").write_text(yaml.safe_dump(data))

    def change(plan: dict[str, Any]) -> None:
        plan["suite"]["settings"][0]["set"]["engine.samples_scale"] = 999.0

    edit_plan(copy, change)
    text = sealed(copy)
    assert "the contender 'sgd (lr=0.1)' is scored with engine.samples_scale 999.0, the tuning chose" in text


def test_verify_names_a_frozen_suite_that_was_not_scored(copy: Path) -> None:
    path = copy / "tuned.yaml"
    path.write_text(path.read_text().replace("around the fake engine's default", "a famous paper"))
    assert "tuned.yaml: is not the suite that was scored" in sealed(copy)


def test_verify_names_seeds_that_overlap(copy: Path) -> None:
    def change(plan: dict[str, Any]) -> None:
        plan["suite"]["master_seed"] = 5

    edit_plan(copy / "tuning", change)
    assert "its trials have the master seed 5 of the scored ones" in sealed(copy)


def test_verify_names_a_hidden_larger_budget(copy: Path, tmp_path: Path) -> None:
    """The author tunes adamw with more settings than declared: the tuning of another run is put into this one."""
    text = SUITE.replace("    - origin: the same range\n", "    - origin: the same range\n      trials: 12\n      "
                                                          "unequal: it is ours\n")
    (tmp_path / "suite.yaml").write_text(text)
    code, _, error = run(tmp_path, "--out", "more")
    assert code == 0, error
    assert verify(tmp_path / "more").sound, "an unequal budget that is declared is open, not a problem"
    shutil.rmtree(copy / "tuning")
    shutil.copytree(tmp_path / "more" / "tuning", copy / "tuning")
    said = sealed(copy)
    assert "the contender 'adamw (lr=0.1)' got 12 settings, 8 are declared: its budget is not that of the" in said
    assert "suite.tuned names another tuning than the one in this record" in said


def test_verify_names_a_better_result_that_was_written_in(copy: Path, tuning: Tuning) -> None:
    worst = tuning.contenders[0].ranked[-1].results[0]
    path = copy / "tuning" / "trials" / worst.trial_id / "result.json"
    path.write_text(path.read_text().replace(f'"status": "{worst.status}"', '"status": "ok"').replace(
        '"samples_to_target": null', '"samples_to_target": 64'))
    said = sealed(copy)
    assert f"tuning/trials/{worst.trial_id}/result.json" in said
    assert "the contender 'sgd (lr=0.1)' is scored with" in said


def test_verify_names_a_trial_that_was_abandoned_against_the_rule(copy: Path, tuning: Tuning) -> None:
    """The bar in the log is raised, so that a good trial of a rival counts as hopeless."""
    item = next(item for item in tuning.record.results if item.status == "abandoned")
    log = next((copy / "tuning" / "trials" / item.trial_id).glob("result_*.txt"))
    lines = log.read_text().splitlines(keepends=True)
    at = next(place for place, line in enumerate(lines) if '"x_hopeless"' in line)
    event = json.loads(lines[at].partition(" ")[2])
    event["value"]["value"] += 0.01
    lines[at] = f":::MLLOG {json.dumps(event)}\n"
    log.write_text("".join(lines))
    said = sealed(copy)
    assert "which does not follow from all earlier trials of its contender" in said


def edit_abandoned(root: Path, tuning: Tuning, file: str, change: Callable[[str], str]) -> None:
    item = next(item for item in tuning.record.results if item.status == "abandoned")
    path = next((root / "tuning" / "trials" / item.trial_id).glob(file))
    path.write_text(change(path.read_text()))


def without_bar(log: str) -> str:
    return "".join(line for line in log.splitlines(keepends=True) if '"x_hopeless"' not in line)


def not_abandoned(result: str) -> str:
    return result.replace('"status": "abandoned"', '"status": "missed"')


def test_verify_names_what_contradicts_the_rule_for_hopeless_trials(copy: Path, tuning: Tuning) -> None:
    original = Path(shutil.copytree(copy, copy.parent / "original"))
    edit_abandoned(copy, tuning, "result_*.txt", without_bar)
    assert "result.json: was abandoned without a bar in its log" in sealed(copy)
    edit_abandoned(copy, tuning, "result.json", not_abandoned)
    assert "result.json: its log states no bar; the rule gives" in sealed(copy)
    hopeless = next(item for item in tuning.record.results if item.status == "abandoned")
    for file in ("result_*.txt", "result.json"):
        edit_abandoned(original, tuning, file, lambda text: text.replace(str(hopeless.curve[-1].value), "0.89"))
    assert "result.json: was abandoned against the declared rule" in sealed(original)

    def no_rule(plan: dict[str, Any]) -> None:
        plan["suite"]["tune"]["hopeless"] = None

    edit_plan(copy / "tuning", no_rule)
    edit_abandoned(copy, tuning, "result.json", lambda text: text.replace('"missed"', '"abandoned"'))
    assert "result.json: was abandoned, but the suite declares no rule for that" in sealed(copy)


def test_verify_names_settings_of_no_contender_and_another_search(copy: Path) -> None:
    def add(plan: dict[str, Any]) -> None:
        more = json.loads(json.dumps(plan["suite"]["settings"][0]))
        more["where"]["optimizer"] = {"kind": "sgd", "lr": 0.2}
        plan["suite"]["settings"].append(more)
        plan["suite"]["tuned"]["tune"]["trials"] = 9

    edit_plan(copy, add)
    said = sealed(copy)
    assert "has settings, but is not a contender of the tuning" in said
    assert "suite.tuned states another search than declared.json" in said


def test_six_independent_searches_give_one_verdict_together(tmp_path: Path) -> None:
    text = SUITE.replace("master_seed: 5\n", "").replace("  trials: 8\n", "  trials: 3\n  searches: 6\n")
    text = text.replace("100000]", "4000]")  # every setting reaches the target
    (tmp_path / "suite.yaml").write_text(text)
    names = [f"search-{number}" for number in range(6)]
    for name in names:
        done = run(tmp_path, "--out", name)
        assert done.code == 0 and "this run is one of 6 independent searches" in done.out, done.out + done.error
    assert "of this question on this machine" not in done.out + done.error, "a search is no answer"
    assert "one of 6 independent searches" in (tmp_path / "search-0/report/report.html").read_text()
    found = json.loads(command(tmp_path, "compare", *names, "--json").out)
    (item,) = found["comparisons"]
    assert item["n"] == 6 and item["primary"] and item["verdict"] in ("inconclusive", "faster", "slower", "same")
    assert any("one independent search" in text for text in item["cautions"])
    refused = command(tmp_path, "compare", *names[:4])
    assert refused.code == 2 and "declares 6 independent searches, and 4 runs are given" in refused.error
    assert command(tmp_path, "verify", "search-0").code == 0
