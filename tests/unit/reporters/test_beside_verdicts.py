"""What stands beside a verdict stands there in every format: differences, cautions, warnings, how 5 % are spent."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from matplotlib.figure import Figure
from repro.reporters.paper.brief import shown_of
from repro.reporters.paper.figures import figures
from repro.reporters.paper.latex_numbers import macros
from repro.reporters.tracking.run_view import cell_view

from repro.cli.text.suite import ended_text
from repro.cli.workflows.listing import verdict_of
from repro.cli.workflows.run import _summarize
from repro.compare import compare
from repro.core.errors import Exit
from repro.record.folder.store import Record, read_record
from repro.reporting import reporter
from repro.suite.model import Trial
from tests.in_process import called
from tests.records import SUITE, Course, make_record

STOLEN = "the hypervisor gave 50 % of the processors' time to others while this trial ran"
FACTORS = SUITE.split("primary:")[0] + "contrasts: [engine, processes]\n"
OVERLAP = {"ddp": "on", "deepspeed": "off"}


def course(trial: Trial) -> Course:
    slow = 1.5 if (trial.choices.engine.kind, trial.choices.processes) == ("deepspeed", 2) else 1.0
    return Course(0.01 * slow * (1 + 0.02 * (trial.repeat % 3) + 0.001 * (trial.repeat + len(trial.cell_id)) % 0.007),
                  hits_at=1)


@pytest.fixture(params=[SUITE, FACTORS], ids=["primary", "factors"], scope="module")
def record(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Record:
    """All trials hit at their first evaluation, on a machine whose time was stolen, with unlike overlap."""
    tmp_path = tmp_path_factory.mktemp("beside")
    made = make_record(tmp_path / "run", request.param.replace("seeds: 6", "seeds: 8"), course)
    made.folder.append_incident("throttled", STOLEN, made.results[0].trial_id)
    for result in made.results:
        path = made.folder.result(result.trial_id)
        data = json.loads(path.read_text())
        data["effective"]["overlap"] = OVERLAP[made.cell(result.cell_id).choices.engine.kind]
        path.write_text(json.dumps(data))
    return read_record(tmp_path / "run")


def written(record: Record, kind: str, out: Path) -> str:
    paths = reporter(kind).write(record, out)
    return "\n".join(Path(path).read_text(encoding="utf-8") for path in paths
                     if Path(path).suffix in (".html", ".md", ".tex", ".csv", ".jsonl"))


@pytest.mark.parametrize("kind", ["html", "markdown", pytest.param("latex", marks=pytest.mark.slow), "csv",
                                  "jsonl", "text", "json"])
def test_every_format_has_what_stands_beside_a_verdict(record: Record, kind: str, tmp_path: Path) -> None:
    if kind in ("text", "json"):
        arguments = ["compare", str(record.folder.root), *(["--json"] if kind == "json" else [])]
        text = called(*arguments).output
    else:
        text = written(record, kind, tmp_path / "out")
    plain = " ".join(text.replace("\\%", "%").replace("<wbr>", "").replace("\\_", "_").replace(
        "&#39;", "'").replace("\N{NO-BREAK SPACE}", " ").split())
    assert "overlap off against on" in plain or '"name": "overlap"' in plain
    assert "hypervisor gave 50 % of the processors' time" in plain
    assert "first evaluation" in plain
    assert "the chance of a wrong verdict is at most 5 % for each of: " in plain and "(Holm)" in plain
    if record.plan.suite.contrasts:
        assert "depends on processes" in plain or "depends_on" in plain or '"flagged": true' in plain


def test_main_effects_lead_where_no_primary_is_declared(record: Record, tmp_path: Path) -> None:
    text = called("compare", record.folder.root).output
    ended = ended_text(_summarize(record, Exit.DONE, "", None))
    assert ("main effect" in ended or "over both levels" in ended) is bool(record.plan.suite.contrasts)
    assert STOLEN in ended
    page = written(record, "html", tmp_path / "out")
    if not record.plan.suite.contrasts:
        assert "main effects" not in text and "Main effects" not in page
        return
    assert text.index("main effects, each level") < text.index("Candidate  ")
    assert page.index("Main effects, declared in the suite") < page.index("contrasts of single cells, corrected")
    effects = json.loads(called("compare", record.folder.root, "--json").stdout)["effects"]
    assert [item["factor"] for item in effects] == ["engine", "processes"]
    assert f'data-compare="effects.0.pooled.ratio"><data value="{effects[0]["pooled"]["ratio"]}"' in page


def test_an_option_that_the_suite_varies_is_not_told_again(tmp_path: Path) -> None:
    text = SUITE.replace("processes: [1, 2]", "overlap: [true, false]").split("baseline:")[0]
    made = make_record(tmp_path / "run", text.replace("engine: [ddp, {kind: deepspeed, stage: 1}]", "engine: [ddp]"))
    for result in made.results:
        path = made.folder.result(result.trial_id)
        data = json.loads(path.read_text())
        on = made.cell(result.cell_id).choices.overlap
        data["effective"] |= {"overlap": "on" if on else "off",
                              "bucket_bytes": "400000" if on else "400000,2000000000"}
        path.write_text(json.dumps(data))
    out = called("compare", tmp_path / "run", "--json").stdout
    differs = json.loads(out)["comparisons"][0]["differs"]
    assert [(item["name"], item["candidate"], item["baseline"]) for item in differs] == [
        ("bucket size", "up to 2 GB", "400 kB")]


def test_mlflow_runs_of_cells_have_what_stands_beside_their_verdict(record: Record) -> None:
    found = compare(record.plan, record.results)[0]
    cell = record.cell(found.candidate)
    view = cell_view(record, "run", cell, [(0, 1)], [found], alive=False, report=False)
    note = view.tags["mlflow.note.content"]
    assert ("- Also differs between the two" in note and "overlap" in note) is bool(found.also)
    assert "- Warning of the run: " in note and STOLEN in note
    assert "- Caution: " in note and "first evaluation" in note


def test_a_verdict_is_nowhere_shown_without_its_qualifier(tmp_path: Path) -> None:
    def often_failing(trial: Trial) -> Course:
        quick = trial.choices.engine.kind == "deepspeed"
        return Course((0.002 if quick else 0.01) * (1 + 0.01 * (trial.repeat % 5)),
                      hits_at=None if quick and trial.repeat < 3 else 4, evals=25)

    text = SUITE.replace("seeds: 6", "seeds: 20").replace("processes: [1, 2]", "processes: [2]")
    made = make_record(tmp_path / "run", text, often_failing)
    words = "faster when it succeeds; failures 3 of 20 against 0 of 20"
    found = compare(made.plan, made.results)[0]
    assert found.spoken == words
    assert verdict_of(made) == words
    view = cell_view(made, "run", made.cell(found.candidate), [(0, 1)], [found], alive=False, report=False)
    assert view.tags["repro.verdict"] == words
    part = shown_of(made)
    macro = next(item for item in macros(made, part) if item.name == "reproVerdictPrimary")
    assert macro.value == words and words in macro.meaning
    with_ratio = found.model_copy(update={"ratio": 0.5})
    drawing = next(item for item in figures(made, replace(part, comparisons=(with_ratio,))) if item.name == "ratios")
    canvas = Figure()
    drawing.into(canvas)
    assert canvas.axes[0].texts[0].get_text().startswith("faster when it succeeds: deepspeed")


def test_a_small_difference_is_rounded_to_none_by_no_format(tmp_path: Path) -> None:
    def close(trial: Trial) -> Course:
        quick = trial.choices.engine.kind == "deepspeed"
        return Course(0.01 * (0.9997 if quick else 1.0) * (1 + 0.00001 * (trial.repeat % 3 if quick else 0)))

    made = make_record(tmp_path / "run", SUITE.replace("processes: [1, 2]", "processes: [2]"), close)
    found = compare(made.plan, made.results)[0]
    assert found.verdict == "faster" and found.interval and 0.9995 < found.interval.high < 1
    end = f"{found.interval.low:.4f} to {found.interval.high:.4f}"
    told = called("compare", made.folder.root).output
    assert "unpaired (Welch on logs): 0.9997, " in told and "samples a second x 1.0003" in told
    assert f"{found.ratio:.4f} x the time (95 % interval {end}, 6 pairs)" in ended_text(
        _summarize(made, Exit.DONE, "", None))
    assert written(made, "markdown", tmp_path / "out").count(end) == 3
    values = {item.name: item.value for item in macros(made, shown_of(made))}
    assert f"{values['reproLowPrimary']} to {values['reproHighPrimary']}" == end
    view = cell_view(made, "run", made.cell(found.candidate), [(0, 1)], [found], alive=False, report=False)
    assert f"{found.ratio:.4f} x the time of ddp (95 % interval {end})" in view.tags["mlflow.note.content"]


def test_samples_speed_and_time_stand_side_by_side_with_intervals(record: Record, tmp_path: Path) -> None:
    split = [item for item in compare(record.plan, record.results) if item.split is not None]
    assert split
    page, text = written(record, "html", tmp_path / "page"), written(record, "markdown", tmp_path / "text")
    beside = page.split('id="h-beside"')[1].split("</table>")[0]
    assert beside.count("<tr") == len(split) + 1
    table = text.split("## Convergence and speed")[1].split("## ")[0]
    for item in split:
        assert item.split is not None and item.ratio is not None
        assert abs(item.split.samples.value / item.split.throughput.value - item.ratio) < 1e-9 * item.ratio
        for figure in (item.split.samples.value, item.split.throughput.value, item.ratio):
            assert f"{figure:.3g}" in table
    assert "samples a second" in beside and "(95 %)" in table
