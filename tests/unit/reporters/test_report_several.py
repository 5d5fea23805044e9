"""Several runs in one report: no seed counts twice, which run counts does not depend on how it came out."""

from __future__ import annotations

import json
import re
import shutil
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from repro.reporters.page.several import answers
from repro.reporters.page.speedup import forest

from repro.bundle.verify import verify
from repro.compare import compare
from repro.compare.findings import findings
from repro.compare.runs.merge import LATER, sections
from repro.core import registry
from repro.core.errors import OutputError, UsageError
from repro.core.files import write_model
from repro.record.folder import index
from repro.record.folder.index import seal
from repro.record.folder.ledger import Incident, append_line
from repro.record.folder.store import Record, read_record
from repro.reporting import write_reports
from tests.in_process import called, succeeded
from tests.letters import installed, write_package
from tests.records import SUITE, Course, make_record


def quick(trial: Any) -> Course:
    """Ten times as fast as the default course."""
    return Course(step_seconds=0.001)


def uneven(trial: Any) -> Course:
    """Each seed is a little slower than the one before, DeepSpeed always."""
    slow = 0.001 * trial.repeat * (2 if trial.trial_id.startswith("deepspeed") else 1)
    return Course(step_seconds=0.01 + slow)


def contents(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


@pytest.fixture(scope="module")
def early(tmp_path_factory: pytest.TempPathFactory) -> Record:
    """Four of six seeds: it was interrupted."""
    return make_record(tmp_path_factory.mktemp("early") / "early", only=16, started_ms=1_600_000_000_000)


@pytest.fixture(scope="module")
def late(tmp_path_factory: pytest.TempPathFactory) -> Record:
    """All six seeds, later and faster."""
    return make_record(tmp_path_factory.mktemp("late") / "late", course=quick, started_ms=1_700_000_000_000)


@pytest.mark.parametrize("turned", [False, True])
def test_a_seed_counts_once_from_the_earlier_run(early: Record, late: Record, turned: bool, tmp_path: Path) -> None:
    runs = [early.folder.root, late.folder.root]
    (found,) = sections(runs[::-1] if turned else runs, tmp_path / "out")
    assert found.sources == ("early", "late") and found.why == ""
    seconds = {(item.cell_id, item.repeat): item.tta_wall for item in found.record.results}
    for source, seeds in ((early, range(4)), (late, range(4, 6))):
        wanted = {(item.cell_id, item.repeat): item.tta_wall for item in source.results if item.repeat in seeds}
        assert wanted.items() <= seconds.items()
    assert len(seconds) == len(found.record.results) == 24 and found.record.missing() == []
    text = " ".join(found.notes)
    assert "early (seeds 0 to 3); late (seeds 4, 5)" in text and LATER in found.notes
    assert "seeds 0 to 3 were run more than once" in text
    assert set(found.notes) <= set(found.record.plan.notes)


def test_what_does_not_count_stays_in_the_ledger(early: Record, late: Record, tmp_path: Path) -> None:
    (found,) = sections([early.folder.root, late.folder.root], tmp_path / "out")
    ledger = found.record.attempts
    assert len(ledger) == 16 + 24
    out = [item for item in ledger if "not counted" in item.reason]
    assert len(out) == 16 and all(
        item.attempt == 2 and item.source == "late" and "of late, not counted: seed" in item.reason for item in out)
    assert all(found.record.folder.log(item.trial_id, item.attempt).is_file() for item in ledger)
    checked = verify(found.record.folder.root)
    assert checked.sound and not any("yet to run" in text for text in checked.notes), checked.notes
    (found.record.folder.root / index.NAME).unlink()
    assert [item.place for item in verify(found.record.folder.root).problems] == [index.NAME]


def test_a_run_beside_its_copy_is_refused(late: Record, tmp_path: Path) -> None:
    """An older copy lacks the last trials: its seeds were neither run more than once nor added later."""
    older = tmp_path / "older"
    shutil.copytree(late.folder.root, older)
    (older / "trials" / late.results[-1].trial_id / "result.json").unlink()
    with pytest.raises(UsageError, match="23 of the 23 that both have share an identical log"):
        sections([late.folder.root, older], tmp_path / "out")


def test_incidents_of_every_run_are_shown_with_its_name(late: Record, tmp_path: Path) -> None:
    first = make_record(tmp_path / "first", only=4, started_ms=1_500_000_000_000)
    second = make_record(tmp_path / "second", course=quick, started_ms=1_550_000_000_000)
    for record, at in ((second, 2), (first, 1)):
        append_line(record.folder.incidents, Incident(at_ms=at, kind="clock", text=f"at {at}", trial_id=f"t{at}"))
        seal(record.folder)
    (found,) = sections([second.folder.root, first.folder.root], tmp_path / "out")
    assert [(item.at_ms, item.kind, item.text, item.trial_id) for item in found.record.incidents] == [
        (1, "clock", "first: at 1", "t1"), (2, "clock", "second: at 2", "t2")]
    assert verify(found.record.folder.root).sound
    (alone,) = sections([first.folder.root], tmp_path / "alone")
    assert [item.text for item in alone.record.incidents] == ["at 1"]


def test_a_seed_incomplete_in_one_run_is_taken_completely_from_the_other(late: Record, tmp_path: Path) -> None:
    part = make_record(tmp_path / "part", only=18, started_ms=1_500_000_000_000)
    (found,) = sections([part.folder.root, late.folder.root], tmp_path / "out")
    fast = {item.repeat for item in found.record.results if item.tta_wall and item.tta_wall < 0.3}
    assert fast == {4, 5}
    assert all(len({(item.tta_wall or 0) < 0.3 for item in found.record.results if item.repeat == seed}) == 1
               for seed in range(6))


def test_a_crash_counts_if_its_run_is_the_earlier_one(late: Record, tmp_path: Path) -> None:
    crashed = make_record(tmp_path / "crashed", course=lambda trial: Course(crash=trial.repeat == 2),
                          started_ms=1_500_000_000_000)
    (found,) = sections([late.folder.root, crashed.folder.root], tmp_path / "out")
    assert sum(item.status == "crashed" for item in found.record.results) == 4


def test_one_run_merged_is_that_run(late: Record, tmp_path: Path) -> None:
    """Verdicts and figures of a section are what `repro compare` says of its run."""
    other = make_record(tmp_path / "other", SUITE.replace("lr: 0.1", "lr: 0.2"))
    first, second = sections([late.folder.root, other.folder.root], tmp_path / "out")
    for section, record in ((first, late), (second, other)):
        assert compare(section.record.plan, section.record.results, execution=section.record.execution) == compare(
            record.plan, record.results, execution=record.execution)
        assert section.notes == () and section.record.plan == record.plan
    assert "digest" in second.why and first.why == ""


def changed(record: Record, **values: Any) -> None:
    write_model(record.folder.environment, record.environment.model_copy(update=values))


def test_another_machine_is_separate(late: Record, tmp_path: Path) -> None:
    elsewhere = make_record(tmp_path / "elsewhere")
    changed(elsewhere, cpu="Another CPU")
    found = sections([late.folder.root, elsewhere.folder.root], tmp_path / "out")
    assert [item.sources for item in found] == [("late",), ("elsewhere",)]
    assert "another machine: Another CPU" in found[1].why


def test_a_run_with_other_seeds_is_separate_and_none_of_its_trials_is_a_pair_of_the_first(
    late: Record, tmp_path: Path
) -> None:
    again = make_record(tmp_path / "again", f"{SUITE}master_seed: 5\n")
    assert again.plan.digest == late.plan.digest
    found = sections([late.folder.root, again.folder.root], tmp_path / "out")
    assert [item.sources for item in found] == [("late",), ("again",)]
    assert found[1].why == ("another master seed: 5 against 20151102, so that seed 0 of one is not seed 0 of the other")
    assert {item.trial_id for item in late.results}.isdisjoint(item.trial_id for item in again.results)


def test_other_libraries_are_reported(late: Record, tmp_path: Path) -> None:
    newer = make_record(tmp_path / "newer", started_ms=1_800_000_000_000)
    changed(newer, libraries={"torch": "3.0"})
    (found,) = sections([late.folder.root, newer.folder.root], tmp_path / "out")
    assert "newer differs from late in torch" in found.notes


def test_the_worst_gate_counts(late: Record, tmp_path: Path) -> None:
    bad = make_record(tmp_path / "bad", started_ms=1_800_000_000_000)
    gate = {"needed": True, "findings": [{"group": "g", "reference": "r", "candidate": "c", "problem": "step 1",
                                          "largest_difference": 1.0}]}
    bad.folder.parity_verdict.write_text(json.dumps(gate))
    (found,) = sections([late.folder.root, bad.folder.root], tmp_path / "out")
    assert found.record.parity == gate
    bad.folder.parity_verdict.unlink()
    (found,) = sections([late.folder.root, bad.folder.root], tmp_path / "unknown")
    assert found.record.parity is None


def test_a_link_is_not_followed(late: Record, tmp_path: Path) -> None:
    linked = make_record(tmp_path / "linked", started_ms=1_500_000_000_000)
    (tmp_path / "secret").write_text("secret")
    folder = linked.folder.trial(linked.results[0].trial_id)
    (folder / "rank1.log").symlink_to(tmp_path / "secret")
    with pytest.raises(OutputError, match="links are not followed"):
        sections([linked.folder.root, late.folder.root], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_command_writes_one_report_and_an_index(early: Record, late: Record, tmp_path: Path) -> None:
    texts = []
    for name in ("once", "again"):
        succeeded("report", early.folder.root, late.folder.root, "--to", "html,markdown,csv", "--out", tmp_path / name)
        texts.append(contents(tmp_path / name))
    assert texts[0] == texts[1]
    page = texts[0]["report/report.html"].decode()
    assert "seeds 0 to 3 were run more than once" in page and "seeds 4, 5" in texts[0]["index.md"].decode()
    read_record(tmp_path / "once")
    found = verify(tmp_path / "once")
    assert found.problems == [] and found.identity is not None


def test_an_impossible_request_is_one_line(early: Record, late: Record, tmp_path: Path) -> None:
    runs = [str(early.folder.root), str(late.folder.root)]
    (tmp_path / "full").mkdir()
    (tmp_path / "full/file").write_text("mine")
    for arguments, kind, text in (
        ([*runs], UsageError, "name it with --out"),
        ([*runs, "--out", str(tmp_path / "out"), "--to", "mlflow"], UsageError, "one run at a time"),
        ([runs[0], runs[0], "--out", str(tmp_path / "out")], UsageError, "named twice"),
        ([*runs, "--out", str(tmp_path / "full")], OutputError, "not an empty folder"),
        ([runs[0], str(tmp_path), "--out", str(tmp_path / "out")], OutputError, "is not a run folder"),
        ([*runs, "--out", str(tmp_path / "out"), "--to", "markdwon"], UsageError, "did you mean 'markdown'"),
    ):
        ended = called("report", *arguments)
        assert isinstance(ended.exception, kind) and text in str(ended.exception), ended.exception
    assert (tmp_path / "full/file").read_text() == "mine" and not (tmp_path / "out").exists()


@pytest.mark.slow
def test_separate_runs_are_one_page_and_one_document(early: Record, late: Record, tmp_path: Path) -> None:
    """Each section states why it is separate, and has the verdicts of its own report."""
    other = make_record(tmp_path / "other", SUITE.replace("lr: 0.1", "lr: 0.2"), only=8)
    runs = [str(item.folder.root) for item in (early, other, late)]
    ended = succeeded("report", *runs, "--to", "markdown", "--out", tmp_path / "out")
    assert ended.output.splitlines()[:2] == [str(tmp_path / "out/report.md"), str(tmp_path / "out/index.md")]
    document = (tmp_path / "out/report.md").read_text()
    found = sections([Path(run) for run in runs], tmp_path / "again")
    (place,) = registry.load("reporter", "html")().write_sections(found, tmp_path / "page")
    page = Path(place).read_text()
    assert Path(place) == tmp_path / "page/report.html"
    assert page.count("<section id=") == 2 == document.count("\n## Section ")
    for text in (page, document):
        assert "Why it is separate from section 1" in text or "separate from section 1: another suite" in text
        assert "seeds 0 to 3 were run more than once" in text
    for section in found:
        own = section.record
        for item in compare(own.plan, own.results, execution=own.execution):
            assert item.because in unescape(page)
        assert f'href="{section.name}/report/report.html"' in page
    assert "<script" not in page and "http" not in page.replace("http-equiv", "") and page.count("<img") >= 5
    assert len(page) < 3e6


@pytest.mark.slow
def test_the_page_opens_with_the_primary_contrast_of_each_section(tmp_path: Path) -> None:
    """Each section has its own ratio and interval on a common axis; a suite without a contrast says so."""
    text = SUITE.replace("lr: 0.1", "lr: 0.2")
    declared = make_record(tmp_path / "declared", text, course=uneven)
    without = make_record(tmp_path / "without", text.partition("primary:")[0])
    slow = make_record(tmp_path / "slow", course=uneven)
    roots = [slow.folder.root, declared.folder.root, without.folder.root]
    found = sections(roots, tmp_path / "out")
    forests = [forest(findings(section.record)) for section in found]
    axis, ends = answers(forests).axis, []
    assert axis is not None
    for drawn, section in zip(forests, found, strict=True):
        compared = compare(section.record.plan, section.record.results, execution=section.record.execution)
        primary = next((row for row in compared if row.primary), None)
        assert (drawn.primary and drawn.primary.item) == primary
        if primary is not None:
            assert primary.ratio and primary.interval
            assert all(map(axis.holds, (primary.ratio, primary.interval.low, primary.interval.high)))
            ends.append(f'cx="{axis.at(primary.ratio)}%"')
    assert [item.primary is None for item in forests].count(True) == 1
    (place,) = registry.load("reporter", "html")().write_sections(found, tmp_path / "page")
    first = Path(place).read_text().split("<nav")[0]
    assert all(end in first for end in ends)
    assert first.count('<svg class="whisker') == 2 and "No primary contrast is declared" in first


def test_a_clock_that_was_set_back_mixes_no_starts_of_a_merged_record(tmp_path: Path) -> None:
    """The ledger of a run has their order; its moments fall by an hour in the middle."""
    first = make_record(tmp_path / "first", only=8)
    lines = [json.loads(line) for line in first.folder.ledger.read_text().splitlines()]
    first.folder.ledger.write_text("".join(
        json.dumps({**line, "started_ms": line["started_ms"] + 1000 * place - (3_600_000 if place >= 4 else 0)}) + "\n"
        for place, line in enumerate(lines)))
    make_record(tmp_path / "second", course=quick, only=4, started_ms=1_700_000_000_000)
    merged, = sections([tmp_path / "first", tmp_path / "second"], tmp_path / "out")
    counted = [item.trial_id for item in merged.record.starts if not item.source]
    assert counted == [line["trial_id"] for line in lines]
    assert [item.trial_id for item in merged.record.execution.attempts if not item.source] == counted


def written_by(root: Path, source: str, name: str) -> list[str]:
    """Report a record by a reporter of an installed package."""
    write_package(root / "packages")
    (root / "packages/letters/__init__.py").write_text(source)
    (root / "packages/letters-1.0.dist-info/entry_points.txt").write_text(f"[repro.reporter]\nown = letters:{name}\n")
    with installed(root / "packages"):
        return write_reports(make_record(root / "run").folder.root, ["own"], None)


def test_the_reporter_of_the_page_writes_every_verdict(tmp_path: Path) -> None:
    page = (Path(__file__).parents[3] / "docs/extending.md").read_text()
    (block,) = [text for text in re.findall(r"^```python\n(.*?)^```", page, re.M | re.S) if "Reporter):" in text]
    (place,) = written_by(tmp_path, block, "Verdicts")
    verdicts = findings(read_record(tmp_path / "run")).comparisons
    lines = Path(place).read_text().splitlines()
    assert len(lines) == len(verdicts) and all(item.spoken in line for item, line in zip(verdicts, lines, strict=True))


def test_whatever_a_reporter_of_another_package_raises_names_the_package(tmp_path: Path) -> None:
    source = ("from repro.reporting import Reporter\n\n\nclass Postcard(Reporter):\n"
              "    def write(self, record, out):\n        return [record.no_such_field]\n")
    with pytest.raises(OutputError, match=(
            r"^reporter 'own' of package letters 1\.0: AttributeError: 'Record' object has no attribute")):
        written_by(tmp_path, source, "Postcard")
