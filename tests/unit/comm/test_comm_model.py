"""The cost model: a fit finds what made the times, and formulas agree with the papers' table."""

from __future__ import annotations

import math

import numpy as np
import pytest

from repro.comm.algorithm import Algorithm
from repro.comm.algorithms.doubling import Butterfly, HalvingDoubling
from repro.comm.algorithms.ring import Ring
from repro.comm.algorithms.tree import Multicolor, ParameterServer, ReductionTree
from repro.comm.cost_model import LinkModel, Sample, fit, transfer, typical_error

SERVER, TREE = ParameterServer(), ReductionTree(shape="binomial", chunk_kib=None)
ALGORITHMS: tuple[Algorithm, ...] = (SERVER, TREE, Butterfly(), Ring(), HalvingDoubling())


def samples(model: LinkModel, world: int, noise: float = 0.0) -> list[Sample]:
    """Transfers and all-reduces as `model` would time them, each off by a factor of about 1 + noise."""
    draw = np.random.default_rng(7)
    costs = [transfer(size) for size in (1024, 16384, 262144, 4194304)]
    costs += [item.cost(world, count, 4) for item in ALGORITHMS for count in (768, 12288, 98304)]
    return [Sample(cost, model.seconds(cost) * math.exp(noise * draw.standard_normal())) for cost in costs]


@pytest.mark.parametrize("model", [LinkModel(5e-5, 4e-8, 2e-10), LinkModel(3e-4, 1e-9, 3e-10), LinkModel(0, 1e-9, 0)])
def test_fit_recovers_the_parameters_of_the_times(model: LinkModel) -> None:
    found = fit(samples(model, 8))
    assert found.alpha == pytest.approx(model.alpha, rel=1e-6, abs=1e-12)
    assert found.beta == pytest.approx(model.beta, rel=1e-6)
    assert found.gamma == pytest.approx(model.gamma, rel=1e-5, abs=1e-16)


def test_fit_under_noise() -> None:
    model = LinkModel(1e-4, 4e-8, 2e-10)
    noisy = samples(model, 8, noise=0.05)
    found = fit(noisy)
    assert found.alpha == pytest.approx(model.alpha, rel=0.15)
    assert found.beta == pytest.approx(model.beta, rel=0.1)
    assert typical_error(found, noisy) < 0.08


def test_scattered_times_are_not_predicted_too_short() -> None:
    model = LinkModel(1e-3, 1e-9, 0)
    draw = np.random.default_rng(3)
    scattered = [Sample(transfer(1024), 1e-3 * math.exp(draw.standard_normal())) for _ in range(2000)]
    assert fit(scattered).seconds(transfer(1024)) == pytest.approx(model.alpha, rel=0.1)


def test_no_parameter_below_zero() -> None:
    shrinking = [Sample(transfer(1024), 1e-3), Sample(transfer(65536), 5e-4)]
    found = fit(shrinking)
    assert min(found.alpha, found.beta, found.gamma) >= 0
    assert found.alpha > 0


def test_transfers_alone_leave_gamma_at_zero() -> None:
    found = fit([Sample(transfer(size), 1e-4 + size * 1e-8) for size in (1024, 65536, 1048576)])
    assert (found.gamma, found.bytes_per_second) == (0.0, pytest.approx(1e8))


@pytest.mark.parametrize("bad", [[], [Sample(transfer(4), 0.0)], [Sample(transfer(4), float("nan"))]])
def test_fit_refuses_unusable_times(bad: list[Sample]) -> None:
    with pytest.raises(ValueError, match="positive"):
        fit(bad)


# papers.md section 1: cost on the busiest link in multiples of |W|, derived
ORACLE = {2: (2, 2, 1, 1.0), 4: (6, 4, 2, 1.5), 8: (14, 6, 3, 1.75), 16: (30, 8, 4, 1.875), 128: (254, 14, 7, 1.984375)}


@pytest.mark.parametrize(("world", "multiples"), ORACLE.items())
def test_path_agrees_with_the_papers_table(world: int, multiples: tuple[float, ...]) -> None:
    count = 128 * 64
    for algorithm, multiple in zip((SERVER, TREE, Butterfly(), Ring()), multiples, strict=True):
        assert algorithm.cost(world, count, 4).path_bytes == multiple * count * 4, algorithm.title


@pytest.mark.parametrize("world", ORACLE)
def test_rounds_agree_with_the_formulas(world: int) -> None:
    bits = math.ceil(math.log2(world))
    rounds = [algorithm.cost(world, 128 * 64, 4).rounds for algorithm in ALGORITHMS]
    assert rounds == [2, 2 * bits, bits, 2 * (world - 1), 2 * bits]


@pytest.mark.parametrize("world", ORACLE)
def test_bytes_of_the_busiest_rank_agree_with_the_formulas(world: int) -> None:
    for algorithm in (HalvingDoubling(), Ring()):
        sent, received, _ = algorithm.load("all_reduce", world, 8192, 4)
        assert max(sent) == max(received) == 2 * (world - 1) * 8192 * 4 // world
    assert max(SERVER.load("all_reduce", world, 8192, 4)[0]) == (world - 1) * 8192 * 4


@pytest.mark.parametrize(("world", "colors", "arity"), [(8, 4, 4), (8, 2, 2), (16, 4, 4), (16, 5, 5)])
def test_multicolor_spares_the_busiest_rank(world: int, colors: int, arity: int) -> None:
    trees = Multicolor(colors=colors, arity=arity), ReductionTree(arity=arity)
    many, one = (max(algorithm.load("all_reduce", world, 8400, 4)[0]) for algorithm in trees)
    assert many < one
    assert many <= (arity + colors) / colors * 8400 * 4
