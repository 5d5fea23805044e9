"""CSV, Parquet, JSON lines, Markdown and LaTeX: the figures of `repro compare`, the same bytes twice, labelled."""

from __future__ import annotations

import csv
import importlib
import io
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from repro.core import registry
from repro.core.errors import SuiteError
from repro.record.folder.store import Record, read_record
from repro.tables.values import finite
from tests.in_process import called, succeeded
from tests.records import SUITE, Course, make_record

DATA = ("csv", "parquet", "jsonl")
ALL = (*DATA, "markdown", "latex", "figures", "mllog")
QUICK = (*DATA, "markdown", "mllog")
"""Those that draw nothing: drawing takes seconds."""
short_tables = importlib.import_module("repro.reporters.paper.brief")
tables = importlib.import_module("repro.tables.tables")


def missing_some(trial: Any) -> Course:
    """One cell misses its target in two of six trials, one crashes once."""
    if trial.choices.engine.kind == "deepspeed" and trial.choices.processes == 2 and trial.repeat < 2:
        return Course(hits_at=None)
    crashed = trial.choices.engine.kind == "deepspeed" and trial.choices.processes == 1 and trial.repeat == 3
    return Course(step_seconds=0.01 * (1 + 0.02 * trial.repeat), crash=crashed)


@pytest.fixture(scope="module", params=["plain", "missed", "mixed", "emulated"])
def record(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Record:
    root = tmp_path_factory.mktemp("reports") / "run"
    if request.param == "plain":
        return make_record(root)
    if request.param == "missed":
        return make_record(root, course=missing_some)
    if request.param == "mixed":
        text = SUITE.replace("{kind: deepspeed, stage: 1}", "{kind: fake, step_seconds: 0.01}")
        return make_record(root, text.replace("candidate: {engine: deepspeed", "candidate: {engine: fake"))
    try:
        launcher = "  device: cpu\n  launcher: {kind: fabric, rate: 1mbit}"
        return make_record(root, SUITE.replace("  device: cpu", launcher))
    except SuiteError as error:
        pytest.skip(f"no emulated network on this machine: {error}")


@pytest.fixture(scope="module")
def compared(record: Record) -> dict[str, Any]:
    """The output of `repro compare --json` for the same run."""
    ended = succeeded("compare", record.folder.root, "--json")
    found: dict[str, Any] = json.loads(ended.stdout)
    return found


def rows(record: Record, kind: str, out: Path) -> dict[str, list[dict[str, Any]]]:
    """Table -> rows, read back from the files as a user would."""
    places = registry.load("reporter", kind)().write(record, out)
    if kind == "jsonl":
        found: dict[str, list[dict[str, Any]]] = {}
        for line in Path(places[0]).read_text().splitlines():
            row = json.loads(line)
            found.setdefault(row.pop("table"), []).append(row)
        return found
    if kind == "parquet":
        import pyarrow.parquet

        return {Path(place).stem: pyarrow.parquet.read_table(place).to_pylist() for place in places}
    return {Path(place).stem: list(csv.DictReader(io.StringIO(Path(place).read_text()))) for place in places}


@pytest.fixture(scope="module")
def read_back() -> dict[tuple[Path, str], dict[str, list[dict[str, Any]]]]:
    return {}


@pytest.fixture
def found(record: Record, kind: str, read_back: Any, tmp_path: Path) -> dict[str, list[dict[str, Any]]]:
    """The tables of a record in one format, written and read back once for all tests."""
    key = record.folder.root, kind
    if key not in read_back:
        read_back[key] = rows(record, kind, tmp_path)
    return dict(read_back[key])


def same(ours: Any, theirs: Any) -> bool:
    """One figure in two formats; CSV has text, and nothing for the unknown."""
    if theirs is None:
        return ours in (None, "")
    if isinstance(theirs, bool):
        return ours in (theirs, str(theirs).lower())
    if isinstance(theirs, int | float):
        return ours not in (None, "") and float(ours) == theirs
    return bool(ours == theirs)


@pytest.mark.parametrize("kind", DATA)
def test_figures_are_those_of_compare_to_the_last_digit(
    compared: dict[str, Any], found: dict[str, list[dict[str, Any]]]
) -> None:
    assert len(found["comparisons"]) == len(compared["comparisons"]) > 0
    for ours, theirs in zip(found["comparisons"], compared["comparisons"], strict=True):
        for name in ("candidate", "baseline", "metric", "n", "ratio", "verdict", "refused", "because", "p",
                     "p_adjusted", "family", "speedup", "primary", "paired", "log_rank_p", "settles"):
            assert same(ours[name], theirs[name]), (name, ours[name], theirs[name])
        for name, inner in (("ratio", "interval"), ("welch", "welch"), ("restricted", "restricted")):
            interval = theirs[inner] if inner == "interval" else (theirs[inner] or {}).get("interval")
            for end in ("low", "high", "level"):
                assert same(ours[f"{name}_{end}"], interval[end] if interval else None)
        assert same(ours["cautions"], "; ".join(theirs["cautions"]))
    for ours, theirs in zip(found["cells"], compared["cells"], strict=True):
        for name in ("cell_id", "n", "ok", "median", "median_epochs", "median_samples_per_second", "median_final",
                     "coefficient_of_variation", "metric"):
            assert same(ours[name], theirs[name]), name
        for end in ("low", "high", "level"):
            assert same(ours[f"median_{end}"], (theirs["interval"] or {}).get(end))
    pairs = [(pair["repeat"], pair["candidate"], pair["baseline"]) for item in compared["comparisons"]
             for pair in item["pairs"]]
    assert [(int(row["seed"]), float(row["candidate_value"]), float(row["baseline_value"]))
            for row in found["pairs"]] == pairs


@pytest.mark.parametrize("kind", DATA)
def test_the_duration_of_an_attempt_without_a_recorded_end_is_unknown(
    record: Record, kind: str, tmp_path: Path
) -> None:
    begun = record.attempts[0].model_copy(update={"status": "started", "seconds": 0.001})
    cut = replace(record, starts=(begun, *record.attempts[1:]))
    told = [row["seconds"] for row in rows(cut, kind, tmp_path)["attempts"]]
    assert told[0] in (None, "") and [float(one) for one in told[1:]] == [item.seconds for item in record.attempts[1:]]


@pytest.mark.parametrize("kind", DATA)
def test_every_trial_attempt_and_evaluation_is_there(
    record: Record, found: dict[str, list[dict[str, Any]]]
) -> None:
    assert {row["trial_id"] for row in found["trials"]} == {item.trial_id for item in record.results}
    assert len(found["attempts"]) == len(record.attempts)
    assert len(found["evaluations"]) == sum(len(item.curve) for item in record.results)
    crashed = [row for row in found["trials"] if row["status"] == "crashed"]
    assert all(row["tta_wall_seconds"] in (None, "") and "made to fail" in row["reason"] for row in crashed)


@pytest.mark.parametrize("kind", DATA)
def test_every_row_with_a_figure_has_its_label(
    record: Record, found: dict[str, list[dict[str, Any]]]
) -> None:
    wanted = {cell.cell_id: cell.choices.origin for cell in record.plan.cells}
    for name in ("cells", "trials", "evaluations"):
        assert all(row["origin"] == wanted[row["cell_id"]] for row in found[name])
    for row in (*found["comparisons"], *found["pairs"]):
        both = dict.fromkeys([wanted[row["candidate"]], wanted[row["baseline"]]])
        assert row["origin"] == " and ".join(both)


@pytest.mark.parametrize("kind", QUICK)
def test_the_same_record_gives_the_same_bytes(record: Record, kind: str, tmp_path: Path) -> None:
    contents = []
    for name in ("once", "again"):
        places = registry.load("reporter", kind)().write(read_record(record.folder.root), tmp_path / name)
        contents.append({Path(place).relative_to(tmp_path / name): Path(place).read_bytes() for place in places})
    assert contents[0] == contents[1] and contents[0]


@pytest.mark.slow
def test_the_same_record_gives_the_same_figures(tmp_path: Path) -> None:
    contents = []
    for name in ("once", "again"):
        record = make_record(tmp_path / name / "run")
        places = registry.load("reporter", "latex")().write(record, tmp_path / name)
        contents.append({Path(place).relative_to(tmp_path / name): Path(place).read_bytes() for place in places})
    assert contents[0] == contents[1]
    assert sum(content.startswith(b"%PDF") for content in contents[0].values()) == 3
    assert all(b"2026" not in content and b"CreationDate" not in content
               for path, content in contents[0].items() if path.suffix in (".pdf", ".svg"))


def test_markdown_and_latex_round_the_figures_of_compare(
    record: Record, compared: dict[str, Any], tmp_path: Path
) -> None:
    text = {kind: "".join(Path(path).read_text() for path in registry.load("reporter", kind)().write(record, tmp_path)
                          if Path(path).suffix in (".md", ".tex")) for kind in ("markdown", "latex")}
    lines = [line for line in text["markdown"].splitlines() if line.startswith("| ")]
    split = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    cells = split[2:2 + len(compared["cells"])]
    for row, theirs in zip(cells, compared["cells"], strict=True):
        assert row[2] == f"{theirs['ok']}/{theirs['n']}"
        if theirs["median"] is not None:
            assert math.isclose(float(row[3].replace(",", "")), theirs["median"], rel_tol=0.006)
            assert f" & {row[3]} & " in text["latex"]
        if theirs["interval"]:
            low, _, high = row[4].partition(" (")[0].partition(" to ")
            assert math.isclose(float(low.replace(",", "")), theirs["interval"]["low"], rel_tol=0.006)
            assert math.isclose(float(high.replace(",", "")), theirs["interval"]["high"], rel_tol=0.006)
    start = next(index for index, row in enumerate(split) if row[-1] == "Verdict") + 2
    contrasts = split[start:start + len(compared["comparisons"])]
    for row, theirs in zip(contrasts, compared["comparisons"], strict=True):
        assert row[-1] == theirs["verdict"] and row[6] == str(theirs["n"])
        assert row[3].endswith("\\*") == theirs["primary"]
        assert (row[4] in ("&#45;", "no result")) == (theirs["ratio"] is None)
        if theirs["ratio"] is not None:
            assert math.isclose(float(row[4].replace(",", "")), theirs["ratio"], rel_tol=0.006)
    for theirs in compared["comparisons"]:
        beside = "\\textbf{%s}: " if theirs["primary"] else " & %s \\\\"
        assert beside % theirs["verdict"] in text["latex"].replace(r"\allowbreak{}", "")


def test_doubts_are_in_the_short_reports(tmp_path: Path) -> None:
    record = make_record(tmp_path / "run", SUITE.replace("seeds: 6", "seeds: 3"), missing_some, only=10)
    told = " ".join(short_tables.brief(record).doubts)
    assert "only 10 of 12 trials have run" in told and "3 repeats make a smoke test" in told
    assert "ended as missed" in told
    page = Path(registry.load("reporter", "markdown")().write(record, tmp_path)[0]).read_text()
    assert "3 repeats make a smoke test" in page and "not calibrated" in page


def test_a_failed_parity_gate_is_the_first_doubt(tmp_path: Path) -> None:
    record = make_record(tmp_path / "run")
    gate = {"needed": True, "findings": [{"group": "g", "reference": "r", "candidate": "c", "largest_difference": 1.0,
                                          "problem": "step 2: differs"}]}
    record.folder.parity_verdict.write_text(json.dumps(gate))
    assert short_tables.brief(read_record(record.folder.root)).doubts[0].startswith("the parity gate failed")
    record.folder.parity_verdict.unlink()
    assert "no outcome of a parity gate" in short_tables.brief(read_record(record.folder.root)).doubts[0]


@pytest.mark.slow
def test_simulated_figures_say_so_everywhere(tmp_path: Path) -> None:
    text = SUITE.replace("[ddp, {kind: deepspeed, stage: 1}]", "[{kind: fake, step_seconds: 0.01}, "
                         "{kind: fake, step_seconds: 0.02}]").partition("baseline:")[0]
    record = make_record(tmp_path / "run", text)
    page = Path(registry.load("reporter", "markdown")().write(record, tmp_path)[0]).read_text()
    assert "All figures: **simulated**" in page
    latex = {Path(path).name: Path(path).read_text() for path in registry.load("reporter", "latex")().write(
        record, tmp_path) if Path(path).suffix == ".tex"}
    for table in ("cells", "comparisons", "convergence"):
        assert "\\emph{simulated}" in latex[f"{table}.tex"]
    assert sum("Figures: simulated." in text for text in latex.values()) == 3
    assert rows(record, "csv", tmp_path)["about"][0]["origin"] == "simulated"


def test_nothing_planned_has_run_yet(tmp_path: Path) -> None:
    record = make_record(tmp_path / "run", only=0)
    for kind in ALL:
        registry.load("reporter", kind)().write(record, tmp_path / "out")
    assert "not run" in (tmp_path / "out/report.md").read_text()
    assert not (tmp_path / "out/csv/trials.csv").exists()


def test_a_suite_without_a_contrast_is_reported(tmp_path: Path) -> None:
    text = SUITE.partition("matrix:")[0]
    record = make_record(tmp_path / "run", text)
    for kind in QUICK:
        registry.load("reporter", kind)().write(record, tmp_path / "out")
    assert "No cell of this record has a baseline" in (tmp_path / "out/report.md").read_text()


def test_a_folder_that_cannot_be_written_is_one_line(record: Record, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for kind in QUICK:
        ended = called("report", record.folder.root, "--to", kind, "--out", tmp_path / "file")
        assert type(ended.exception).__name__ == "OutputError", kind


def test_infinite_figures_are_null_in_json(tmp_path: Path) -> None:
    assert finite(math.inf) is None and finite(math.nan) is None and finite(1.5) == 1.5
