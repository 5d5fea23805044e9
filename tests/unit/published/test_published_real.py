"""Real results next to the checkout: every file imports or is refused; scores are MLCommons' own."""

from __future__ import annotations

import csv
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from repro.published.dawnbench import import_entries
from repro.published.mlperf.folder import import_folder

DATA = Path(os.environ.get("REPRO_SHARED_DATA") or Path(__file__).parents[4] / "shared" / "data")
ROUND = DATA / "mlperf" / "training_v4.0"
pytestmark = pytest.mark.skipif(not ROUND.is_dir(), reason=f"no published results at {DATA} (REPRO_SHARED_DATA)")


def test_every_file_imports_or_is_refused() -> None:
    for folder, found in ((DATA / "mlperf", import_folder(DATA / "mlperf")),
                          (DATA / "dawnbench", import_entries(DATA / "dawnbench"))):
        files = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
        taken = {item.source for item in found.results} | {path for item in found.results for path in item.also}
        refused = [item.source for item in found.refused]
        assert len(set(refused)) == len(refused) and taken.isdisjoint(refused)
        assert taken | set(refused) == files
        assert all(item.reason for item in found.refused)


def test_untidy_files_are_reported() -> None:
    found = import_folder(DATA / "mlperf")
    odd = {item.source.replace("/results", ""): (item.status, item.reason) for item in found.results
           if item.status != "ok"}
    assert odd == {
        "training_v4.0/Dell/XE9680x8H100-SXM-80GB/resnet/result_4.txt": ("missed", "run_stop says 'aborted'"),
        "training_v4.0/NVIDIA/eos_n8_ngc24.04_mxnet/resnet/result_4.txt": ("missed", "run_stop says 'aborted'"),
        "training_v4.0/tinycorp/tinybox_green/resnet/result_0.txt": ("invalid", "no run_stop"),
    }
    assert [(item.source, item.reason[:8]) for item in found.refused] == [
        ("training_v0.6/NVIDIA/systems/dgx1_ngc19.05_mxnet.json", "not JSON")]


