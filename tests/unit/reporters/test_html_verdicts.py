"""The report's first screen and the sections below it: verdicts, calibration, checklists, factors, survival, trust."""

from __future__ import annotations

import dataclasses
import importlib
import math
import re
import types
from html import unescape
from pathlib import Path

import pytest
import yaml

import repro
from repro.compare import compare, summarize
from repro.compare.design.calibration import FILE, Null, calibration, machine_of
from repro.compare.findings import findings
from repro.core.files import write_model
from repro.record.environment.nodes import Allocation, Link, Nodes
from repro.record.folder.store import Record
from repro.record.result.results import Bracket, Point
from repro.suite.model import METHOD, Trial
from tests.records import SUITE, Course, make_record
from tests.unit.reporters.parsed_page import render, uneven

ROOT = Path(__file__).parents[3]
bands = importlib.import_module("repro.reporters.page.charts.curves")
html_page = importlib.import_module("repro.reporters.html_page")
citations = importlib.import_module("repro.reporters.page.sections.settings")
speedup = importlib.import_module("repro.reporters.page.speedup")
survivals = importlib.import_module("repro.reporters.page.charts.survival")
text_of = importlib.import_module("repro.tables.text")
clocks = importlib.import_module("repro.reporters.page.sections.clocks")


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Record:
    return make_record(tmp_path_factory.mktemp("plain") / "run")


@pytest.fixture(scope="module")
def missed(tmp_path_factory: pytest.TempPathFactory) -> Record:
    return make_record(tmp_path_factory.mktemp("missed") / "run", SUITE.replace("seeds: 6", "seeds: 8"), uneven)


def part(html: str, start: str, end: str = "</section>") -> str:
    """Words of the section that begins with `start`."""
    found = html[html.index(start):]
    words = unescape(re.sub("<[^>]+>", " ", found[:found.index(end)]))
    return re.sub(r" (?=[.,;)])", "", " ".join(words.replace("\N{NO-BREAK SPACE}", " ").split()))


def test_every_comparison_has_its_reasons_in_the_order_of_compare(missed: Record, tmp_path: Path) -> None:
    html = render(missed, tmp_path)
    found = compare(missed.plan, missed.results, execution=missed.execution)
    words = part(html, '<section class="verdict"')
    places = [words.index(f"Because: {item.because}") for item in found]
    assert len(found) == 4 and places == sorted(places)
    for item in found:
        assert not item.settles or f"Next: {item.settles}." in words
        for text in item.cautions:
            assert f"Caution: {text}." in words
    assert [f'data-index="{index}"' in html for index in range(5)] == [True] * 4 + [False]


def test_a_missing_calibration_is_reported_and_a_stored_rate_is_shown(plain: Record, tmp_path: Path) -> None:
    assert "Not calibrated: the false-positive rate" in part(render(plain, tmp_path), '<section class="verdict"')
    nulls = [Null(source=f"run#{index}", cell_id="c", label="c", metric="tta_wall", how="twins", n=6, ratio=1.0, p=0.5,
                  verdict="slower" if index == 0 else "inconclusive") for index in range(24)]
    rate = calibration(plain.plan.suite.suite, plain.plan.digest, METHOD, machine_of(plain.environment), nulls)
    path = plain.folder.root / FILE
    write_model(path, rate)
    try:
        words = part(render(plain, tmp_path), '<section class="verdict"')
    finally:
        path.unlink()
    assert f"Calibrated: {rate.sentence()}, on Sample CPU" in words
    assert "1 of 24 comparisons" in words


def finding(id_: str, verdict: str, required: bool = True) -> types.SimpleNamespace:
    return types.SimpleNamespace(id=id_, source="a <b>source</b>", title=f"title of {id_}", verdict=verdict,
                                 required=required, evidence=f"evidence of {id_} </section><script>1</script>")


