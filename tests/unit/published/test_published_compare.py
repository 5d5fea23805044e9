"""`repro compare` of published systems: scores, unpaired ratios, and where the rules allow no verdict."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import ttest_ind

from repro.core.errors import UsageError
from repro.published.comparison.compare import compare_published
from repro.published.comparison.contrast import PublishedContrast
from repro.published.importing import import_results
from tests.in_process import called, succeeded
from tests.unit.published.made_logs import entry, log_lines, logs, repository

SLOW, FAST = (600, 612, 625, 590, 605), (500, 505, 498, 510, 507)


def published(root: Path, *systems: tuple[str, dict[str, str], str]) -> Path:
    for name, texts, round_name in systems:
        repository(root / "in", texts, system=name, round_name=round_name)
    import_results("mlperf", root / "in", root / "out")
    return root / "out"


def two(root: Path, ours: dict[str, str], theirs: dict[str, str], rounds: tuple[str, str] = ("training_v4.0",) * 2,
        **asked: Any) -> PublishedContrast:
    folder = published(root, ("base", theirs, rounds[0]), ("other", ours, rounds[1]))
    found = compare_published([folder], baseline="system=base", candidate="system=other", **asked)
    assert len(found.contrasts) == 1
    return found.contrasts[0]


def test_scores_and_welch_are_both_shown(tmp_path: Path) -> None:
    item = two(tmp_path, logs(FAST), logs(SLOW))
    ours, theirs = sorted(FAST)[1:-1], sorted(SLOW)[1:-1]
    assert item.score_ratio == pytest.approx(sum(ours) / sum(theirs), rel=1e-12)
    test = ttest_ind(np.log(FAST), np.log(SLOW), equal_var=False)
    assert item.comparison.p == pytest.approx(test.pvalue, rel=1e-9)
    assert item.comparison.ratio == pytest.approx(math.exp(np.mean(np.log(FAST)) - np.mean(np.log(SLOW))), rel=1e-12)
    limits = test.confidence_interval()
    assert item.comparison.interval is not None
    assert (math.log(item.comparison.interval.low), math.log(item.comparison.interval.high)) == pytest.approx(
        (limits.low, limits.high), rel=1e-9)
    assert item.comparison.verdict == "faster" and not item.comparison.paired and item.comparison.pairs == ()
    assert any("not paired" in text for text in item.comparison.cautions)


def test_rounds_with_one_target_have_a_ratio_and_no_verdict(tmp_path: Path) -> None:
    item = two(tmp_path, logs(FAST), logs(SLOW), ("training_v3.1", "training_v4.0"))
    assert item.score_ratio is not None and item.comparison.ratio is not None
    assert item.comparison.verdict == "inconclusive"
    assert "rounds differ (training_v4.0 against training_v3.1)" in item.comparison.because


@pytest.mark.parametrize(("ours", "theirs", "reason"), [
    (logs(FAST, division="open"), logs(SLOW), "divisions differ (open against closed)"),
    (logs(FAST, division="open"), logs(SLOW, division="open"), "only the closed division fixes"),
])
def test_open_division_has_no_ratio_of_any_kind(
    tmp_path: Path, ours: dict[str, str], theirs: dict[str, str], reason: str
) -> None:
    item = two(tmp_path, ours, theirs)
    assert (item.score_ratio, item.comparison.ratio, item.comparison.p, item.comparison.welch) == (None,) * 4
    assert item.comparison.verdict == "inconclusive" and reason in item.comparison.because


def test_targets_that_differ_have_no_ratio(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    for name, round_name in (("base", "training_v1.1"), ("other", "training_v2.0")):
        repository(folder, logs(FAST, benchmark="ssd", values=(0.1, 0.2, 0.35)), system=name, benchmark="ssd",
                   round_name=round_name)
    import_results("mlperf", folder, tmp_path / "out")
    item = compare_published([tmp_path / "out"], baseline="system=base", candidate="system=other").contrasts[0]
    assert (item.score_ratio, item.comparison.ratio) == (None, None)
    assert "targets differ (0.34 against 0.23)" in item.comparison.because


def test_a_run_that_missed_keeps_the_score_and_removes_the_verdict(tmp_path: Path) -> None:
    missed = logs(FAST) | {"result_4.txt": "".join(log_lines(seconds=700, status="aborted"))}
    item = two(tmp_path, missed, logs(SLOW))
    assert item.score_ratio is not None and item.comparison.ratio is None
    assert "1 of 5 runs" in item.comparison.because and item.comparison.verdict == "inconclusive"


def test_a_refused_log_removes_the_verdict_too(tmp_path: Path) -> None:
    item = two(tmp_path, logs(FAST) | {"result_4.txt": "cut"}, logs(SLOW))
    assert item.candidate_score.failed == 1 and item.comparison.verdict == "inconclusive"
    assert "no time to target" in item.comparison.because
    found = item.comparison
    assert item.score_ratio is not None and (found.ratio, found.interval, found.p) == (None,) * 3


def test_too_few_runs_have_no_valid_score_and_no_verdict(tmp_path: Path) -> None:
    item = two(tmp_path, logs(FAST[:4]), logs(SLOW))
    assert item.score_ratio is None and "4 runs of 5" in item.score_because
    assert item.comparison.verdict == "inconclusive"


def test_copied_logs_are_not_further_runs(tmp_path: Path) -> None:
    copied = logs(FAST)
    copied["result_4.txt"] = copied["result_3.txt"]
    item = two(tmp_path, copied, logs(SLOW))
    assert item.comparison.verdict == "inconclusive" and "copies of others" in item.comparison.because


def test_score_and_geometric_mean_that_disagree_carry_no_verdict(tmp_path: Path) -> None:
    # One very quick run moves the mean of logs, and the score drops it.
    item = two(tmp_path, logs((1, 612, 626, 608, 607)), logs((600, 606, 603, 605, 604)))
    assert item.score_ratio is not None and item.score_ratio > 1 and "point in different directions" in (
        item.comparison.because)


def test_nothing_is_called_the_same_since_no_margin_was_declared(tmp_path: Path) -> None:
    item = two(tmp_path, logs((600, 601, 602, 603, 604)), logs((600.5, 601.5, 602.5, 603.5, 601.8)))
    assert item.comparison.verdict == "inconclusive" and item.comparison.equivalence is None
    assert "contains 1" in item.comparison.because


def test_samples_are_figures_without_a_verdict(tmp_path: Path) -> None:
    early = {f"result_{at}.txt": "".join(log_lines(seconds=600 + at, seed=at, values=(0.3, 0.76 - (at == 2), 0.77)))
             for at in range(5)}
    late = {f"result_{at}.txt": "".join(log_lines(seconds=700 + at, seed=at, values=(0.3, 0.5, 0.6, 0.75, 0.76 + (
        at == 9), 0.77)[: 5 + at % 2])) for at in range(5)}
    item = two(tmp_path, early, late, metric="samples")
    assert item.comparison.metric == "samples" and item.comparison.verdict == "inconclusive"
    assert item.comparison.ratio is None or item.comparison.ratio < 1
    assert "without a verdict" in item.comparison.because


def test_review_factors_are_in_score_and_ratio(tmp_path: Path) -> None:
    home = repository(tmp_path / "in", logs(FAST), system="other")
    repository(tmp_path / "in", logs(tuple(2 * value for value in FAST)), system="base")
    (home / "scaling.json").write_text('{"scaling_factor": 1.5}')
    import_results("mlperf", tmp_path / "in", tmp_path / "out")
    item = compare_published([tmp_path / "out"], baseline="system=base").contrasts[0]
    assert item.score_ratio == pytest.approx(0.75) and item.comparison.ratio == pytest.approx(0.75)
    assert any("scaled the score by 1.5" in text for text in item.comparison.cautions)


def test_all_others_of_the_benchmark_and_round_under_holm(tmp_path: Path) -> None:
    folder = published(tmp_path, ("a", logs(SLOW), "training_v4.0"), ("b", logs(FAST), "training_v4.0"),
                       ("c", logs((550, 560, 555, 545, 552)), "training_v4.0"), ("a", logs(SLOW), "training_v3.1"))
    found = compare_published([folder], baseline="system=a,round=training_v4.0")
    assert [item.comparison.family for item in found.contrasts] == [2, 2]
    ps = sorted(item.comparison.p or 1 for item in found.contrasts)
    assert sorted(item.comparison.p_adjusted or 1 for item in found.contrasts)[0] == pytest.approx(2 * ps[0])


def test_many_systems_can_differ_with_five_runs_each(tmp_path: Path) -> None:
    """Welch's test has no smallest p, so no number of contrasts is out of its reach."""
    folder = published(tmp_path, ("base", logs(SLOW), "training_v4.0"), *(
        (f"s{place}", logs(tuple(second + place for second in FAST)), "training_v4.0") for place in range(8)),
        ("alike", logs(tuple(second + 3 for second in SLOW)), "training_v4.0"))
    found = compare_published([folder], baseline="system=base", fail_if=["slower"], fail_any=True)
    verdicts = {item.comparison.candidate_label.split()[1].strip(","): item.comparison for item in found.contrasts}
    alike = verdicts.pop("alike")
    assert not found.failures and {item.verdict for item in verdicts.values()} == {"faster"}
    assert alike.verdict == "inconclusive" and alike.reachable and alike.advice is None
    assert alike.because.startswith("the 95 % interval contains 1, Welch p = ")