@pytest.fixture(scope="module")
def summary(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, str]]:
    """Rows of MLCommons' summarizer over a copy of round v4.0 (it writes into the folder it reads)."""
    pytest.importorskip("mlperf_logging", reason="mlperf-logging is not installed")
    work = tmp_path_factory.mktemp("summary")
    shutil.copytree(ROUND, work / "round", copy_function=shutil.copyfile)
    for path in (work / "round").rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
    (work / "round").chmod(0o755)
    command = [sys.executable, "-m", "mlperf_logging.result_summarizer", f"{work}/round/{{*}}", "training", "4.0.0",
               "-csv", "out.csv"]
    ended = subprocess.run(command, cwd=work, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr[-2000:]
    with (work / "out.csv").open() as stream:
        return list(csv.DictReader(stream))


@pytest.mark.slow
def test_scores_are_the_summarizers(summary: list[dict[str, str]]) -> None:
    cells = {(cell.factors["system"], cell.factors["benchmark"]): cell for cell in import_folder(ROUND).cells}
    scores = 0
    for row in summary:
        system = row["details_url"].rpartition("/")[2].removesuffix(".json")
        for benchmark in ("resnet", "llama2_70b_lora"):
            if not row.get(benchmark):
                continue
            cell = cells[system, benchmark]
            assert cell.score.minutes == pytest.approx(float(row[benchmark]), abs=1e-9)
            assert cell.score.valid
            scores += 1
    assert scores == len(cells) == 10


@pytest.mark.parametrize(("system", "minutes"), [
    ("NVIDIA/results/dgx1_ngc19.05_mxnet", 115.2207), ("Google/results/tpu-v3-32", 42.1863),
    ("Google/results/tpu-v3-512", 3.8528), ("Google/results/tpu-v3-2048", 1.2824)])
def test_the_old_rounds_scores_are_those_of_the_summarizers_own_parts(system: str, minutes: float) -> None:
    """MLCommons' parser of round v0.6, its clock and its average, for every system of that round. The command itself
    scores none of them any more: its compliance check of today asks Google's logs for eval_start and eval_stop, it
    takes v0.6's seconds for milliseconds, and NVIDIA's description, which is no JSON, ends it with a traceback."""
    summarizer = pytest.importorskip("mlperf_logging.result_summarizer.result_summarizer")
    times = []
    folder = DATA / "mlperf/training_v0.6" / system / "resnet"
    for path in sorted(folder.glob("result_*.txt")):
        lines, failed = summarizer.parse_file(str(path), ruleset="0.6.0")
        assert failed == []
        start, stop = summarizer._query_run_start_stop(lines)
        times.append((stop - start) / 60)
    assert len(times) == 5
    cell = import_folder(folder).cells[0]
    assert cell.score.minutes == pytest.approx(summarizer._compute_olympic_average(times, 0, 1), rel=1e-12)
    assert cell.score.minutes == pytest.approx(minutes, abs=1e-4) and cell.score.valid


def test_large_batches_cost_epochs() -> None:
    from repro.published.cells import batch_costs

    (costs,) = [of.costs for of in batch_costs(import_folder(DATA / "mlperf").results)
                if (of.round, of.benchmark) == ("training_v4.0", "resnet")]
    smallest = [cost.epochs for cost in costs if cost.global_batch_size == 1536]
    largest = [cost.epochs for cost in costs if cost.global_batch_size == 57344]
    assert len(smallest) == 9 and len(largest) == 5
    assert max(filter(None, smallest)) <= 37 and min(filter(None, largest)) == 77


def test_dawnbench_first_crossings() -> None:
    """Against a reading of the files that shares no code with the importer."""
    found = {item.source: item for item in import_entries(DATA / "dawnbench").results}
    assert len(found) == 58
    for source, item in found.items():
        text = (DATA / "dawnbench" / source).read_text(encoding="utf-8-sig")
        column, target = ("top5Accuracy", 93.0) if "ImageNet" in source else ("top1Accuracy", 94.0)
        rows = [{key.strip(): value for key, value in row.items()}
                for row in csv.DictReader(text.splitlines(), delimiter="\t") if row["hours"]]
        hours = next(float(row["hours"]) for row in rows if float(row[column]) >= target)
        assert item.seconds == pytest.approx(hours * 3600, rel=1e-12)
    best = min((item for item in found.values() if item.benchmark == "imagenet"), key=lambda item: item.seconds or 1e9)
    assert (best.system, best.seconds) == (
        "alibabacloud_resnet50_gn6e_16_machine_tensorflow", pytest.approx(157.55, abs=0.01))


@pytest.mark.slow
def test_ratios_of_scores_are_the_summarizers(summary: list[dict[str, str]], tmp_path: Path) -> None:
    from repro.published.comparison.compare import compare_published
    from repro.published.importing import import_results

    import_results("mlperf", ROUND, tmp_path / "out")
    official = {row["details_url"].rpartition("/")[2].removesuffix(".json"): float(row["resnet"]) for row in summary
                if row.get("resnet")}
    found = compare_published([tmp_path / "out"], baseline="benchmark=resnet,system=eos_ngc24.04_mxnet")
    assert len(found.contrasts) == len(official) - 1 == 8
    for item, entry in zip(found.contrasts, (entry for entry in found.entries
                                             if entry.factor("system") != "eos_ngc24.04_mxnet"), strict=True):
        system = entry.factor("system")
        assert item.score_ratio == pytest.approx(official[str(system)] / official["eos_ngc24.04_mxnet"], rel=1e-9)
        assert (item.comparison.verdict == "inconclusive") is (entry.cell.score.failed > 0)


def test_the_page_of_both_rounds_and_of_dawnbench_holds_every_file(tmp_path: Path) -> None:
    from html import unescape

    from repro.reporters.published.view import render

    from repro.published.importing import import_results
    from repro.published.store import read_published

    for program, name in (("mlperf", "mlperf"), ("dawnbench", "dawnbench")):
        import_results(program, DATA / name, tmp_path / name)  # type: ignore[arg-type]
    imports = [read_published(tmp_path / name) for name in ("mlperf", "dawnbench")]
    page = render(imports)
    assert page == render(imports) and len(page.encode()) < 15e6
    told = unescape(page.replace("<wbr>", ""))
    for item in imports:
        assert all(result.source in told for result in item.results)
        assert all(refused.source in told and refused.reason in told for refused in item.refused)


@pytest.mark.slow
def test_a_full_round_imports_and_reports_within_its_limits(tmp_path: Path) -> None:
    """2,035 logs of 380 MB: under 60 s and 1 GiB for each, and under 15 MB. Separate processes, so that the largest
    memory is theirs."""

    other = "".join(f"[12:00:{step % 60:02d}] INFO step {step} loss {1 / (step + 1):.6f} images/s 20480 lr 0.1\n"
                    for step in range(1900)).encode()
    logs = size = 0
    for copy in range(37):
        for path in sorted(ROUND.rglob("*")):
            if path.is_file():
                org, *rest = path.relative_to(ROUND).parts
                target = tmp_path / "round" / "training_v4.0" / f"{org}{copy:02d}" / Path(*rest)
                target.parent.mkdir(parents=True, exist_ok=True)
                is_log = path.name.startswith("result_")
                target.write_bytes(path.read_bytes() + (other if is_log else b""))
                logs, size = logs + is_log, size + target.stat().st_size
    assert logs > 2000 and size > 3e8
    measured = ("import resource, sys; from repro.cli.main import cli; code = 0\n"
                "try: cli(sys.argv[1:])\nexcept SystemExit as end: code = end.code or 0\n"
                "print(code, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, file=sys.stderr)")
    for arguments in (["import", "mlperf", tmp_path / "round", "--out", tmp_path / "out"],
                      ["report", tmp_path / "out", "--out", tmp_path / "page"]):
        ended = subprocess.run([sys.executable, "-c", measured, *map(str, arguments)], capture_output=True, text=True,
                               check=True)
        code, kibibytes = map(int, ended.stderr.split()[-2:])
        assert code == 0 and kibibytes < 1 << 20
    assert (tmp_path / "page" / "published.html").stat().st_size < 15e6
