"""The communication benchmark's figures on made-up times, and what its command line refuses."""

from __future__ import annotations

import math
from typing import Any

import pytest
from repro.reporters.page.comm_bench import render

from repro.bench.comm.bench import read_algorithms, read_launcher, read_sizes, read_worlds
from repro.bench.comm.rank import _slow
from repro.bench.comm.result import CommOutcome, WorldResult, bus_factor, read_links, world_result
from repro.bench.comm.table import bound_texts, columns, size_text, text
from repro.core.errors import UsageError

MIB = 1 << 20
LINKS = [
    {"sender": 0, "receiver": 1, "size": 1024, "seconds": [2e-4, 1e-4, 3e-4], "median": 2e-4},
    {"sender": 0, "receiver": 1, "size": 2_500_000, "seconds": [0.11, 0.1], "median": 0.105},
    {"sender": 1, "receiver": 0, "size": 1024, "seconds": [1e-4], "median": 1e-4},
    {"sender": 1, "receiver": 0, "size": 2_500_000, "seconds": [0.125, 0.2], "median": 0.16},
]
MODEL = {"alpha": 1e-4, "beta": 5e-8, "gamma": 0.0, "samples": 9, "error": 0.04}


def line(algorithm: str, size: int, seconds: list[float], **formulas: Any) -> dict[str, Any]:
    empty = {"sent_bytes": None, "formula_bytes": None, "path_bytes": None, "model_seconds": None}
    return {"kind": "point", "algorithm": algorithm, "size": size, "seconds": seconds, "calls": 1, **empty, **formulas}


def world(*extra: dict[str, Any]) -> WorldResult:
    ring = {"sent_bytes": 1.5 * MIB, "formula_bytes": 1.5 * MIB, "path_bytes": 1.5 * MIB, "model_seconds": 0.08}
    lines = [
        {"kind": "links", "links": LINKS, "model": MODEL},
        line("backend", MIB, [0.1, 0.2, 0.1]), line("ring", MIB, [0.08, 0.16, 0.08], **ring),
        line("backend", 4 * MIB, [0.4, 0.4]), line("ring", 4 * MIB, [0.8, 0.8], **ring), *extra,
    ]
    skipped = [{"algorithm": "hierarchical", "size": None, "reason": "groups of 2 do not divide 3 ranks"}]
    return world_result(4, lines, skipped, None)


def outcome() -> CommOutcome:
    return CommOutcome(origin="emulated", place="here", launcher={"kind": "fabric"}, cores=2, load=(0.5, 1.5),
                       repetitions=3, seconds=1.0, seed=1, worlds=(world(),))


def test_rate_is_the_slowest_links_best() -> None:
    found = world()
    assert found.bytes_per_second == pytest.approx(2_500_000 / 0.125)
    assert [link.latency_seconds for link in found.links] == [2e-4, 1e-4]


@pytest.mark.parametrize(("ranks", "factor"), [(2, 1.0), (4, 1.5), (8, 1.75)])
def test_bus_bandwidth_is_nccl_tests(ranks: int, factor: float) -> None:
    assert bus_factor(ranks) == factor
    point = world().of("backend")[MIB]
    assert point.algbw == pytest.approx(MIB / 0.1 / 1e9)
    assert point.busbw(ranks) == pytest.approx(factor * MIB / 0.1 / 1e9)


def test_ratios_to_bound_own_formula_and_model() -> None:
    point = world().of("ring")[MIB]
    assert point.bound_seconds == pytest.approx(1.5 * MIB / 2e7)
    assert point.to_bound == point.to_own == pytest.approx(0.08 / point.bound_seconds)
    assert point.model_error == pytest.approx(0.0)


def test_ratio_is_paired_by_repetition() -> None:
    ratio = world().of("ring")[MIB].ratio
    assert ratio is not None
    # the machine was half as fast in the second repetition, and both felt it
    assert (ratio.value, ratio.low, ratio.high, ratio.pairs) == (pytest.approx(0.8), *[pytest.approx(0.8)] * 2, 3)
    assert world().of("backend")[MIB].ratio is None


def test_overall_is_the_geometric_mean_over_sizes() -> None:
    overall = world().overall("ring")
    assert overall is not None
    assert (overall.value, overall.pairs) == (pytest.approx(math.sqrt(0.8 * 2.0)), 2)
    assert world().overall("backend") is None


def test_distance_from_the_best_at_each_size() -> None:
    assert world().behind_best("ring") == (pytest.approx(2.0), 4 * MIB)
    assert world().behind_best("backend") == (pytest.approx(1.25), MIB)


def test_no_interval_from_one_pair() -> None:
    found = world(line("backend", 64, [0.1]), line("ring", 64, [0.2])).of("ring")[64]
    assert found.ratio is None


def test_table_shows_figures_and_omitted_contenders() -> None:
    shown = text(outcome())
    assert "slowest of 2 links B = 160 Mbit/s (fastest 200 Mbit/s)" in shown
    assert "1572864 = formula" in shown
    assert "0.800 to 0.800" in shown
    assert "not measured: hierarchical: groups of 2 do not divide 3 ranks" in shown
    assert "emulated: here, gloo on 2 cores; load average 0.5 before, 1.5 after" in shown