def test_two_imports_compare_their_common_cells(tmp_path: Path) -> None:
    one = published(tmp_path / "one", ("a", logs(SLOW), "training_v3.1"), ("b", logs(FAST), "training_v3.1"))
    other = published(tmp_path / "other", ("a", logs(FAST), "training_v4.0"))
    found = compare_published([one, other])
    assert [item.comparison.candidate_label for item in found.contrasts] == [
        f"Acme a, resnet, training_v4.0 [{other}]"]
    assert "rounds differ" in found.contrasts[0].comparison.because


def test_dawnbench_entries_are_single_runs(tmp_path: Path) -> None:
    entry(tmp_path / "in", "fast")
    entry(tmp_path / "in", "slow", tsv="epoch\thours\ttop5Accuracy\n1\t2.0\t93.5\n")
    import_results("dawnbench", tmp_path / "in", tmp_path / "out")
    item = compare_published([tmp_path / "out"], baseline="system=slow").contrasts[0]
    assert item.score_ratio == pytest.approx(0.5) and item.comparison.verdict == "inconclusive"


@pytest.mark.parametrize(("asked", "words"), [
    ({}, "name the cell to compare with"), ({"baseline": "system"}, "expected key=value"),
    ({"baseline": "sytem=a"}, "did you mean 'system'"), ({"baseline": "system=zz"}, "no cell has system=zz"),
    ({"baseline": "org=Acme"}, "--baseline matches 2 cells"),
    ({"baseline": "system=a", "metric": "accuracy"}, "--metric accuracy: published logs do not contain it"),
    ({"baseline": "system=a", "force": True}, "--force applies to runs only"),
    ({"baseline": "system=a", "fail_if": ["ratio.low > 1"]}, "--fail-any"),
])
def test_impossible_requests_are_refused_with_the_reason(tmp_path: Path, asked: dict[str, Any], words: str) -> None:
    folder = published(tmp_path, *((name, logs(FAST), "training_v4.0") for name in "abc"))
    with pytest.raises(UsageError, match=words):
        compare_published([folder], **asked)


def test_a_run_and_published_results_never_share_a_ratio(tmp_path: Path) -> None:
    folder = published(tmp_path, ("a", logs(FAST), "training_v4.0"))
    with pytest.raises(UsageError, match="never compared with published results"):
        compare_published([folder, tmp_path])


def test_command_line_and_json(tmp_path: Path) -> None:
    folder = published(tmp_path, ("a\x1b[31m\u202e", logs(SLOW), "training_v4.0"), ("b", logs(FAST), "training_v4.0"))
    shown = succeeded("compare", folder)
    assert "\x1b" not in shown.output and "\u202e" not in shown.output
    done = called("compare", folder, "--json", "--fail-if", "ratio.low < 5")
    data = json.loads(done.stdout)
    assert done.exit_code == 3 and data["exit_code"] == 3 and data["origin"] == "published"
    assert f"{data['comparisons'][0]['interval']['low']:.3f} to " in shown.output
    assert data["comparisons"][0]["score_ratio"] is not None and len(data["cells"][0]["minutes"]) == 5


def test_candidate_is_for_published_results(tmp_path: Path) -> None:
    done = called("compare", tmp_path, "--candidate", "system=b")
    assert isinstance(done.exception, UsageError)
