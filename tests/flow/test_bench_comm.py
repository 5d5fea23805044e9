"""`repro bench comm` for real, on loopback: figures, files, and a wrong sum that does not go unnoticed."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from repro.bench.comm.bench import PRELOAD, CommOptions, measure, read_algorithms, read_launcher
from repro.cli.main import cli
from repro.comm.algorithms.ring import Ring
from repro.comm.schedule import Transfer
from repro.core.errors import TrialError, UsageError
from repro.launchers.local import Local
from repro.suite.choice import Choice
from tests.commands import command
from tests.in_process import check_json

pytestmark = pytest.mark.slow

SIZES = "1k,12,64k"


class Forgetful(Ring):
    """A ring in which rank 0's last element of the sum never reaches the others."""

    def all_reduce(self, world: int, count: int, itemsize: int) -> Iterable[Transfer]:
        for item in super().all_reduce(world, count, itemsize):
            last = item.stop == count and not item.adds and item.source == 0
            yield item._replace(stop=item.stop - 1) if last else item


def invoke(*arguments: str) -> Any:
    return CliRunner().invoke(cli, ["bench", "comm", *arguments], catch_exceptions=False)


@pytest.fixture(scope="module", autouse=True)
def server() -> Iterator[None]:
    """One warm fork server for all measurements here: starting it takes longer than most of them."""
    launcher = Local()
    launcher.open([*PRELOAD, *launcher.preload], "cpu")
    yield
    launcher.close()


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], str, str]:
    """(JSON, page, progress) of one run on 2 and 3 ranks."""
    page = tmp_path_factory.mktemp("bench") / "comm.html"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{page.with_name('mlflow.db')}")
        done = invoke("-a", "ring", "-a", "{kind: hierarchical, group: 3}", "-a", "parameter-server", "--sizes", SIZES,
                      "--world", "2,3", "--repetitions", "3", "--seconds", "5", "--json", "--html", str(page))
    assert done.exit_code == 0, done.output
    check_json(("--json",), done.stdout)
    return json.loads(done.stdout), page.read_text(encoding="utf-8"), done.stderr


def test_every_point_is_there(found: tuple[dict[str, Any], str, str]) -> None:
    data, _, _ = found
    assert [world["world"] for world in data["worlds"]] == [2, 3]
    two, three = data["worlds"]
    assert {(point["size"], point["algorithm"]) for point in three["points"]} == {
        (size, name) for size in (12, 1024, 65536)
        for name in ("backend", "ring", "hierarchical (group=3)", "parameter-server (shards=1)")
    }
    assert [item["reason"] for item in two["skipped"]] == ["groups of 3 do not divide 2 ranks"]
    assert all(0 < seconds < 5 for world in data["worlds"] for point in world["points"] for seconds in point["seconds"])
    assert data["origin"] == "measured"


def test_bytes_are_the_formulas(found: tuple[dict[str, Any], str, str]) -> None:
    counted = [point for world in found[0]["worlds"] for point in world["points"] if point["algorithm"] != "backend"]
    assert counted
    assert all(point["sent_bytes"] == point["formula_bytes"] > 0 for point in counted)


def test_figures_are_derived_from_the_times(found: tuple[dict[str, Any], str, str]) -> None:
    three = found[0]["worlds"][1]
    for point in three["points"]:
        assert point["busbw"] == pytest.approx(point["algbw"] * 4 / 3)
        assert (point["ratio"] is None) == (point["algorithm"] == "backend")
        if point["ratio"]:
            assert point["ratio"]["low"] <= point["ratio"]["value"] <= point["ratio"]["high"]
    assert three["model"]["alpha"] + three["model"]["beta"] > 0
    assert three["effective"]["ring"].startswith("ring: all_reduce")


def test_page_has_plots(found: tuple[dict[str, Any], str, str]) -> None:
    _, page, progress = found
    assert page.count('class="chart"') == 6
    assert "2(p-1)/p" in page and "hierarchical (group=3)" in page
    assert "3 ranks, 64 KiB, ring:" in progress and "page: " in progress


def test_a_wrong_sum_is_caught() -> None:
    wrong = Choice.model_construct(seam="comm", kind="forgetful", plugin=Forgetful())
    options = CommOptions.model_construct(
        algorithms=(*read_algorithms(["ring"]), wrong), sizes=(4096,), worlds=(2,), launcher=read_launcher(None),
        repetitions=2, seconds=2.0, seed=1,
    )
    with pytest.raises(TrialError, match=r"forgetful on 2 ranks, \d+ bytes: element \d+ on rank \d is .*, not "):
        measure(options, lambda text: None)


def test_impossible_options_are_refused_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="ranks: "):
        invoke("-a", "ring", "--world", "4096")
    with pytest.raises(UsageError, match="no-such-folder"):
        invoke("-a", "ring", "--html", str(tmp_path / "no-such-folder" / "page.html"))


def test_exceeding_the_budget_is_reported() -> None:
    done = invoke("-a", "ring", "--sizes", "1k,256m", "--world", "2", "--repetitions", "2", "--seconds", "0.1")
    assert done.exit_code == 0
    assert "not measured: ring at 256 MiB: modelled" in done.stdout


@pytest.mark.parametrize("measured", [
    ("overhead", "--launches", "2", "--steps", "5", "--batch", "8"),
    pytest.param(("turnaround",), marks=pytest.mark.slow)])
def test_the_other_measurements_print_what_their_schemas_say(tmp_path: Path, measured: tuple[str, ...]) -> None:
    ended = command(tmp_path, "bench", *measured, "--pairs", "2", "--json")
    found = json.loads(ended.out)
    assert ended.code == 0 and found["what"].startswith(measured[0]) and len(found["ours_values"]) == 2
