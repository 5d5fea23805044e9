"""The Python interface: public names, frames, comparisons, displays, and what bad input gets."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import jsonschema
import matplotlib as mpl
import pyarrow.parquet
import pytest

import repro
from repro.cli.json_outputs import OUTPUTS, output_schema
from repro.compare.runs.runs import compare_runs
from repro.record.folder.index import seal
from repro.record.folder.store import RunFolder
from tests.in_process import called, refusal, succeeded
from tests.records import SUITE, Course, make_record
from tests.unit.reporters.parsed_page import uneven

ROOT = Path(__file__).parents[3]
GALLERY = ROOT / "docs/gallery/records"
PUBLIC = {
    "repro": ["Comparison", "Planned", "ReproError", "Run", "gate", "open", "plan", "run"],
    "Run": ["bundle", "cells", "compare", "comparisons", "describe", "environment", "evaluations", "name", "pairs",
            "path", "record", "report", "state", "steps", "tables", "trials", "unverified", "verify", "warnings"],
    "Comparison": ["because", "baseline", "candidate", "cautions", "differs", "exploratory", "figures", "interval",
                   "level", "metric", "n", "nodes", "p", "pairs", "plot", "ratio", "speedup", "unit", "verdict"],
    "Planned": ["cells", "seconds", "skipped", "trials"],
}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("api") / "run"
    make_record(root, SUITE, uneven)
    seal(RunFolder(root))
    return root


@pytest.fixture(scope="module")
def run(root: Path) -> repro.Run:
    return repro.open(root)


def test_the_public_names_are_these() -> None:
    found = {"repro": [name for name in dir(repro) if name in repro._PUBLIC]}
    for name in ("Run", "Comparison", "Planned"):
        made = {"state", "unverified"} if name == "Run" else set()
        found[name] = [item for item in {*dir(getattr(repro, name)), *made} if not item.startswith("_")]
    assert {name: sorted(items) for name, items in found.items()} == {
        name: sorted(items) for name, items in PUBLIC.items()}
    stub = set(re.findall(r" as (\w+)$", (ROOT / "repro/__init__.pyi").read_text(), re.MULTILINE))
    assert sorted(stub) == PUBLIC["repro"]
    with pytest.raises(AttributeError, match="no attribute 'opne'; public: Comparison"):
        _ = repro.opne  # type: ignore[attr-defined]


def test_nothing_heavy_is_imported_before_it_is_needed() -> None:
    heavy = ("torch", "mlflow", "matplotlib", "pandas", "numpy", "pydantic")
    code = f"import sys, repro; print([name for name in {heavy} if name in sys.modules])"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == "[]"


def test_frames_are_typed_described_and_the_parquet_files(run: repro.Run, tmp_path: Path) -> None:
    run.report("parquet", tmp_path)
    for name in run.tables:
        frame = run.tables[name]
        if frame.empty:
            continue
        stored = pyarrow.parquet.read_table(tmp_path / "parquet" / f"{name}.parquet")
        assert list(frame.columns) == stored.column_names
        again = stored.to_pandas(types_mapper=None)
        for column in frame.columns:
            known = frame[column].dropna().tolist()
            assert known == again[column].dropna().tolist(), (name, column)
        described = run.describe(name)
        assert (described["words"] != "").all(), described[described["words"] == ""]
        units = {field.name: (field.metadata or {}).get(b"unit", b"").decode() for field in stored.schema}
        assert dict(zip(described["column"], described["unit"], strict=True)) == units
        for row in described.itertuples():
            if row.unit in ("s", "bytes", "MiB") and row.column != "operation_time":
                assert any(word in row.column for word in ("second", "bytes", "mib")), row.column
    assert run.trials["seed"].dtype == "Int64" and run.trials["tta_wall_seconds"].dtype == "float64"
    assert run.trials.attrs == {"record": "run", "state": run.state, "unverified": False, "table": "trials"}


def test_the_frames_are_what_the_terminal_and_json_show(run: repro.Run, root: Path) -> None:
    wanted = compare_runs([root]).as_json()["comparisons"]
    assert run.comparisons["ratio"].tolist() == pytest.approx([item["ratio"] or float("nan") for item in wanted],
                                                              nan_ok=True, rel=0)
    assert run.comparisons["verdict"].tolist() == [item["verdict"] for item in wanted]
    first = run.compare()
    assert first.figures["ratio"] == wanted[0]["ratio"] and first.because == wanted[0]["because"]
    assert len(first.pairs) == len(wanted[0]["pairs"]) and first.n == wanted[0]["n"]
    assert str(first.verdict) in repr(first) and first.candidate in repr(first)


def test_steps_are_those_of_the_logs(run: repro.Run) -> None:
    steps = run.steps
    one = run.trials.iloc[0]
    mine = steps[steps["trial_id"] == one["trial_id"]]
    assert mine["step"].tolist() == list(range(len(mine))) and len(mine) > 50
    assert mine["slowest_rank_seconds"].median() == one["step_median_seconds"]
    assert set(steps["trial_id"]) == set(run.trials["trial_id"])


def test_what_is_asked_afterwards_is_exploratory_and_says_so(run: repro.Run) -> None:
    ids = run.cells["cell_id"].tolist()
    found = run.compare(ids[1], ids[0], metric="throughput")
    assert found.verdict in ("exploratory", "inconclusive") and "after the results were seen" in found.because
    declared = run.compare()
    assert not declared.exploratory and run.compare(declared.candidate, declared.baseline).verdict == declared.verdict
    other = run.compare(declared.candidate, declared.baseline, margin=0.5)
    assert "after the results were seen" in other.because
    assert "Exploratory: asked for after the results were seen" in found._repr_html_()
    assert "Primary contrast, declared in the suite" in declared._repr_html_()


def test_the_command_line_compares_two_cells_alike(run: repro.Run, root: Path) -> None:
    ids = run.cells["cell_id"].tolist()
    shown = json.loads(succeeded("compare", root, "--candidate", ids[3], "--baseline", ids[0], "--json").stdout)
    (item,) = shown["comparisons"]
    found = run.compare(ids[3], ids[0])
    assert (item["ratio"], item["verdict"], item["because"]) == (found.ratio, found.verdict, found.because)


def test_displays_have_no_script_and_no_link_and_follow_the_theme(run: repro.Run) -> None:
    for text in (run.compare()._repr_html_(), run._repr_html_()):
        assert "<script" not in text and "http" not in text and '<a href="#' not in text
        assert "data-jp-theme-light=false" in text and "prefers-color-scheme: dark" in text and "<svg" in text
    assert run.cells["cell"][0] in run._repr_html_()


def test_a_plot_is_drawn_in_the_users_style_into_their_axes(run: repro.Run) -> None:
    mpl.use("agg")
    from matplotlib import pyplot as plt

    with plt.style.context({"axes.facecolor": "#123456"}):
        _, axes = plt.subplots()
        assert run.compare().plot(axes) is axes and axes.get_facecolor() == mpl.colors.to_rgba("#123456")
    assert axes.get_xscale() == "log" and run.compare().verdict in axes.get_title()
    plt.close("all")


def test_bundles_globs_and_several_runs_open_alike(run: repro.Run, root: Path, tmp_path: Path) -> None:
    bundle = run.bundle(tmp_path / "one.zip")
    for source in (bundle, str(tmp_path / "o*.zip"), [root]):
        assert repro.open(source).trials.equals(run.trials)
    packed = repro.open(bundle)
    assert packed.verify().answer == run.verify().answer == "sound"
    assert Path(packed.report("csv", tmp_path / "out")[0]).is_file()
    with pytest.raises(repro.ReproError, match="no single record"):
        repro.open([GALLERY / "several-1.zip", GALLERY / "settled.zip"])


def test_a_plan_is_of_a_name_a_path_or_a_dict(tmp_path: Path) -> None:
    (tmp_path / "suite.yaml").write_text(SUITE)
    import yaml

    found = [repro.plan(suite, seeds=2) for suite in (str(tmp_path / "suite.yaml"), tmp_path / "suite.yaml",
                                                       yaml.safe_load(SUITE))]
    for plan in found:
        assert len(plan.cells) == 4 and len(plan.trials) == 8 and plan.seconds > 0
        assert "8 trials of 4 cells" in repr(plan)
        assert plan.cells["cell_id"].tolist() == found[0].cells["cell_id"].tolist()
    with pytest.raises(repro.ReproError, match="trial"):
        repro.plan({"suite": "x"})
    with pytest.raises(repro.ReproError, match="no file can hold"):
        repro.plan({"suite": "x", "trial": object()})


def test_a_folder_that_is_no_run_is_not_copied_first(tmp_path: Path) -> None:
    """As /tmp is: others can change it, and a pipe of theirs cannot be copied."""
    os.mkfifo(tmp_path / "pipe")
    tmp_path.chmod(0o777)
    with pytest.raises(repro.ReproError, match="neither a run folder nor a bundle"):
        repro.open(tmp_path)


@pytest.mark.parametrize(("source", "words"), [
    ("nothing-here", "no such run folder or bundle"), (".", "neither a run folder nor a bundle"),
    ("no-run-*", "matches no run folder and no bundle"), ([], "name a run folder"),
])
def test_a_folder_that_is_no_run_is_one_line(
    source: Any, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(repro.ReproError, match=words) as error:
        repro.open(source)
    assert "\n" not in str(error.value)


def test_a_modified_record_is_refused_unless_its_frames_say_so(root: Path, tmp_path: Path) -> None:
    shutil.copytree(root, tmp_path / "run")
    log = next((tmp_path / "run/trials").glob("*/result_1.txt"))
    log.write_text(log.read_text() + "x\n")
    with pytest.raises(repro.ReproError, match=r"modified after it was sealed: trials/.*unverified=True") as error:
        repro.open(tmp_path / "run")
    assert "\n" not in str(error.value)
    found = repro.open(tmp_path / "run", unverified=True)
    assert found.trials.attrs["unverified"] is True
    compared = found.compare()
    for text in (found.state, repr(found), repr(compared), compared.cautions[0], compared._repr_html_()):
        assert "was modified after it was sealed" in text
    assert compared.pairs.attrs["unverified"] is True and "Modified record" in found.warnings["title"].tolist()


@pytest.mark.parametrize(("asked", "words"), [
    ({"candidate": "deepspeed (stage=1), 2 proc", "baseline": "ddp, 1 process"}, "matches no cell; near: deepspeed"),
    ({"candidate": "engine=ddp", "baseline": "ddp, 1 process"}, "matches 2 cells, name one"),
    ({"candidate": "engin=ddp", "baseline": "ddp, 1 process"}, r"matches no cell \(none has 'engin'\)"),
    ({"candidate": "ddp, 1 process", "baseline": "ddp, 1 process"}, "are one cell"),
    ({"candidate": "ddp, 1 process"}, "name candidate and baseline, or neither"),
    ({"candidate": "ddp, 2 processes", "baseline": "ddp, 1 process", "metric": "tta_wal"}, "did you mean 'tta_wall'"),
    ({"candidate": "ddp, 2 processes", "baseline": "ddp, 1 process", "metric": "energy"}, "no trial of .* has a value"),
])
def test_what_cannot_be_compared_is_one_line(run: repro.Run, asked: dict[str, str], words: str) -> None:
    with pytest.raises(repro.ReproError, match=words) as error:
        run.compare(**asked)
    assert "\n" not in str(error.value)


def test_a_record_without_its_index_is_refused(root: Path, tmp_path: Path) -> None:
    shutil.copytree(root, tmp_path / "run")
    (tmp_path / "run/sha256sums.txt").unlink()
    with pytest.raises(repro.ReproError, match=r"run: has no index \(sha256sums.txt\).*unverified=True"):
        repro.open(tmp_path / "run")
    found = repro.open(tmp_path / "run", unverified=True)
    assert found.trials.attrs["unverified"] is True and "sha256sums.txt" in found.warnings["text"].iloc[0]
    shown = succeeded("compare", str(tmp_path / "run")).stdout
    assert "warning: Modified record: sha256sums.txt" in shown


def test_an_incomplete_record_that_was_modified_says_so(root: Path, tmp_path: Path) -> None:
    shutil.copytree(root, tmp_path / "run")
    shutil.rmtree(sorted((tmp_path / "run/trials").iterdir())[0])
    assert "warning: Modified record: " in succeeded("compare", str(tmp_path / "run")).stdout
    found = repro.open(tmp_path / "run", unverified=True)
    assert "Modified record" in found.warnings["title"].tolist()
    assert "Modified record" in Path(found.report("html")[0]).read_text(encoding="utf-8")


def test_what_is_merged_from_a_modified_record_says_so(root: Path, tmp_path: Path) -> None:
    shutil.copytree(root, tmp_path / "one")
    seal(make_record(tmp_path / "two", SUITE).folder)
    with (tmp_path / "one/suite.yaml").open("a") as file:
        file.write("# mine\n")
    page = Path(repro.open([tmp_path / "one", tmp_path / "two"], unverified=True).report("html", tmp_path / "out")[0])
    assert "Modified record" in page.read_text(encoding="utf-8")


def test_links_are_refused_before_anything_is_read(root: Path, tmp_path: Path) -> None:
    for name in ("sha256sums.txt", "ledger.jsonl"):
        shutil.copytree(root, tmp_path / name / "run")
        (tmp_path / name / "run" / name).rename(tmp_path / name / "outside")
        (tmp_path / name / "run" / name).symlink_to(tmp_path / name / "outside")
        with pytest.raises(repro.ReproError, match="is a symbolic link"):
            _ = repro.open(tmp_path / name / "run", unverified=True).trials


def test_what_is_of_another_type_is_one_line(run: repro.Run) -> None:
    for call in (lambda: run.compare(1, 2), lambda: run.compare(margin="0.05"), lambda: repro.open(None),
                 lambda: run.report(3), lambda: run.tables["nope"], lambda: repro.plan("quickstart", "processes=2")):
        with pytest.raises(repro.ReproError) as error:
            call()  # type: ignore[no-untyped-call]
        assert "\n" not in str(error.value)


def test_of_several_the_modified_record_is_named(root: Path, tmp_path: Path) -> None:
    shutil.copytree(root, tmp_path / "one")
    shutil.copytree(root, tmp_path / "two")
    next((tmp_path / "two").glob("trials/*/result.json")).write_text("{}")
    with pytest.raises(repro.ReproError, match=r"two: was modified"):
        repro.open([tmp_path / "one", tmp_path / "two"])


def test_what_was_not_declared_has_no_verdict_word_and_a_margin_is_a_share(run: repro.Run) -> None:
    found = run.compare(metric="samples")
    assert found.exploratory and found.verdict == "exploratory" and found.because.startswith("exploratory: ")
    assert "No verdict between" in run.compare(metric="throughput")._repr_html_()
    with pytest.raises(repro.ReproError, match=r"^margin 5: is a share between 0 and 1"):
        run.compare(margin=5)
    assert "which the suite calls" not in run.compare(margin=0.9).because


def test_what_is_changed_in_a_frame_changes_nothing_else(run: repro.Run) -> None:
    mine = run.trials
    mine["mine"] = 1
    mine.loc[:, "tta_wall_seconds"] = 0.0
    assert "mine" not in run.trials and run.trials["tta_wall_seconds"].min() > 0


def test_two_cells_that_are_no_pairs_are_one_line(tmp_path: Path) -> None:
    make_record(tmp_path / "run", SUITE, lambda trial: Course(drawn="other" * (trial.choices.processes == 2)))
    seal(RunFolder(tmp_path / "run"))
    with pytest.raises(repro.ReproError, match="are no pairs: ") as error:
        repro.open(tmp_path / "run").compare("ddp, 2 processes", "ddp, 1 process")
    assert "\n" not in str(error.value)


def test_an_unknown_table_names_those_that_are_there(run: repro.Run) -> None:
    with pytest.raises(KeyError, match=r"no such table; tables: about, cells.*steps"):
        _ = run.tables["trails"]


def test_the_runs_of_a_folder_are_listed_and_cleaned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    make_record(tmp_path / "runs/one")
    seal(RunFolder(tmp_path / "runs/one"))
    make_record(tmp_path / "runs/empty", only=0)
    (tmp_path / "runs/empty/parity.json").unlink()
    repro.open("runs/one").report()
    (tmp_path / "runs/one/cache").mkdir()
    rows = json.loads(succeeded("list", "runs", "--json").stdout)["rows"]
    assert [(row["name"], row["trials"], row["planned"]) for row in rows] == [
        ("runs/empty", 0, 24), ("runs/one", 24, 24)]
    assert rows[1]["verdict"].startswith(repro.open("runs/one").compare().verdict) and rows[1]["mib"] > 0
    for place in (tmp_path / "runs", tmp_path / "ru*", tmp_path / "runs/*"):
        found = json.loads(succeeded("list", "runs", place, tmp_path / "runs/one", "--json").stdout)["rows"]
        assert [Path(row["name"]).name for row in found] == ["empty", "one"]
    assert refusal("list", "runs", "nowhere") == "nowhere: no such folder"
    assert "repro list runs runs" in refusal("list", "engines", "runs")
    (tmp_path / "none").mkdir()
    assert succeeded("list", "runs", "none").stdout == "no run in none yet: repro run quickstart\n"
    told = succeeded("clean").stdout
    assert "would remove runs/empty: nothing has run in it" in told and (tmp_path / "runs/empty").is_dir()
    assert "would remove runs/one/report" in told and "would remove runs/one/cache" in told
    assert told.endswith("in all; to remove it: repro clean --yes\n")
    shutil.copytree("runs/one", "one run")
    told = succeeded("clean", "one run").stdout
    assert "repro report 'one run' writes it again" in told
    assert told.endswith("in all; to remove it: repro clean 'one run' --yes\n")
    succeeded("clean", "--yes")
    assert (tmp_path / "one run/report").exists()
    assert not (tmp_path / "runs/empty").exists() and not (tmp_path / "runs/one/report").exists()
    assert repro.open("runs/one").state.startswith("unmodified") and "nothing to remove" in succeeded("clean").stdout
    assert type(called("clean", ".").exception).__name__ == "OutputError"
    first, second = sorted((tmp_path / "runs/one/trials").iterdir())[:2]
    for trial in (first, second):
        (trial / "checkpoints").mkdir()
    crashed = json.loads((first / "result.json").read_text()) | {"status": "crashed"}
    (first / "result.json").write_text(json.dumps(crashed))
    told = succeeded("clean").stdout
    assert second.name in told and first.name not in told, "a crashed trial resumes from its checkpoint"


def test_a_bundle_of_several_runs_is_refused_with_their_names(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("runs/quickstart-1", "runs/quickstart-2"):
        shutil.copytree(root, name)
    said = "2 runs match: runs/quickstart-1, runs/quickstart-2; name one, as a bundle holds one run"
    for places in (["runs/quickstart-1", "runs/quickstart-2"], ["runs/quickstart-*"]):
        assert refusal("bundle", *places) == said
    assert succeeded("bundle", "runs/*-2", "-o", "x.zip").stdout.startswith("x.zip: ")


@pytest.mark.parametrize("output", sorted(OUTPUTS))
def test_every_json_output_has_a_schema(output: str) -> None:
    found = json.loads(succeeded("schema", *output.split()).stdout)
    jsonschema.Draft202012Validator.check_schema(found)
    assert found["title"] == f"repro:{output.replace(' ', '-')}" and "$schema" in found["required"]
    assert found == json.loads(json.dumps(output_schema(output)))


@pytest.mark.parametrize(("output", "arguments"), [
    ("compare", ("compare", "RUN")), ("verify", ("verify", "RUN")), ("audit", ("audit", "RUN")),
    ("diff", ("diff", GALLERY / "several-1.zip", GALLERY / "several-2.zip")), ("list", ("list", "engines")),
    ("list", ("list", "suites")), ("show", ("show", "quickstart")), ("data list", ("data", "list")),
    ("plan", ("plan", "quickstart")), ("plan", ("plan", "quickstart", "--pilot", GALLERY / "settled.zip")),
    ("scores", ("scores", GALLERY / "factorial.zip", "--by", "batch.global")),
    ("compare", ("compare", GALLERY / "factorial.zip")),
    ("compare published", ("compare", GALLERY / "mlperf-v4.0", "--baseline",
                           "benchmark=resnet,system=eos_ngc24.04_mxnet")),
    ("bundle", ("bundle", "RUN", "-o", "OUT")), pytest.param("doctor", ("doctor",), marks=pytest.mark.slow),
])
def test_what_is_printed_is_what_the_schema_says(
    output: str, arguments: tuple[Any, ...], root: Path, tmp_path: Path
) -> None:
    places = {"RUN": root, "OUT": tmp_path / "x.zip"}
    ended = called(*(places.get(item, item) if isinstance(item, str) else item for item in arguments), "--json")
    data = json.loads(ended.stdout)
    assert data["$schema"] == f"repro:{output.replace(' ', '-')}"
    jsonschema.Draft202012Validator(output_schema(output)).validate(data)
    wrong = {**data, "further": 1}
    if output != "show":
        assert list(jsonschema.Draft202012Validator(output_schema(output)).iter_errors(wrong))


def test_a_zip_that_is_damaged_is_one_line(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        archive.writestr("notes.txt", "no record")
    with pytest.raises(repro.ReproError, match=r"holds no plan\.json"):
        repro.open(tmp_path / "x.zip")
