"""`repro import`: the folder it makes, what it prints, what it leaves alone."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from click.testing import Result

from repro.core.errors import OutputError, UsageError, visible
from repro.published.store import read_published
from tests.in_process import called
from tests.unit.published.made_logs import entry, log_lines, repository


def invoke(*args: str | Path) -> Result:
    return called("import", *args)


def fingerprint(root: Path) -> dict[str, str]:
    return {str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in sorted(root.rglob("*")) if path.is_file()}


def test_the_folder_holds_everything_and_reads_back(tmp_path: Path) -> None:
    folder = repository(tmp_path / "in")
    (folder / "result_4.txt").write_text("cut")
    before = fingerprint(tmp_path / "in")
    done = invoke("mlperf", tmp_path / "in", "--out", tmp_path / "out")
    assert done.exit_code == 0, done.output
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "published.json", "refused.jsonl", "results.jsonl"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "out"] and fingerprint(tmp_path / "in") == before
    found = read_published(tmp_path / "out")
    assert (len(found.results), len(found.refused), found.record.origin) == (4, 1, "published")
    lines = [json.loads(line) for line in (tmp_path / "out" / "results.jsonl").read_text().splitlines()]
    assert [line["source"] for line in lines] == [item.source for item in found.results]
    path = tmp_path / "in" / found.results[0].source
    assert hashlib.sha256(path.read_bytes()).hexdigest() == found.results[0].sha256
    assert "4 results (4 ok, 0 missed, 0 invalid), 1 files refused" in done.output
    assert "result_4.txt: it has no MLPerf event line" in done.output


def test_the_same_input_gives_the_same_bytes(tmp_path: Path) -> None:
    repository(tmp_path / "in")
    for name in ("a", "b"):
        assert invoke("mlperf", tmp_path / "in", "--out", tmp_path / name).exit_code == 0
    assert fingerprint(tmp_path / "a") == fingerprint(tmp_path / "b")


def test_json_has_the_figures_of_the_table(tmp_path: Path) -> None:
    repository(tmp_path / "in")
    done = invoke("mlperf", tmp_path / "in", "--out", tmp_path / "out", "--json")
    data = json.loads(done.stdout)
    assert data["cells"][0]["score"]["minutes"] == pytest.approx(12.0)
    assert data["status"] == {"ok": 5, "missed": 0, "invalid": 0} and data["refused_files"] == []
    assert data["batch_costs"]["training_v4.0 resnet"][0]["epochs"] == 12


def test_dawnbench(tmp_path: Path) -> None:
    entry(tmp_path / "in")
    done = invoke("dawnbench", tmp_path / "in", "--out", tmp_path / "out")
    assert done.exit_code == 0 and " 60.00 " in done.output
    assert read_published(tmp_path / "out").record.program == "dawnbench"


def test_a_folder_in_use_is_left_alone(tmp_path: Path) -> None:
    repository(tmp_path / "in")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.tex").write_text("dear")
    done = invoke("mlperf", tmp_path / "in", "--out", tmp_path / "out")
    assert isinstance(done.exception, OutputError) and "give another --out" in str(done.exception)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["thesis.tex"]


def test_nothing_to_import_makes_no_folder(tmp_path: Path) -> None:
    done = invoke("mlperf", tmp_path / "no", "--out", tmp_path / "out")
    assert isinstance(done.exception, UsageError) and not (tmp_path / "out").exists()
    (tmp_path / "empty").mkdir()
    for program in ("mlperf", "dawnbench", "speedrun"):
        done = invoke(program, tmp_path / "empty", "--out", tmp_path / "out")
        assert isinstance(done.exception, UsageError) and f"empty: holds no results of {program}" in str(done.exception)
        assert not (tmp_path / "out").exists()
    (tmp_path / "mine").mkdir()
    invoke("mlperf", tmp_path / "empty", "--out", tmp_path / "mine")
    assert (tmp_path / "mine").is_dir(), "an empty folder of the user's stays"


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_an_import_without_any_result_fails_and_names_the_refused(tmp_path: Path, options: tuple[str, ...]) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "result_0.txt").write_text("no log\n")
    done = invoke("mlperf", tmp_path / "in", "--out", tmp_path / "out", *options)
    assert isinstance(done.exception, UsageError) and "result_0.txt" in done.output
    assert len(read_published(tmp_path / "out").refused) == 1


def test_a_changed_record_is_not_read(tmp_path: Path) -> None:
    repository(tmp_path / "in")
    invoke("mlperf", tmp_path / "in", "--out", tmp_path / "out")
    path = tmp_path / "out" / "results.jsonl"
    path.write_text(path.read_text().replace("600.0", "60.0"))
    with pytest.raises(OutputError, match=r"results\.jsonl: modified after the import"):
        read_published(tmp_path / "out")
    with pytest.raises(OutputError, match="not a folder of published results"):
        read_published(tmp_path)


def test_foreign_names_reach_the_terminal_without_their_powers(tmp_path: Path) -> None:
    repository(tmp_path / "in", {"result_0.txt": "".join(log_lines())}, system="b\u202eox\x1b[31m", org="[bold]A")
    done = invoke("mlperf", tmp_path / "in", "--out", tmp_path / "out")
    assert "\x1b" not in done.output and "\u202e" not in done.output and "[bold]A" in done.output
    assert visible("a\u202eb\x1bc\nd") == "a\\u202eb\\x1bc\\nd"


@pytest.mark.parametrize("factor", ["round", "benchmark", "org", "system"])
def test_a_record_with_a_cell_without_a_factor_is_refused_in_one_line(tmp_path: Path, factor: str) -> None:
    invoke("mlperf", repository(tmp_path), "--out", tmp_path / "made")
    path = tmp_path / "made/published.json"
    record = json.loads(path.read_text())
    del record["cells"][0]["factors"][factor]
    path.write_text(json.dumps(record))
    with pytest.raises(OutputError, match=rf"published.json: cells.0.factors: {factor} is missing; import again"):
        read_published(tmp_path / "made")
