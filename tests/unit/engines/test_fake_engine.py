"""The fake engine: exact, seeded, and free of torch."""

from __future__ import annotations

import math
import subprocess
import sys

import numpy as np
import pytest

from repro.comm.algorithms.backend import Backend
from repro.core.random_streams import Streams
from repro.engines.fake import Fake, FakeSession
from repro.engines.precisions import Fp32
from repro.optimizers.rules import Sgd
from repro.seams.training import Job


def job(world: int = 1, micro: int = 32) -> Job:
    return Job(0, world, "cpu", micro, 1, None, Fp32(), Sgd(lr=0.1), Backend())


def begin(engine: Fake, repeat: int = 0, world: int = 1) -> FakeSession:
    session = engine.start(None, job(world), Streams(7, repeat))
    assert isinstance(session, FakeSession)
    return session


def course(session: FakeSession, steps: int = 20) -> list[float]:
    figures = []
    for _ in range(steps):
        figures += [session.step([], 0.1), *session.evaluate([], "accuracy"), float(session.clock())]
    return figures


def test_the_same_trial_gives_the_same_bytes() -> None:
    assert course(begin(Fake(jitter=0.01))) == course(begin(Fake(jitter=0.01)))


def test_another_repeat_or_cell_draws_other_numbers() -> None:
    reference = course(begin(Fake()))
    assert course(begin(Fake(), repeat=1)) != reference
    assert course(begin(Fake(final=0.96)))[3::4] != reference[3::4]


def test_the_clock_handed_out_is_the_one_that_advances() -> None:
    engine = Fake(step_seconds=0.5, spread=0.0, eval_seconds=0.25)
    clock = engine.clock(job(), Streams(7, 0))
    session = begin(engine)
    began = clock()
    session.step([], 0.1)
    session.evaluate([], "accuracy")
    assert clock() - began == 750_000_000
    assert begin(engine).clock is not clock


def test_without_spread_the_learning_curve_is_the_formula() -> None:
    session = begin(Fake(spread=0.0, samples_scale=320.0, final=0.9))
    for _ in range(10):
        session.step([], 0.1)
    assert session.evaluate([], "accuracy")[0] == pytest.approx(0.9 * (1 - math.exp(-1)))
    assert session.evaluate([], "error")[0] == pytest.approx(1 - 0.9 * (1 - math.exp(-1)))


def test_rank_0_speaks_for_all_ranks_and_the_slowest_sets_the_pace() -> None:
    one, four = begin(Fake(spread=0.3)), begin(Fake(spread=0.3), world=4)
    assert four.total([1.0, 2.0]) == [4.0, 8.0] and four.gather("x") == ["x"] * 4
    for session in (one, four):
        for _ in range(50):
            session.step([], 0.1)
    assert four.samples == 4 * one.samples
    assert four.clock() > one.clock()


def test_some_trials_miss_and_some_diverge() -> None:
    missed = begin(Fake(miss_probability=1.0, spread=0.0, samples_scale=10.0))
    diverged = begin(Fake(diverge_probability=1.0, samples_scale=64.0))
    for _ in range(20):
        missed.step([], 0.1)
    assert missed.evaluate([], "accuracy")[0] == pytest.approx(0.97 / 2)
    losses = [diverged.step([], 0.1) for _ in range(10)]
    assert math.isnan(losses[-1]) and not math.isnan(losses[0])


def test_weights_pair_over_cells_and_move_with_training() -> None:
    session, other = begin(Fake()), begin(Fake(final=0.5), world=2)
    before = session.weights()
    assert all(np.array_equal(array, other.weights()[name]) for name, array in before.items())
    session.step([], 0.1)
    assert all(not np.array_equal(array, before[name]) for name, array in session.weights().items())
    assert all(array.dtype == np.float32 for array in session.gradients().values())


def test_the_fake_needs_no_torch() -> None:
    code = (
        "import sys; from repro.engines.fake import Fake; from repro.core.random_streams import Streams;"
        "from repro.seams.training import Job; from repro.engines.precisions import Fp32; "
        "from repro.optimizers.rules import Sgd; from repro.comm.algorithms.backend import Backend;"
        "s = Fake().start(None, Job(0, 1, 'cpu', 8, 1, None, Fp32(), Sgd(lr=1), Backend()), Streams(1, 0));"
        "s.step([], 0.1); s.weights(); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
