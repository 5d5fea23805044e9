"""What is made of a record from a pool: page, tables, MLflow, a bundle, a reproduction, a merged record."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from repro.reporters.tracking.run_view import attempt_runs, cell_view, trial_view

import repro
from repro.bundle.source import open_record
from repro.compare.findings import findings
from repro.core.errors import UsageError
from repro.core.files import write_model
from repro.record.folder.store import Record, read_record
from repro.runner import energy_meter
from repro.suite.planning.plan import solo_seeds
from repro.tables.tables import table
from tests.in_process import called, refusal, succeeded
from tests.unit.reporters.parsed_page import Page, render
from tests.unit.runner.test_pool import SUITE, Pooled, serial


@pytest.fixture
def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Record:
    return Pooled(tmp_path, SUITE, monkeypatch).execute()


def test_the_page_shows_the_lanes_and_the_ratio_on_each(record: Record, tmp_path: Path) -> None:
    page = Page(render(record, tmp_path / "out"))
    assert "lanes" in page.ids
    (found,) = findings(record).comparisons
    assert found.by_node is not None and found.spoken == "slower on these 3 nodes"
    assert {item.ratio for item in found.by_node.nodes} <= page.values
    assert "slower on these 3 nodes" in " ".join(page.text.split())
    for row in table(record, "lanes").rows:
        assert str(row["lane"]) in page.text and str(row["seeds_run"]) in page.text
    start = page.text.index("Blocks of one seed ran side by side on 3 lanes, all of one class (")
    section = " ".join(page.text[start:].split())
    assert f"{found.by_node.words[1:]}." in section and "another node" in section


@pytest.mark.slow
def test_the_tables_have_lanes_and_ratios_on_them(record: Record) -> None:
    lanes, ratios = table(record, "lanes"), table(record, "ratios_by_lane")
    assert [row["blocks"] for row in lanes.rows] == [2, 3, 3]
    assert all(lanes.described[name].words for name in lanes.columns)
    assert [row["n"] for row in ratios.rows] == [2, 3, 3] and {row["lane"] for row in ratios.rows} == {
        row["lane"] for row in lanes.rows}
    assert {row["lane"] for row in table(record, "attempts").rows} == {row["lane"] for row in lanes.rows}
    compared = json.loads(succeeded("compare", record.folder.root, "--json").stdout)["comparisons"][0]
    assert [item["ratio"] for item in compared["by_node"]["nodes"]] == [row["ratio"] for row in ratios.rows]
    assert "3 nodes: the ratio" in succeeded("compare", record.folder.root).stdout
    assert repro.open(record.folder.root).compare().nodes["ratio"].tolist() == [row["ratio"] for row in ratios.rows]


@pytest.mark.slow
def test_what_counts_nodes_is_refused_without_them(record: Record, tmp_path: Path) -> None:
    (tmp_path / "n.yaml").write_text(f"{SUITE}unit: node\n")
    for pool, said in ((), "and no pool is given"), (("--pool", "{kind: cores, lanes: 1}"), "are parts of one"), (
            ("--pool", "{kind: agents, lanes: 5}"), "and there are 5"):
        assert said in refusal("run", tmp_path / "n.yaml", *pool, "--out", tmp_path / "out", kind=UsageError)
        assert said in called("plan", tmp_path / "n.yaml", *pool).output
    assert "with unit: node the tests count nodes" in refusal(
        "plan", tmp_path / "n.yaml", "--pilot", record.folder.root)
    assert not (tmp_path / "out").exists()


def test_mlflow_has_the_lane_of_each_attempt(record: Record) -> None:
    cell = record.plan.cells[1]
    runs = attempt_runs(record)[cell.cell_id]
    views = [trial_view(record, "r", cell, item, (0, 1), alive=False) for item in runs]
    assert {view.params["lane"] for view in views} == {str(row["lane"]) for row in table(record, "lanes").rows}
    assert views[0].tags["repro.shard"] == next(item.shard for item in record.attempts
                                                if (item.trial_id, 0) == (runs[0].trial.trial_id, item.repeat))
    (found,) = findings(record).comparisons
    view = cell_view(record, "r", cell, [(0, 1)], [found], alive=False, report=False)
    assert (view.tags["repro.lanes"], view.tags["repro.verdict.unit"]) == ("3", "block")
    assert view.files["lanes.jsonl"].is_file() and "lanes.jsonl" in view.tags["repro.files"]


@pytest.mark.slow
def test_a_bundle_has_the_lanes_and_is_reproduced_without_a_pool(record: Record, tmp_path: Path) -> None:
    bundle = tmp_path / "pooled.zip"
    succeeded("bundle", record.folder.root, "--out", bundle)
    succeeded("verify", bundle)
    assert "on 3 lanes" in succeeded("compare", bundle).stdout
    ended = called("reproduce", bundle, "--trials", "6", "--out", tmp_path / "again", "--even-if-undecided")
    again = read_record(tmp_path / "again")
    assert {item.repeat for item in again.results} == set(range(6)) and not any(item.shard for item in again.attempts)
    assert ended.exit_code == 0, (ended.output, ended.exception)


@pytest.mark.slow
def test_chosen_blocks_are_reproduced_alone_and_the_answer_says_that_they_were_chosen(
    record: Record, tmp_path: Path
) -> None:
    source, wide = record.folder.root, ("--margin", "0.3")
    few = refusal("reproduce", source, "--blocks", "3,5", "--out", tmp_path / "few", kind=UsageError)
    assert "--even-if-undecided" in few and not (tmp_path / "few").exists()
    assert "it has 0 to 7" in refusal("reproduce", source, "--blocks", "3,8", kind=UsageError)
    assert "give one" in called("reproduce", source, "--blocks", "3", "--trials", "5").output
    assert "chosen trials or blocks are all run" in refusal(
        "reproduce", source, "--blocks", "0,2,3,5,6,7", "--until-settled", "--even-if-undecided", kind=UsageError)
    ended = called("reproduce", source, "--blocks", "7,0,2,3,5,6", *wide, "--out", tmp_path / "again", "--json")
    assert ended.exit_code == 0, (ended.output, ended.exception)
    again = read_record(tmp_path / "again")
    assert {item.repeat for item in again.results} == {0, 2, 3, 5, 6, 7} and len(again.results) == 12
    (said,) = (text for text in json.loads(ended.stdout)["warnings"] if "were chosen" in text)
    assert said.startswith("seeds 0, 2, 3, 5 to 7 were chosen by who reproduced the record; ")
    assert "over all 8" in said and said in ended.stderr, "before anything runs, too"
    first = called("reproduce", source, "--blocks", "0,1,2,3,4,5", *wide, "--out", tmp_path / "first", "--json")
    assert "were chosen" not in first.output, "the first seeds are those of --trials 6"


@pytest.mark.slow
def test_what_runs_alone_is_in_the_bundle_and_not_in_a_reproduction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = Pooled(tmp_path, SUITE, monkeypatch)
    pool.plan = pool.plan.model_copy(update={"solo": solo_seeds(pool.plan, 5)})
    write_model(pool.folder.plan, pool.plan)
    record, bundle = pool.execute(), tmp_path / "solo.zip"
    succeeded("bundle", record.folder.root, "--out", bundle)
    assert "sound" in succeeded("verify", bundle).output
    page = Page(render(record, tmp_path / "out"))
    (found,) = findings(record).comparisons
    assert found.by_load is not None and f"{found.by_load.words}." in " ".join(page.text.split())
    assert found.by_load.words in succeeded("compare", bundle).stdout
    compared = json.loads(succeeded("compare", bundle, "--json").stdout)["comparisons"][0]
    assert compared["by_load"]["alone"]["pairs"] == 5
    called("reproduce", bundle, "--trials", "6", "--out", tmp_path / "again", "--even-if-undecided")
    assert read_record(tmp_path / "again").plan.solo == ()
    assert "sound" in succeeded("verify", tmp_path / "again").output
    (tmp_path / "more").mkdir()
    more = Pooled(tmp_path / "more", SUITE.replace("seeds: 8", "seeds: 12"), monkeypatch)
    more.execute()
    succeeded("report", record.folder.root, more.folder.root, "--to", "markdown", "--out", tmp_path / "merged")
    assert "sound" in succeeded("verify", tmp_path / "merged").output


def test_solo_is_planned_and_refused_where_it_cannot_run(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(SUITE)
    planned = succeeded("plan", tmp_path / "s.yaml", "--pool", "{kind: agents, lanes: 2, solo: 5}").stdout
    assert "first 5 blocks run alone, one lane busy: seeds " in planned and "no verdict counts them" in planned
    cost, without = (json.loads(succeeded("plan", tmp_path / "s.yaml", "--json", "--pool", pool).stdout)
                     for pool in ("{kind: agents, lanes: 2, solo: 5}", "{kind: agents, lanes: 2}"))
    assert len(cost["solo"]) == 5 and "solo" not in without
    assert cost["pool"]["seconds"] == pytest.approx(without["pool"]["seconds"] + cost["pool"]["solo_seconds"])
    for solo, said in ((9, "fewer than 9 blocks"), (4, "greater than or equal to 5")):
        assert said in refusal("plan", tmp_path / "s.yaml", "--pool", f"{{kind: agents, lanes: 2, solo: {solo}}}",
                               kind=UsageError)


@pytest.mark.parametrize(("options", "why"), [
    (("--pool", "{kind: cores, lanes: 2}"), "of a whole computer, which lanes of kind cores share"),
    (("-o", "launcher={kind: torchrun, nodes: 2}", "-o", "processes=2"), "of this computer alone, and trials of this")])
def test_energy_is_refused_where_its_figure_would_be_of_other_computers(
    options: tuple[str, ...], why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(energy_meter, "find_spec", lambda name: object())
    (tmp_path / "s.yaml").write_text(SUITE)
    assert why in refusal("run", tmp_path / "s.yaml", "--energy", "--no-mlflow", "--out", tmp_path / "run", *options,
                          kind=UsageError)
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_two_pools_and_a_serial_run_of_one_plan_merge(
    record: Record, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "more").mkdir()
    more = Pooled(tmp_path / "more", SUITE.replace("seeds: 8", "seeds: 12"), monkeypatch)
    more.execute()
    (tmp_path / "serial").mkdir()
    serial(tmp_path / "serial", SUITE.replace("seeds: 8", "seeds: 13"))
    ended = succeeded("report", record.folder.root, more.folder.root, tmp_path / "serial/serial", "--to", "markdown",
                      "--out", tmp_path / "merged")
    merged = read_record(tmp_path / "merged")
    assert len(merged.results) == 26, ended.output
    assert "sound" in succeeded("verify", tmp_path / "merged").output
    (found,) = findings(merged).comparisons
    assert found.n == 13 and found.left_out == ()


@pytest.mark.slow
def test_a_tracking_store_gives_the_lanes_back(
    record: Record, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("mlflow")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    succeeded("report", record.folder.root, "--to", "mlflow")
    with open_record(Path("mlflow:pooled")) as root:
        again = read_record(root)
        assert again.folder.lanes.read_bytes() == record.folder.lanes.read_bytes()
        assert findings(again).comparisons == findings(record).comparisons
