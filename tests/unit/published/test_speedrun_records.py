"""Records of a speed-run: arms, claims against scipy, and the traps that public records hold."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from repro.published.contest_rules import Contest
from repro.published.importing import import_json, import_results
from repro.published.speedrun.claims import ArmClaim, Claims, judge_claims
from repro.published.store import Published, read_published
from tests.unit.published.made_speedruns import LOSSES, TIMES, Box, Run, arm, runs, scaled

RECORD = "2026-07-17_Fp8"
BAD = (3.2784, 3.2901, 3.2777, 3.2890, 3.2794, 3.2783)


def imported(root: Path, rules: Contest | None = None) -> Published:
    out = root.parent / "out"
    shutil.rmtree(out, ignore_errors=True)
    import_results("speedrun", root, out, rules)
    return read_published(out)


def judged(root: Path, rules: Contest | None = None) -> Claims:
    return judge_claims(imported(root, rules))


def by_arm(claims: Claims) -> dict[str, ArmClaim]:
    return {item.arm: item for item in claims.arms}


def pair(root: Path, factor: float, times: Sequence[float] = TIMES, **others: object) -> Path:
    """A record of a baseline and an arm that takes `factor` as long, with a little noise."""
    arm(root / RECORD / "baseline", runs(times=times))
    noise = (1.0002, 0.9999, 1.0001, 0.9997, 1.0, 1.0003)
    arm(root / RECORD / "this_pr", runs(times=[round(t * factor * n, 3) for t, n in zip(times, noise, strict=True)],
                                        losses=[round(loss - 1e-4, 4) for loss in LOSSES], **others))
    return root


def test_figures_are_scipys(tmp_path: Path) -> None:
    root = pair(tmp_path / "in", 0.987)
    found = by_arm(judged(root))
    made = {item.system: [] for item in imported(root).results}  # type: ignore[var-annotated]
    for item in imported(root).results:
        made[item.system].append((item.curve[-1].value, item.seconds))
    for name, claim in found.items():
        losses, times = (np.array(column) for column in zip(*made[name], strict=True))
        assert claim.quality.p is not None and claim.quality.mean is not None and claim.seconds is not None
        assert abs(claim.quality.p - stats.ttest_1samp(losses, 3.28, alternative="less").pvalue) <= 1e-9
        assert abs(claim.quality.mean - losses.mean()) <= 1e-9 and abs(claim.seconds - times.mean()) <= 1e-9
        bounds = stats.ttest_1samp(times, 0).confidence_interval(0.95)
        assert claim.seconds_interval == pytest.approx((bounds.low, bounds.high), abs=1e-9)
    ours, theirs = (np.log([time for _, time in made[name]]) for name in ("this_pr", "baseline"))
    welch = stats.ttest_ind(ours, theirs, equal_var=False)
    time = found["this_pr"].time
    assert time.p == pytest.approx(welch.pvalue, abs=1e-9) == time.p_adjusted
    assert time.ratio == pytest.approx(np.exp(ours.mean() - theirs.mean()), abs=1e-9)
    assert time.interval == pytest.approx(np.exp(list(welch.confidence_interval(0.95))), abs=1e-9)


@pytest.mark.parametrize(("factor", "verdict"), [
    (0.93, "faster"), (0.987, "faster"), (0.995, "faster"), (1.0, "the same"), (1.02, "slower")])
def test_small_ratios_are_real(tmp_path: Path, factor: float, verdict: str) -> None:
    found = by_arm(judged(pair(tmp_path / "in", factor)))
    assert found["this_pr"].time.verdict == verdict
    assert found["this_pr"].quality.verdict == found["baseline"].quality.verdict == "supported"
    assert found["baseline"].time.verdict == "no comparison"


def test_equal_within_noise_is_not_the_same(tmp_path: Path) -> None:
    """Nothing is called the same but by an equivalence test at the declared margin."""
    wide = (76.0, 85.0, 79.0, 83.0, 81.0, 80.0)
    claim = by_arm(judged(pair(tmp_path / "in", 1.001, wide)))["this_pr"].time
    assert claim.verdict == "not decided" and claim.p is not None and claim.p > 0.05
    assert "not shown to be within 0.5 %" in claim.because
    root = pair(tmp_path / "in2", 1.001, wide)
    assert by_arm(judged(root, Contest(margin=0.5)))["this_pr"].time.verdict == "the same"


def test_holm_over_all_records(tmp_path: Path) -> None:
    root = tmp_path / "in"
    for index, factor in enumerate((0.99, 0.999, 1.0)):
        arm(root / f"2026-0{index + 1}-01_A" / "baseline", runs(seconds=1.0))
        times = [t + index / 1000 for t in scaled(factor)]
        arm(root / f"2026-0{index + 1}-01_A" / "pr", runs(times=times, losses=[x - index * 1e-4 for x in LOSSES]))
        for path in (root / f"2026-0{index + 1}-01_A").rglob("*.txt"):
            path.write_text(path.read_text().replace("Resetting", f"{index} Resetting").replace(
                "step:100/200 train_time", f"step:100/200 tokens:{index} train_time"))
    claims = [item.time for item in judged(root).arms if not item.baseline]
    ps = [claim.p for claim in claims]
    assert len(claims) == 3 and None not in ps
    expected = sorted(ps)  # type: ignore[type-var]
    assert claims[0].p_adjusted == pytest.approx(3 * expected[0])  # type: ignore[operator]


def test_what_its_own_logs_do_not_support(tmp_path: Path) -> None:
    arm(tmp_path / "in" / RECORD, runs(losses=BAD))
    claim = judged(tmp_path / "in").arms[0].quality
    assert claim.verdict == "not supported" and claim.p is not None and claim.p > 0.01
    assert "mean 3.28215, target 3.28, one-sided p =" in claim.because and "n = 6" in claim.because


def test_the_declared_level_decides(tmp_path: Path) -> None:
    arm(tmp_path / "in" / RECORD, runs())
    p = judged(tmp_path / "in").arms[0].quality.p
    assert p is not None
    assert judged(tmp_path / "in", Contest(alpha=p / 2)).arms[0].quality.verdict == "not supported"
    assert judged(tmp_path / "in", Contest(alpha=p * 1.01)).arms[0].quality.verdict == "supported"


@pytest.mark.parametrize("losses", [(3.2,), (3.27, 3.27)])
def test_too_few_or_equal_losses_cannot_be_tested(tmp_path: Path, losses: tuple[float, ...]) -> None:
    arm(tmp_path / "in" / RECORD, runs(losses=losses, times=TIMES[:len(losses)]))
    claim = judged(tmp_path / "in").arms[0]
    assert claim.quality.verdict == "cannot be tested" and claim.quality.p is None
    assert claim.seconds is not None


@pytest.mark.parametrize(("damage", "verdict", "refused"), [
    (lambda text: text[: text.index("step:150/")], "cannot be tested", "cut: its last line is step 149 of 200"),
    (lambda text: text.replace(" val_loss:", " other:"), "cannot be tested", "it has no evaluation (no val_loss)"),
    (lambda text: text.replace("step:150/200 train_time:5", "step:150/200 train_time:1"), "cannot be tested", ""),
    (lambda text: text.replace("val_loss:3.2783", "val_loss:nan"), "not supported", ""),
], ids=["cut", "no evaluation", "clock goes back", "nan"])
def test_no_run_is_dropped(tmp_path: Path, damage: object, verdict: str, refused: str) -> None:
    """A run without a result forbids the claim: leaving it out could make the claim true."""
    root = pair(tmp_path / "in", 0.98)
    path = root / RECORD / "this_pr" / "00000000.txt"
    head, mark, steps = path.read_text().partition("Resetting Model\n")
    path.write_text(head + mark + damage(steps))  # type: ignore[operator]
    assert damage(steps) != steps  # type: ignore[operator]
    published = imported(root)
    claim = by_arm(judge_claims(published))["this_pr"]
    assert (claim.runs, claim.quality.n, claim.quality.verdict) == (6, 5, verdict)
    assert claim.quality.p is claim.quality.deviation is None and claim.quality.mean is not None
    assert claim.time.verdict == "not decided" and claim.time.because == "1 of 6 logs of this_pr give no time"
    assert (claim.time.ratio, claim.time.interval, claim.time.p) == (None, None, None), "of five runs"
    assert [item.reason for item in published.refused] == ([refused] if refused else [])
    cell = next(cell for cell in published.record.cells if cell.factors["system"] == "this_pr")
    assert cell.score.runs == 6 and cell.score.failed == 1 and not cell.score.valid
    assert all(item.cell_id == cell.cell_id for item in published.refused)


def test_a_folder_that_copies_another_counts_once(tmp_path: Path) -> None:
    root = tmp_path / "in"
    arm(root / "2026-01-01_First", runs())
    shutil.copytree(root / "2026-01-01_First", root / "2026-02-01_Second" / "baseline")
    arm(root / "2026-02-01_Second" / "this_pr", runs(times=scaled(0.97)))
    published = imported(root)
    claims = judge_claims(published)
    assert len(published.results) == 12 and len(published.refused) == 6
    assert published.refused[0].reason == "a byte copy of 2026-01-01_First/00000000.txt"
    assert any("6 of 6 logs are copies, the first a byte copy of" in text for text in claims.rules.notes)
    second = {item.arm: item for item in claims.arms if item.record == "2026-02-01_Second"}
    assert second["baseline"].quality.because == "all its 6 logs are copies of others"
    assert (second["this_pr"].time.verdict, second["this_pr"].time.interval) == ("another machine", None)
    assert "its baseline has no run of its own: all its 6 logs are copies" in second["this_pr"].time.because


def test_the_same_run_in_another_text_is_a_copy_and_two_cut_starts_are_not(tmp_path: Path) -> None:
    home = arm(tmp_path / "in" / RECORD, runs())
    first = (home / "00000000.txt").read_text()
    (home / "console.log").write_text(first[first.index("Resetting"):])
    begin = first[: first.index("step:3/200")]
    (home / "x.txt").write_text(begin + "one\n")
    (home / "y.txt").write_text(begin + "other\n")
    found = {item.source.rpartition("/")[2]: item for item in imported(tmp_path / "in").refused}
    assert found["console.log"].reason.startswith("the same run as 2026-07-17_Fp8/00000000.txt")
    assert found["console.log"].cell_id is None
    assert all(found[name].reason.startswith("cut: ") and found[name].cell_id for name in ("x.txt", "y.txt"))


@pytest.mark.parametrize(("other", "words"), [
    ({"box": Box(gpus=1)}, {"8 GPUs", "1 GPU"}), ({"steps": 220}, {"200 steps", "220 steps"}),
    ({"program": "another\n"}, {"program"}),
])
def test_a_flat_folder_that_mixes_is_split(tmp_path: Path, other: dict[str, object], words: set[str]) -> None:
    home = arm(tmp_path / "in" / RECORD, runs())
    for index, run in enumerate(runs(losses=BAD, times=scaled(0.5), **other)):
        (home / f"other{index}.txt").write_text(run.text())
    claims = judged(tmp_path / "in")
    assert [item.quality.n for item in claims.arms] == [6, 6]
    assert all(any(word in item.arm for word in words) for item in claims.arms)
    assert len({item.arm for item in claims.arms}) == 2
    assert any("one folder holds 6 logs of" in text and "2 arms here" in text for text in claims.rules.notes)
    assert {item.quality.verdict for item in claims.arms} == {"supported", "not supported"}


def test_another_machine_gets_no_verdict(tmp_path: Path) -> None:
    claim = by_arm(judged(pair(tmp_path / "in", 0.9, box=Box(bus=0x40))))["this_pr"].time
    assert claim.verdict == "not decided" and claim.ratio == pytest.approx(0.9, abs=1e-3)
    assert "name different machines" in claim.because
    claim = by_arm(judged(pair(tmp_path / "in2", 0.9, box=None)))["this_pr"].time
    assert claim.verdict == "not decided" and "not every log names its machine" in claim.because


def test_two_runs_a_side_get_no_verdict(tmp_path: Path) -> None:
    for name, factor in (("baseline", 1.0), ("pr", 0.9)):
        arm(tmp_path / "in" / RECORD / name, runs(losses=(3.2701, 3.2703), times=scaled(factor)[:2]))
    claim = by_arm(judged(tmp_path / "in"))["pr"].time
    assert claim.verdict == "not decided" and "2 against 2 runs; a verdict needs at least 5" in claim.because


def test_arms_one_after_the_other_are_cautioned(tmp_path: Path) -> None:
    claim = by_arm(judged(pair(tmp_path / "in", 0.98, box=Box(started="Fri Jul 17 13:00:00 2026"))))["this_pr"].time
    assert claim.verdict == "faster"
    assert claim.cautions == (
        "one arm ran after the other (2026-07-17 11:47:52 to 2026-07-17 11:47:52, then 2026-07-17 13:00:00 to "
        "2026-07-17 13:00:00): a drift of the machine is in the ratio",)


def test_faster_without_its_quality_is_said(tmp_path: Path) -> None:
    root = pair(tmp_path / "in", 0.98)
    arm(root / RECORD / "this_pr", runs(losses=BAD, times=scaled(0.98)))
    claim = by_arm(judged(root))["this_pr"]
    assert claim.time.verdict == "faster" and claim.time.cautions[0].startswith(
        "faster, but its claim of quality is not supported: mean 3.28215")


def test_the_previous_record_is_a_number_only(tmp_path: Path) -> None:
    root = tmp_path / "in"
    arm(root / "track_1_short" / "2025-12-01_B", runs(times=scaled(0.5)))
    arm(root / "track_1_short" / "110125_A", runs())
    arm(root / "track_2_medium" / "2025-11-20_M", [replace(item, loss=float(item.loss) - 0.36) for item in runs(
        times=scaled(9.0))])
    found = {item.record: item for item in judged(root).arms}
    claim = found["track_1_short/2025-12-01_B"]
    assert (claim.date, claim.time.verdict, claim.time.interval, claim.time.p) == (
        "2025-12-01", "another machine", None, None)
    assert claim.time.ratio == pytest.approx(0.5, abs=1e-5)
    assert "track_1_short/110125_A" in claim.time.because
    assert found["track_1_short/110125_A"].date == "2025-11-01"
    assert found["track_1_short/110125_A"].time.verdict == "no comparison"
    assert found["track_2_medium/2025-11-20_M"].quality.target == 2.92


def test_a_track_that_no_folder_names_is_said(tmp_path: Path) -> None:
    arm(tmp_path / "in" / RECORD, runs())
    claims = judged(tmp_path / "in")
    assert claims.arms[0].quality.target == 3.28
    assert claims.rules.notes == ("no folder names a track with a known target for 2026-07-17_Fp8: 3.28 is the nearer "
                                  "target to the losses; --target declares another",)
    declared = judged(tmp_path / "in", Contest(target=3.27))
    assert declared.arms[0].quality.target == 3.27 and declared.rules.notes == ()
    assert declared.arms[0].quality.verdict == "not supported"


@pytest.mark.parametrize(("text", "given"), [
    ("# losses: (std=0.0013, mean=3.2783)", True), ("# losses: (tensor(0.0008), tensor(3.2783))", True),
    ("| mean val loss | 3.2783167 |", True), ("Mean loss: **3.27831**", True), ("mean 3.278", True),
    ("# losses: (std=0.0013, mean=3.2765)", False), ("(tensor(0.0008), tensor(3.2790))", False),
    ("time mean=80.722 s, p=0.001", None), ("the mean is good", None), ("mean=3.9812", None),
])
def test_a_stated_mean_is_held_against_the_logs(tmp_path: Path, text: str, given: bool | None) -> None:
    home = arm(tmp_path / "in" / RECORD, runs())
    (home / "README.md").write_text(text)
    published = imported(tmp_path / "in")
    claims = judge_claims(published)
    assert len(claims.stated) == (given is False)
    if given is False:
        assert "README.md states a mean of 3.27" in claims.stated[0].because
        assert "this record 3.27832" in claims.stated[0].because
    assert [item.reason for item in published.refused] == (
        ["a text that states no mean of the losses"] if given is None else [])


@pytest.mark.parametrize("depth", [0, 1, 2, 3])
def test_the_path_may_be_a_log_an_arm_a_record_or_all(tmp_path: Path, depth: int) -> None:
    root = pair(tmp_path / "in", 0.98)
    chosen = (root / RECORD / "this_pr" / "00000000.txt", root / RECORD / "this_pr", root / RECORD, root)[depth]
    claims = judged(chosen)
    assert {item.record for item in claims.arms} == {RECORD}
    assert [item.arm for item in claims.arms] == (["this_pr"] if depth < 2 else ["baseline", "this_pr"])


def test_other_files_are_listed(tmp_path: Path) -> None:
    home = arm(tmp_path / "in" / RECORD, runs())
    (home / "train_gpt.py").write_text("x")
    (home / "requirements.txt").write_text("torch\n")
    (home / "link.txt").symlink_to(home / "00000000.txt")
    published = imported(tmp_path / "in")
    assert {item.source.rpartition("/")[2]: item.reason.partition(":")[0] for item in published.refused} == {
        "train_gpt.py": "not a log (.txt or .log) and not a text (.md)",
        "link.txt": "is a symbolic link; links are not followed", "requirements.txt": "it has no line step"}
    assert judge_claims(published).arms[0].quality.verdict == "supported"


def test_the_same_folder_gives_the_same_claims_and_json(tmp_path: Path) -> None:
    root = pair(tmp_path / "in", 0.98)
    first, second = imported(root), imported(root)
    assert judge_claims(first) == judge_claims(second)
    data = json.loads(json.dumps(import_json(first), allow_nan=False))
    assert [item["times"][0]["verdict"] for item in data["arms"]] == ["no comparison", "faster"]
    assert data["not_given"] == [] and data["contest"]["alpha"] == 0.01


def test_a_run_of_its_own_folder_is_an_arm_of_one(tmp_path: Path) -> None:
    for index, run in enumerate((Run(), Run(loss=3.27))):
        arm(tmp_path / "in" / RECORD / "runs" / f"{index:02d}_candidate", [run])
    assert [item.quality.because for item in judged(tmp_path / "in").arms] == [
        "one run: a t test needs at least two"] * 2