def test_failing_rules_are_counted_at_the_top_and_first_in_their_section(
    plain: Record, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rules = [finding("F1", "pass"), finding("HB3", "fail", False), finding("F2", "fail"),
             finding("NEU4", "cannot tell")]
    monkeypatch.setattr(html_page, "check", lambda record: tuple(rules))
    html = render(plain, tmp_path)
    top = html[html.index('id="verdicts"'):html.index('id="h-notices"')]
    assert "1 required best-practice rule fails" in top and "evidence of" not in top
    whole = html[html.index('<section id="checklist"'):html.index('<section id="attempts"')]
    failing = whole[:whole.index("<table")]
    assert failing.index("evidence of F2") < failing.index("evidence of HB3") and "evidence of F1" not in failing
    assert whole.index('id="rule-F2"') < whole.index('id="rule-F1"') < whole.index('id="rule-HB3"')
    assert all(f'id="rule-{item.id}"' in whole for item in rules)
    assert "<script>1" not in whole and "&lt;script&gt;1" in whole
    assert "FireCaffe" in whole and "NeurIPS" in whole


def test_a_ratio_of_times_is_drawn_with_factors_that_multiply_to_it(missed: Record) -> None:
    forest = speedup.forest(findings(missed))
    items = compare(missed.plan, missed.results, execution=missed.execution)
    taken = [row for row in forest.rows if row.ratio and row.factors]
    assert taken
    for row in taken:
        samples, throughput = row.factors
        assert samples.ratio.value / throughput.ratio.value == pytest.approx(row.ratio.value, rel=1e-9)
        # On a logarithmic axis the lengths from 1 add up.
        lengths = [dot - forest.one for dot in (samples.dot, throughput.dot)]
        assert sum(lengths) == pytest.approx(row.dot - forest.one, abs=0.01)
        assert items[row.index].split.samples.value == samples.ratio.value


def test_if_trials_missed_the_restricted_mean_replaces_the_ratio(missed: Record) -> None:
    primary = speedup.forest(findings(missed)).primary
    item = compare(missed.plan, missed.results, execution=missed.execution)[0]
    assert primary.ratio is None and item.restricted is not None
    (factor,) = primary.factors
    assert factor.ratio.value == item.restricted.ratio
    assert [end.value for end in factor.interval] == [item.restricted.interval.low, item.restricted.interval.high]


def test_every_pair_names_its_two_trials(plain: Record) -> None:
    results = {item.trial_id: item for item in plain.results}
    for row in speedup.forest(findings(plain)).rows:
        for pair in row.pairs:
            ours, theirs = results[pair.candidate_trial], results[pair.baseline_trial]
            assert (ours.repeat, theirs.repeat) == (pair.repeat, pair.repeat)
            assert ours.tta_wall / theirs.tta_wall == pytest.approx(pair.ratio.value)


def test_the_share_at_the_target_is_a_probability_only_if_trials_missed(
    plain: Record, missed: Record, tmp_path: Path,
) -> None:
    found = survivals.survival(findings(plain))
    assert not found.missed and all(trace["y"][-1] == 1.0 for trace in found.charts[0].figure["data"])
    assert "Kaplan-Meier" not in render(plain, tmp_path) and 'id="survival"' in render(plain, tmp_path)
    assert survivals.survival(findings(missed)).missed and "Kaplan-Meier" in render(missed, tmp_path)


def test_survival_steps_are_those_of_compare_and_ticks_mark_the_missed(missed: Record) -> None:
    (panel,) = survivals.survival(findings(missed)).panels
    traces = {trace["legendgroup"]: trace for trace in panel.charts[0].figure["data"]}
    assert len(traces) == 4
    for row, cell in zip(panel.rows, missed.plan.cells, strict=True):
        summary = summarize(cell, missed.of_cell(cell.cell_id))
        trace = traces[str(row.mark.number)]
        steps = [(x, y) for x, y, symbol, size in zip(trace["x"], trace["y"], trace["marker"]["symbol"],
                                                       trace["marker"]["size"], strict=True) if size == 4]
        if summary.reached_by:
            assert steps == [(pytest.approx(x, rel=1e-6), y) for x, y in summary.reached_by]
            assert trace["marker"]["symbol"].count("line-ns-open") == 3
            assert row.summary.restricted.value == summary.restricted.value
        else:
            assert trace["y"][-1] == 1.0 and len(steps) == len(set(summary.values))
        assert trace["y"] == sorted(trace["y"]) and trace["x"] == sorted(trace["x"])


def test_a_cell_that_never_reached_stays_at_zero_and_a_crash_is_no_miss(tmp_path: Path) -> None:
    def course(trial: Trial) -> Course:
        never = trial.choices.engine.kind == "deepspeed"
        return Course(0.01, hits_at=None if never else 4, crash=trial.repeat == 0)

    (panel,) = survivals.survival(findings(make_record(tmp_path / "run", course=course))).panels
    never = [trace for trace in panel.charts[0].figure["data"] if trace["legendgroup"] in ("3", "4")]
    assert len(never) == 2 and all(set(trace["y"]) == {0.0} for trace in never)
    assert all("1 trial excluded" in row.note for row in panel.rows)


def test_a_crash_and_a_cell_that_has_not_run_contradict_no_sentence_about_the_share(tmp_path: Path) -> None:
    def course(trial: Trial) -> Course:
        return Course(0.01, crash=trial.repeat == 0 and trial.choices.engine.kind == "ddp")

    crashed = part(render(make_record(tmp_path / "run", course=course), tmp_path / "out"), '<section id="survival"')
    assert "Every trial reached" not in crashed and "1 trial excluded: crashed" in crashed
    record = make_record(tmp_path / "begun", only=2)
    begun = [cell for cell in record.plan.cells if not record.of_cell(cell.cell_id)]
    words = part(render(record, tmp_path / "begun-out"), '<section id="survival"')
    assert begun and words.count("no trial yet") == len(begun) and "stays at 0" not in words


def test_a_trial_that_diverged_is_a_cross_at_its_last_finite_value(plain: Record) -> None:
    first, *others = plain.of_cell(plain.plan.cells[0].cell_id)
    finite, broken = first.curve[:2], first.curve[2].model_copy(update={"value": None})
    ended = {"status": "diverged", "bracket": None, "tta_wall": None}
    diverged = first.model_copy(update=ended | {"curve": (*finite, broken)})
    mark = next(iter(speedup.marks(plain).values()))
    cross = bands.misses(mark, [diverged, *others], lambda point: point.wall_seconds)
    assert (cross["x"], cross["y"]) == ([pytest.approx(finite[-1].wall_seconds)], [finite[-1].value])
    never = first.model_copy(update=ended | {"curve": (broken,)})
    (panel,) = bands.panels(dataclasses.replace(plain, results=tuple(
        never if item.trial_id == first.trial_id else item for item in plain.results)))
    assert panel.without == 1 and never.trial_id in {result.trial_id for _, result, _ in panel.rows}


def test_bands_end_where_the_first_trial_ended_and_brackets_hold_the_crossing(plain: Record) -> None:
    results = plain.of_cell(plain.plan.cells[0].cell_id)
    mark = next(iter(speedup.marks(plain).values()))
    band = bands.band(mark, results, lambda point: point.wall_seconds, 1000)
    count = min(len(item.curve) for item in results)
    assert len(band["x"]) == 2 * count
    for index in range(count):
        values = [item.curve[index].value for item in results]
        assert (band["y"][index], band["y"][-1 - index]) == (max(values), min(values))
    bracket = bands.brackets(mark, results, lambda point: point.wall_seconds)
    assert bracket["x"].count(None) == len(results)
    for index, item in enumerate(results):
        low, high = bracket["x"][3 * index], bracket["x"][3 * index + 1]
        assert low == pytest.approx(item.bracket.miss_wall_seconds, rel=1e-6)
        assert high == pytest.approx(item.bracket.hit_wall_seconds, rel=1e-6)


def test_a_hit_at_the_first_evaluation_is_drawn_as_left_censored(plain: Record) -> None:
    mark = next(iter(speedup.marks(plain).values()))
    first, *others = plain.of_cell(plain.plan.cells[0].cell_id)
    hit = first.curve[0]
    bracket = Bracket(miss_samples=0, hit_samples=hit.samples, miss_wall_seconds=0, hit_wall_seconds=hit.wall_seconds)
    results = [first.model_copy(update={"bracket": bracket}), *others]
    drawn = bands.first_hits(mark, results, lambda point: point.wall_seconds)
    assert drawn["x"] == [0.0, pytest.approx(hit.wall_seconds, rel=1e-6), None]
    assert drawn["customdata"] == [None, first.repeat, None] and drawn["marker"]["symbol"] == "triangle-left-open"
    assert bands.brackets(mark, results, lambda point: point.wall_seconds)["x"].count(None) == len(others)
    assert bands.first_hits(mark, others, lambda point: point.wall_seconds) is None


def test_a_long_curve_is_thinned_for_drawing_but_keeps_its_crossing(plain: Record) -> None:
    points = tuple(Point(samples=index, epochs=index, wall_seconds=index, train_seconds=index, value=index / 1e4)
                   for index in range(1, 10_001))
    bracket = Bracket(miss_samples=7776, hit_samples=7777, miss_wall_seconds=7776, hit_wall_seconds=7777)
    long = plain.results[0].model_copy(update={"curve": points, "bracket": bracket})
    kept = [point.samples for point in bands.thinned(long, 50)]
    assert len(kept) <= 54 and {1, 7776, 7777, 10_000} <= set(kept) and kept == sorted(kept)
    assert bands.thinned(plain.results[0], 50) == list(plain.results[0].curve)


def test_thinning_changes_lines_but_no_figure(plain: Record, monkeypatch: pytest.MonkeyPatch) -> None:
    curves = importlib.import_module("repro.reporters.page.charts.curves")
    whole = curves.panels(plain)[0]
    monkeypatch.setattr(curves, "DRAWN_UP_TO", 10)
    assert whole.drawn == 0 and curves.panels(plain)[0].drawn == 20
    assert curves.panels(plain)[0].rows == whole.rows


@pytest.mark.parametrize(("field", "value", "name"), [
    ("conservation_error", 0.02, "Conservation"), ("observer_effect", 0.006, "Observer"),
])
def test_one_trial_beyond_a_limit_is_named(plain: Record, field: str, value: float, name: str) -> None:
    bad = plain.results[3].model_copy(update={field: value})
    record = dataclasses.replace(plain, results=(*plain.results[:3], bad, *plain.results[4:]))
    read, most = next((read, most) for title, most, read in clocks.CHECKS if title.startswith(name))
    worst = {cell.cell_id: clocks.worst(record.of_cell(cell.cell_id), read) for cell in record.plan.cells}
    assert worst[bad.cell_id] == (value, bad.trial_id)
    assert sum(share > most for share, _ in worst.values()) == 1


def test_pairing_hashes_are_counted_seed_by_seed(plain: Record) -> None:
    other = plain.results[0].model_copy(update={"hashes": {**plain.results[0].hashes, "init_weights": "else"}})
    record = dataclasses.replace(plain, results=(other, *plain.results[1:]))
    assert ("init weights", "identical between the cells for 5 of 6 seeds") in clocks.pairing(record)
    assert ("init weights", "identical between the cells for 6 of 6 seeds") in clocks.pairing(plain)


def test_differing_factors_come_first(plain: Record) -> None:
    setup = importlib.import_module("repro.reporters.page.sections.settings")
    results = tuple(item.model_copy(update={
        "effective": {"alike": "x", "other": item.cell_id}, "settings": {"A": "1", "B": item.cell_id}})
        for item in plain.results)
    record = dataclasses.replace(plain, results=results)
    for lines, first in ((setup.effective(record), "other"), (setup.rank_settings(record), "B")):
        assert [line.differs for line in lines] == [True] * 4 + [False]
        assert lines[0].name == first and lines[-1].cells == "1 to 4"


def test_a_job_and_its_links_are_described(plain: Record) -> None:
    job = Allocation(scheduler="slurm", job="7", nodes=("a", "b"), queued_seconds=30, partition="gpu",
                     resources="cpu=8,node=2", exclusive=False, array_task="6_1", restarts=2)
    links = (Link(sender=0, receiver=1, latency_seconds=1e-4, bytes_per_second=2e9),
             Link(sender=1, receiver=0, latency_seconds=1e-4, bytes_per_second=None))
    record = dataclasses.replace(plain, node_history=(Nodes(preload_seconds=1.0, links=links, allocation=job),))
    assert citations._job(record) == [
        ("Links between nodes (TCP by gloo, measured before the first trial)",
         "0 to 1: 2,000.0 MB/s, 100 us; 1 to 0: rate not measurable, 100 us"),
        ("Job", "slurm 7 (array task 6_1) on a, b; partition gpu; cpu=8,node=2; nodes shared with other jobs; started "
                "again 2 times; queued for 30 s, not on the clock of a trial")]
    moved = dataclasses.replace(record, node_history=(*record.node_history, Nodes(at_ms=6e4, links=links[:1])))
    assert citations._job(moved)[1] == ("Links between nodes, with those of new nodes",
                                        "from 1970-01-01 00:01:00 UTC on 0 to 1: 2,000.0 MB/s, 100 us")


def test_citation_is_that_of_the_project(plain: Record) -> None:
    current = dataclasses.replace(plain, environment=plain.environment.model_copy(
        update={"repro_version": repro.__version__}))
    wanted = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    found = yaml.safe_load(citations.citation(current))
    assert found == {key: wanted[key] for key in found}
    assert {"title", "authors", "version", "date-released", "license", "message"} <= set(found)
    assert "date-released" not in yaml.safe_load(citations.citation(plain))
    assert plain.plan.digest in citations.bibtex(plain)


@pytest.mark.parametrize(("value", "wanted"), [
    ("a\u202eb", "a\\u202eb"), ("\x00\u2066", "\\u0000\\u2066"), ("lone \ud800", "lone \\ud800"),
    ("tab\tline\n", "tab\tline\n"),
    ("na\u00efve \u4e2d", "na\u00efve \u4e2d"),
])
def test_hidden_characters_become_visible(value: str, wanted: str) -> None:
    assert text_of.visible(value) == wanted


def test_long_text_is_cut_with_a_word() -> None:
    shown = text_of.shown("x" * 10_000)
    assert len(shown) < 2100 and shown.endswith("(8,000 more characters)")


@pytest.mark.parametrize(("value", "wanted"), [
    (0.0, "0 %"), (1e-15, "0 %"), (1e-9, "< 0.001 %"), (0.0123, "1.2 %"), (0.5, "50 %"),
])
def test_shares(value: float, wanted: str) -> None:
    found = text_of.share(value)
    assert found.text.replace("\N{NO-BREAK SPACE}", " ") == wanted
    assert math.isclose(found.value, value)
