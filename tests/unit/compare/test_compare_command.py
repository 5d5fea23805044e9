"""`repro compare` from the outside: tables, JSON, Markdown, exit codes, one-line errors."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from markdown_it import MarkdownIt

from repro.compare.two_cells import compare_two
from repro.core.errors import UsageError
from repro.record.folder.store import Record
from repro.suite.model import Trial
from tests.in_process import called
from tests.records import SUITE, Course, default_course, make_record


def slower(trial: Trial) -> Course:
    """Everything takes 1.1 times as long as in the default course, give or take one per cent."""
    course = default_course(trial)
    return Course(course.step_seconds * 1.1 * (1 + 0.01 * (trial.repeat % 2)))


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Record:
    return make_record(tmp_path_factory.mktemp("runs") / "old")


@pytest.fixture(scope="module")
def new(tmp_path_factory: pytest.TempPathFactory) -> Record:
    return make_record(tmp_path_factory.mktemp("more") / "new", course=slower)


@pytest.fixture(autouse=True)
def _nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))  # no calibration


def run(*arguments: Any) -> Result:
    return called("compare", *arguments)


def refused(*arguments: Any) -> str:
    """The one line of an error that ends with exit code 2."""
    ended = run(*arguments)
    assert isinstance(ended.exception, UsageError), ended.output
    return str(ended.exception)


def test_one_run_as_a_table(old: Record) -> None:
    ended = run(old.folder.root)
    assert ended.exit_code == 0, ended.output
    assert re.search(r"^1  deepspeed[^\n]* \*  [^\n]* slower", ended.output, re.MULTILINE)
    assert "6/6" in ended.output
    assert ("1. slower: the 95 % interval excludes 1, exact sign-flip p = 0.0312 (the least of 6 pairs); "
            "6 of 6 pairs were slower") in ended.output
    assert "2. exploratory: 6 pairs cannot be significant after Holm over the 3 contrasts shown; 7 can" in ended.output
    assert re.search(r"not calibrated: .*; to measure it: \S*repro calibrate SUITE$", ended.output, re.MULTILINE)
    assert "the samples to the target of 3 cells together (Holm); so at most 15 % over all of them" in ended.output


def test_the_same_figures_as_json(old: Record) -> None:
    ended = run(old.folder.root, "--json")
    data = json.loads(ended.stdout)
    assert (ended.exit_code, data["exit_code"], data["schema"]) == (0, 0, 1)
    first = data["comparisons"][0]
    assert (first["primary"], first["verdict"], first["n"]) == (True, "slower", 6)
    assert first["speedup"] == pytest.approx(1 / first["ratio"])
    assert len(data["cells"]) == 4
    assert data["calibration"] is None
    assert data["error_budget"].startswith(
        "the chance of a wrong verdict is at most 5 % for each of: the primary contrast, tested alone; the 3 other")
    assert data["suite_digest"] == old.plan.digest


@pytest.mark.parametrize(("metric", "words"), [
    ("throughput", "throughput"), ("samples", "samples to the target"), ("tta_cold", "time from a cold start"),
    ("accuracy", "final quality"), ("tta_train", "training time"),
])
def test_every_metric(old: Record, metric: str, words: str) -> None:
    ended = run(old.folder.root, "--metric", metric)
    assert ended.exit_code == 0, ended.output
    assert words in ended.output.splitlines()[0]
    assert "primary" not in ended.output  # it was declared for another one


def test_another_baseline(old: Record) -> None:
    data = json.loads(run(old.folder.root, "--baseline", "engine=ddp,processes=1", "--json").stdout)
    assert {item["baseline_label"] for item in data["comparisons"]} == {"ddp, 1 process"}
    assert refused(old.folder.root, "--baseline", "engine").startswith("--baseline 'engine': must be key=value")
    assert "leaves no cell to compare; cells:" in refused(old.folder.root, "--baseline", "engine=single")
    assert "no cell to compare (none has 'engin')" in refused(old.folder.root, "--baseline", "processes=1,engin=ddp")


def test_conditions_decide_the_exit_code(old: Record) -> None:
    assert run(old.folder.root, "--fail-if", "ratio.low > 1.5").exit_code == 0
    ended = run(old.folder.root, "--fail-if", "ratio.low > 1.05", "--fail-if", "n < 3")
    assert ended.exit_code == 3
    assert "failed: deepspeed (stage=1), 2 processes against ddp, 2 processes: ratio.low = 1.1" in ended.output
    assert run(old.folder.root, "--fail-if", "slower").exit_code == 3
    assert run(old.folder.root, "--fail-if", "faster").exit_code == 0
    assert run(old.folder.root, "--fail-if", "ratio.high < 0.7").exit_code == 0
    assert run(old.folder.root, "--fail-if", "ratio.high < 0.7", "--fail-any").exit_code == 3
    assert "all of them add --fail-any" in refused(old.folder.root, "--metric", "samples", "--fail-if", "n < 2")
    assert "--fail-any requires --fail-if" in refused(old.folder.root, "--fail-any")
    assert "'ratio.low > 1.05'" in refused(old.folder.root, "--fail-if", "ratio")
    assert "crosses a limit by chance" in refused(old.folder.root, "--fail-if", "ratio > 1.05")


def test_a_gate_over_all_contrasts_is_one_family(old: Record) -> None:
    """Six pairs cannot be significant over four contrasts: `slower` would pass whatever happened."""
    assert "can never hold for" in refused(old.folder.root, "--fail-any", "--fail-if", "slower")
    data = json.loads(run(old.folder.root, "--fail-any", "--fail-if", "ratio.low > 9", "--json").stdout)
    assert [(item["primary"], item["family"]) for item in data["comparisons"]] == [(False, 4)] * 4
    assert data["comparisons"][0]["corrected"]["level"] == pytest.approx(1 - 0.05 / 4)


def test_two_runs(old: Record, new: Record) -> None:
    ended = run(old.folder.root, new.folder.root, "--fail-any", "--fail-if", "ratio.low > 1.05")
    assert ended.exit_code == 3, ended.output
    assert "ddp, 1 process [new]" in ended.output
    assert "not interleaved" in ended.output
    assert "all of them add --fail-any" in refused(old.folder.root, new.folder.root, "--fail-if", "ratio.low > 1.05")
    assert "first is the baseline" in refused(old.folder.root, new.folder.root, "--baseline", "engine=ddp")
    assert "so they are one record" in refused(old.folder.root, new.folder.root, old.folder.root)


def test_a_run_is_not_compared_with_itself_or_its_copy(old: Record, new: Record, tmp_path: Path) -> None:
    assert "given twice; a run beside itself shows nothing" in refused(old.folder.root, old.folder.root)
    (tmp_path / "link").symlink_to(old.folder.root)
    assert "given twice" in refused(old.folder.root, tmp_path / "link")
    shutil.copytree(old.folder.root, tmp_path / "copy")
    for arguments in ([], ["--force"], ["--fail-any", "--fail-if", "ratio.low > 1.05"]):
        assert "24 of the 24 that both have share an identical log" in refused(
            old.folder.root, tmp_path / "copy", *arguments)
    taken = new.results[0]  # one trial of the first run, put among those of the second
    shutil.copytree(new.folder.root, tmp_path / "mixed")
    for name in ("result.json", "result_1.txt"):
        shutil.copy(old.folder.trial(taken.trial_id) / name, tmp_path / "mixed" / "trials" / taken.trial_id / name)
    assert f"1 of the 24 that both have share an identical log (first: {taken.trial_id})" in refused(
        old.folder.root, tmp_path / "mixed")


def test_invented_figures_are_alike_in_two_runs_and_those_are_no_copies(tmp_path: Path) -> None:
    suite = SUITE.replace("engine: [ddp, {kind: deepspeed, stage: 1}]", "engine: [{kind: fake, step_seconds: 0.01}]")
    suite = suite.replace("engine: ddp", "engine: fake").partition("baseline:")[0]
    one = make_record(tmp_path / "one", suite)
    two = make_record(tmp_path / "two", suite)
    assert "hold the same trials" in refused(one.folder.root, two.folder.root)  # by formula: ledgers are alike too
    ledger = two.folder.ledger
    entries = [json.loads(line) for line in ledger.read_text().splitlines()]
    ledger.write_text("".join(json.dumps({**item, "started_ms": item["started_ms"] + 1e6}) + "\n" for item in entries))
    assert run(one.folder.root, two.folder.root).exit_code == 0


def test_runs_of_different_suites(old: Record, tmp_path: Path) -> None:
    other = make_record(tmp_path / "other", SUITE + "margin: 0.1\n", slower)
    assert "--force compares them anyway" in refused(old.folder.root, other.folder.root)
    ended = run(old.folder.root, other.folder.root, "--force")
    assert ended.exit_code == 0, ended.output
    cautions = [line for line in ended.output.splitlines() if "caution: " in line]
    assert "caution: FORCED: these runs are of different experiments" in cautions[0]


def test_one_cell_is_nothing_to_compare(tmp_path: Path) -> None:
    alone = make_record(tmp_path / "run", SUITE.split("matrix:")[0])
    assert "has only one cell" in refused(alone.folder.root)
    again = make_record(tmp_path / "again", SUITE.split("matrix:")[0], course=lambda trial: Course(0.0101))
    ended = run(alone.folder.root, again.folder.root, "--metric", "samples", "--fail-if", "n < 3")
    assert ended.exit_code == 0, ended.output  # the only contrast is the one meant
    ended = run(alone.folder.root, again.folder.root, "--fail-if", "n < 3")
    assert ended.exit_code == 3, ended.output
    assert "two separate runs are not pairs" in ended.output


@pytest.mark.parametrize("condition", ["ratio.low > 5", "n < 2", "slower"])
def test_a_refused_comparison_passes_no_condition(tmp_path: Path, condition: str) -> None:
    record = make_record(tmp_path / "run", SUITE.replace("seeds: 6", "seeds: 8"), only=20)  # 5 of 8 blocks
    ended = run(record.folder.root, "--fail-if", condition)
    assert ended.exit_code == 3, ended.output
    assert f"no result, so {condition!r} cannot be ruled out; 5 of 8 planned pairs have run; no verdict before all " \
        "have" in ended.output
    assert "no result" in next(line for line in ended.output.splitlines() if line.startswith("1  "))
    data = json.loads(run(record.folder.root, "--json").stdout)
    for item in data["comparisons"]:
        assert (item["refused"], len(item["pairs"])) == (True, 5)
        named = ("ratio", "interval", "p", "speedup", "welch", "split", "probability_less", "equivalence")
        assert {item[name] for name in named} == {None}


def test_the_page_calls_a_refused_comparison_no_result(tmp_path: Path) -> None:
    from repro.reporting import write_reports

    record = make_record(tmp_path / "run", SUITE.replace("seeds: 6", "seeds: 8"), only=20)
    html = Path(write_reports(record.folder.root, ["html"], None)[0]).read_text()
    verdicts = html[html.index('id="verdicts"'):html.index("</section>", html.index('id="verdicts"'))]
    verdicts = re.sub(r'data-copy="[^"]*"', "", verdicts)
    assert verdicts.count("No result for") == 4
    assert 'data-compare="comparisons.0.ratio"' not in html and "takes <b" not in html


def test_crashes_are_distinguished_from_misses(tmp_path: Path) -> None:
    def course(trial: Trial) -> Course:
        if trial.choices.engine.kind == "ddp":
            return default_course(trial)
        return Course(crash=trial.repeat == 0, hits_at=None if trial.repeat == 1 else 4)

    ended = run(make_record(tmp_path / "run", course=course).folder.root)
    assert ended.exit_code == 0, ended.output
    assert "the candidate crashed in 1 of 6 trials and missed the target in 1" in ended.output


def test_convergence_is_below_the_comparisons(old: Record, new: Record) -> None:
    rows = json.loads(run(old.folder.root, "--json").stdout)["convergence"]
    assert {row["candidate_label"] for row in rows} == {"ddp, 2 processes", "deepspeed (stage=1), 1 process",
                                                        "deepspeed (stage=1), 2 processes"}
    assert {row["verdict"] for row in rows} == {"inconclusive"}  # four evaluations are too coarse a grid
    assert "(digits, batch 64, fp32): inconclusive, 1.000 x the samples; " in run(old.folder.root).output
    assert json.loads(run(old.folder.root, new.folder.root, "--json").stdout)["convergence"] == []


def test_a_baseline_by_an_option_of_a_plug_in(old: Record) -> None:
    data = json.loads(run(old.folder.root, "--baseline", "engine.stage=1", "--json").stdout)
    assert [(item["candidate_label"], item["baseline_label"]) for item in data["comparisons"]] == [
        ("ddp, 1 process", "deepspeed (stage=1), 1 process"), ("ddp, 2 processes", "deepspeed (stage=1), 2 processes")]


def test_a_resumed_trial_is_marked_next_to_its_times(tmp_path: Path) -> None:
    record = make_record(tmp_path / "run")
    path = record.folder.result(record.results[0].trial_id)
    lost = {"kind": "resumed", "attempt": 1, "step": 12, "samples": 768, "lost_seconds": 61.3, "clock": "monotonic"}
    path.write_text(json.dumps({**json.loads(path.read_text()), "warnings": [lost]}))
    told = "1 of 6 trials were resumed from a checkpoint; their clocks include the time lost, up to 61.3 s"
    found = run(record.folder.root)
    assert told in found.output and "1 resumed" in found.output
    assert told not in run(record.folder.root, "--metric", "samples").output
    records = json.loads(run(record.folder.root, "--json").output)
    assert any(told in text for item in records["comparisons"] for text in item["cautions"])


# ---- as Markdown


MOST_LINES = 40


def test_a_held_condition_is_in_the_headline_with_the_verdict_and_the_figures(old: Record, tmp_path: Path) -> None:
    place = tmp_path / "new" / "comment.md"
    ended = run(old.folder.root, "--fail-if", "slower", "--markdown", place)
    text = place.read_text()
    assert ended.exit_code == 3
    assert text.splitlines()[0] == "### sample: failed (fail if slower)"
    assert "- **failed** " in text and "6 of 6 pairs were slower" in text
    ratio = re.search(r"\| (\d\.\d{3}) \| (\d\.\d{3}) to (\d\.\d{3}) \| 6 \| 0\.031\d? \| slower \|", text)
    assert ratio is not None and ratio[1] in ended.output and ratio[2] in ended.output
    assert len(text.splitlines()) <= MOST_LINES
    assert MarkdownIt("commonmark").enable("table").render(text).count("<table>") == 2


def test_a_condition_that_does_not_hold_passes(old: Record, tmp_path: Path) -> None:
    ended = run(old.folder.root, "--fail-if", "faster", "--markdown", tmp_path / "c.md")
    text = (tmp_path / "c.md").read_text()
    assert ended.exit_code == 0 and text.startswith("### sample: passed (fail if faster)")
    assert "**failed**" not in text


def test_without_a_condition_the_headline_is_the_declared_verdict(old: Record, tmp_path: Path) -> None:
    assert run(old.folder.root, "--markdown", tmp_path / "c.md").exit_code == 0
    assert (tmp_path / "c.md").read_text().startswith("### sample: slower\n")


def test_many_cells_stay_a_comment_and_it_says_what_is_left_out(tmp_path: Path) -> None:
    text = SUITE.replace("  processes: [1, 2]", "  processes: [1, 2]\n  batch.global: [32, 64, 128, 256]").replace(
        "processes: 2}", "processes: 2, batch.global: 32}")
    assert text != SUITE
    wide = make_record(tmp_path / "wide", text)
    assert run(wide.folder.root, "--markdown", tmp_path / "c.md").exit_code == 0
    found = (tmp_path / "c.md").read_text()
    assert len(found.splitlines()) <= MOST_LINES and "10 more rows by repro compare" in found


def test_nothing_of_this_machine_and_no_markup_of_names(
    old: Record, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("API_TOKEN", "planted-secret")

    def warned(*_: object) -> list[Any]:
        line = "<img src=x> @someone /home/me/secret/place planted-secret"
        return [type("W", (), {"is_note": False, "line": line})()]

    monkeypatch.setattr("repro.compare.runs.runs.run_warnings", warned)
    assert run(old.folder.root, "--markdown", tmp_path / "c.md").exit_code == 0
    found = (tmp_path / "c.md").read_text()
    assert "&lt;img" in found and "@<!-- -->someone" in found
    assert "/home/me" not in found and "planted-secret" not in found


def test_published_results_have_their_own_markdown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("repro.published.comparison.compare.any_published", lambda _: True)
    ended = run(tmp_path, "--markdown", tmp_path / "c.md")
    assert isinstance(ended.exception, UsageError) and "--to markdown" in str(ended.exception)


def test_a_verdict_on_two_cells_chosen_afterwards_is_no_gate(tmp_path: Path) -> None:
    """They have none, so that a gate on it could never fail."""
    record = make_record(tmp_path / "run")
    cells = "deepspeed (stage=1), 2 processes", "ddp, 1 process"
    with pytest.raises(UsageError, match="'slower': can never hold, because the suite does not declare this contrast"):
        compare_two(record.folder.root, *cells, None, ["slower"])
    assert compare_two(record.folder.root, *cells, None, ["not-slower"]).failures
    assert compare_two(record.folder.root, *cells, None, ["ratio.low > 0.1"]).failures
    declared = "deepspeed (stage=1), 2 processes", "ddp, 2 processes"
    assert compare_two(record.folder.root, *declared, None, ["slower"]).failures