def test_columns_are_aligned() -> None:
    assert columns([("a", "name"), ("100", "x")], left=(1,)) == ["  a  name", "100  x"]


def test_json_has_derived_figures_next_to_raw_ones() -> None:
    data = outcome().as_json()
    point = data["worlds"][0]["points"][1]
    assert (point["algorithm"], point["seconds"]) == ("ring", [0.08, 0.16, 0.08])
    assert point["busbw"] == pytest.approx(1.5 * MIB / 0.08 / 1e9)
    assert data["worlds"][0]["overall"]["backend"] is None


def test_page_has_a_plot_and_every_figure() -> None:
    from repro.reporters.page.comm_bench import render

    page = render(outcome())
    assert all(f'data-chart="{name}-4"' in page for name in ("time", "ratio", "bandwidth"))
    assert page == render(outcome())
    assert "0.800 to 0.800" in page and "groups of 2 do not divide" in page
    assert "http-equiv=\"Content-Security-Policy\"" in page and 'src="http' not in page


# ---- what a person writes


def test_sizes() -> None:
    assert read_sizes("1k:64m") == tuple(1024 * 4**power for power in range(9))
    assert read_sizes("1M, 4k,12") == (12, 4096, MIB)
    assert [size_text(size) for size in (12, 4096, MIB, 1536 * 1024)] == ["12 B", "4 KiB", "1 MiB", "1536 KiB"]


@pytest.mark.parametrize("wrong", ["", "big", "6", "4k:", "1m:4k", "-4", "4t"])
def test_sizes_refused(wrong: str) -> None:
    with pytest.raises(UsageError, match="--sizes"):
        read_sizes(wrong)


def test_backend_is_always_measured() -> None:
    assert [item.label for item in read_algorithms(["ring"])] == ["backend", "ring"]
    arity = read_algorithms(["{kind: tree, arity: 4}", "tree"])
    assert [getattr(item.plugin, "arity", None) for item in arity] == [None, 4, 2]


@pytest.mark.parametrize(("wrong", "why"), [
    (["rnig"], "did you mean 'ring'"), (["{kind: tree, arity: 0}"], "arity"), (["{kind: tree"], "cannot be read"),
    (["tree", "{kind: tree, arity: 2}"], "twice"),
    (["hybrid", "{kind: hybrid, among: [ring]}"], "only one of them per run"),
])
def test_algorithms_refused(wrong: list[str], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        read_algorithms(wrong)


def test_worlds_follow_the_fabric() -> None:
    fabric = read_launcher("nodes=8, rate=200mbit")
    assert read_worlds(None, fabric) == (8,)
    assert read_worlds(None, read_launcher(None)) == (2, 4)
    assert read_worlds("2,4,2", fabric) == (2, 4)


@pytest.mark.parametrize(("wrong", "why"), [
    ("rate=fast", "not a rate"), ("nodes", "not an option"), ("nodse=2", "nodes"),
])
def test_fabric_refused(wrong: str, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        read_launcher(wrong)


@pytest.mark.parametrize("wrong", ["1", "two", "2,0"])
def test_worlds_refused(wrong: str) -> None:
    with pytest.raises(UsageError, match="--world"):
        read_worlds(wrong, read_launcher(None))


def test_a_time_below_the_bound_is_a_finding_about_the_bound() -> None:
    # 1.5 x 1 MiB over 20 MB/s takes 0.0786 s, over the stated 25 MB/s 0.0629 s
    network = {"node_of_rank": [0, 1, 2, 3], "stated_bits_per_second": [2e8] * 4}
    lines = [{"kind": "links", "links": LINKS, "model": MODEL}, line("ring", MIB, [0.07]), line("tree", MIB, [0.08])]
    found = world_result(4, lines, [], network)
    assert [(point.algorithm, round(point.to_bound, 3)) for point in found.below_bound] == [("ring", 0.89)]
    assert found.to_stated(found.of("ring")[MIB]) == pytest.approx(0.07 * 25e6 / (1.5 * MIB))
    assert [(link.sender, stated) for link, stated in found.far_off] == [(1, 25e6)]  # the other has its 25 MB/s
    first, second = bound_texts(found)
    assert first.startswith("link 1 to 0: measured 160 Mbit/s, stated 200 Mbit/s (0.80 x)")
    assert second.startswith("below the bound: ring at 1 MiB 0.890 x; links of rate B allow no such time")
    whole = outcome().model_copy(update={"worlds": (found,)})
    assert first in text(whole)
    assert second in render(whole)
    data = whole.as_json()["worlds"][0]
    assert data["below_bound"][0]["algorithm"] == "ring"
    assert data["far_off_links"][0]["stated_bytes_per_second"] == 25e6
    assert data["points"][0]["to_stated"] == pytest.approx(1.113, abs=1e-3)


def test_a_link_that_was_held_up_once_keeps_its_best() -> None:
    again = {**LINKS[3], "seconds": [0.1]}
    assert [item.bytes_per_second for item in read_links([*LINKS, again])] == [2.5e7, 2.5e7]
    assert _slow([*LINKS], 2_500_000) == [(1, 0)]
    assert _slow([*LINKS, again], 2_500_000) == []
