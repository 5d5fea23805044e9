"""All engines train alike: real processes, gloo on loopback, against one plain process.
The tolerances: in float32, engines differ only in the order of sums (micro-batches,
ranks, the norm), one unit in the last place of a gradient here and there: seen up to 6e-8 in the weights after 20
steps of SGD and 1.9e-7 for AdamW. In bfloat16 sums differ by 2^-9: seen up to 1.7e-3 in weights, 2.2e-4 in losses.
"""

from __future__ import annotations

import multiprocessing
import os
import socket
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import pytest

from repro.comm.algorithms.backend import Backend
from repro.core.random_streams import Streams
from repro.engines.ddp import Ddp
from repro.engines.deepspeed_zero import DeepSpeedZero
from repro.engines.precisions import Bf16Autocast, Bf16Master, Fp16Autocast, Fp16Master, Fp32
from repro.engines.single import Single
from repro.optimizers.adamw import AdamW
from repro.optimizers.sgd import Sgd
from repro.seams.training import Batch, Comm, Engine, Job, Optimizer, Precision, Session, TrainingParts

pytest.importorskip("torch")
pytest.importorskip("deepspeed")

GLOBAL_BATCH = 16
PRELOAD = ("torch._dynamo", "repro.engines.zero.session", "repro.engines.plain.ddp_session",
           "repro.engines.plain.fsdp_session")
LIMIT_SECONDS = 40.0
"""Longest a single case may take before the processes are killed."""
SGD = Sgd(lr=0.05, momentum=0.9, nesterov=True, weight_decay=0.01, decay="weights")
ADAMW = AdamW(lr=0.01, weight_decay=0.1)
ZERO = tuple(DeepSpeedZero(stage=stage) for stage in (0, 1, 2, 3))  # type: ignore[arg-type]


@dataclass(frozen=True)
class Case:
    """One training to be run on the first `world` ranks."""

    engine: Engine
    world: int = 1
    accumulation: int = 1
    optimizer: Optimizer = SGD
    clip: float | None = None
    precision: Precision = Fp32()  # noqa: RUF009  # frozen
    warm_up: bool = False
    batch_norm: bool = False
    steps: int = 20
    comm: Comm = Backend()  # noqa: RUF009  # frozen
    compression: str = "none"
    overlap: bool = True

    def __str__(self) -> str:
        stage = getattr(self.engine, "stage", "")
        changed = "+" if self.engine.model_dump(exclude_defaults=True, exclude={"stage"}) else ""
        parts = [f"{type(self.engine).__name__}{stage}{changed}", f"{self.world}x{self.accumulation}",
                 type(self.optimizer).__name__, f"clip{self.clip}", type(self.precision).__name__]
        changed_comm = ",".join(f"{key}={value}" for key, value in self.comm.model_dump(exclude_defaults=True).items())
        parts += [type(self.comm).__name__ + changed_comm] if not isinstance(self.comm, Backend) else []
        parts += [self.compression] * (self.compression != "none") + ["no-overlap"] * (not self.overlap)
        return "-".join(parts)


# ---- what every rank does


def serve(pipe: Connection, rank: int) -> None:
    """Run the cases that come through `pipe` until None comes."""
    import torch

    torch.set_num_threads(1)
    while (order := pipe.recv()) is not None:
        case, port = order
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), LOCAL_RANK=str(rank))
        try:
            pipe.send(train(case, rank))
        except BaseException:
            pipe.send(traceback.format_exc())


def build_parts(batch_norm: bool) -> TrainingParts:
    """A small net whose sizes no number of ranks divides; smooth, as a kink turns a last place into a finite step."""
    import torch
    from torch import nn

    torch.manual_seed(5)
    norm = nn.BatchNorm2d(6) if batch_norm else nn.GroupNorm(2, 6)
    model = nn.Sequential(nn.Conv2d(1, 6, 3), norm, nn.SiLU(), nn.Flatten(), nn.Linear(216, 13), nn.SiLU(),
                          nn.Linear(13, 10))

    def correct(outputs: Any, targets: Any) -> torch.Tensor:
        return (outputs.argmax(1) == targets).sum()

    def unused(*_: Any) -> Any:
        raise AssertionError

    return TrainingParts(model, nn.functional.cross_entropy, {"accuracy": correct}, unused, unused, unused, unused)


def images(first: int, count: int) -> Batch:
    """`count` labelled images, the same for everybody."""
    import torch

    generator = torch.Generator().manual_seed(11)
    inputs = torch.randn(20 * GLOBAL_BATCH, 1, 8, 8, generator=generator)
    targets = (inputs.mean((1, 2, 3)) * 80).long() % 10
    return inputs[first:first + count], targets[first:first + count]


def step_batches(case: Case, rank: int, step: int) -> list[Batch]:
    micro = GLOBAL_BATCH // case.world // case.accumulation
    first = step % 20 * GLOBAL_BATCH
    return [images(first + (part * case.world + rank) * micro, micro) for part in range(case.accumulation)]


def train(case: Case, rank: int) -> dict[str, Any]:
    """Everything a rank can say about one case."""
    import torch

    job = Job(rank, case.world, "cpu", GLOBAL_BATCH // case.world // case.accumulation, case.accumulation, case.clip,
              case.precision, case.optimizer, case.comm, timeout_seconds=LIMIT_SECONDS / 2,
              compression=case.compression, overlap=case.overlap)
    session = case.engine.start(build_parts(case.batch_norm), job, Streams(1, 0))
    try:
        found: dict[str, Any] = {"initial": session.weights()}
        if case.warm_up:
            state = torch.get_rng_state()
            made_up = torch.randn(job.micro_batch, 1, 8, 8, generator=torch.Generator().manual_seed(3))
            session.warm_up([(made_up, torch.zeros(job.micro_batch, dtype=torch.long))] * case.accumulation)
            found["rng_restored"] = bool(torch.equal(state, torch.get_rng_state()))
        return {**found, **follow(case, session, rank)}
    finally:
        session.close()


def follow(case: Case, session: Session, rank: int) -> dict[str, Any]:
    losses, norms = [], []
    for step in range(case.steps):
        loss = session.backward(step_batches(case, rank, step))
        if step < 10:
            squares = sum(float((array.astype(np.float64) ** 2).sum()) for array in session.gradients().values())
            norms.append(squares**0.5)
        session.update(case.optimizer.lr * (1 + 0.1 * (step % 3)))
        losses.append(session.total([float(loss)])[0] / case.world)
    # Rank r brings r + 1 batches: in stage 3 a rank that is done early must not leave the others waiting.
    scored = session.evaluate([images(0, 24)] * (rank + 1), "accuracy")
    return {
        "losses": losses, "norms": norms, "weights": session.weights(), "scored": scored,
        "totals": session.total(list(scored)), "gathered": session.gather({"rank": rank}),
        "buffers": session.buffers(), "traffic": session.traffic(), "effective": session.effective(),
        "peak": session.peak_bytes(), "held": session.held(),
    }


# ---- the processes


class Ranks:
    """Processes that wait for cases, a set for every world size; results are kept, so tests may ask again.

    A process serves one world size only: DeepSpeed numbers parameters from the start of the process, and ZeRO 3
    requires the same numbers on all ranks.
    """

    def __init__(self) -> None:
        self.context = multiprocessing.get_context("forkserver")
        self.context.set_forkserver_preload(list(PRELOAD))
        self.pipes: dict[int, list[Connection]] = {}
        self.processes: list[Any] = []
        self.known: dict[str, list[dict[str, Any]]] = {}

    def __call__(self, case: Case) -> list[dict[str, Any]]:
        """The answers of every rank of `case`."""
        if repr(case) not in self.known:
            pipes, port = self._ready(case.world), free_port()
            for pipe in pipes:
                pipe.send((case, port))
            self.known[repr(case)] = [self._answer(pipe, f"{case}, rank {rank}") for rank, pipe in enumerate(pipes)]
        return self.known[repr(case)]

    def _ready(self, world: int) -> list[Connection]:
        if world not in self.pipes:
            self.pipes[world] = []
            for rank in range(world):
                mine, theirs = self.context.Pipe()
                self.processes.append(self.context.Process(target=serve, args=(theirs, rank), daemon=True))
                self.processes[-1].start()
                theirs.close()
                self.pipes[world].append(mine)
        return self.pipes[world]

    def _answer(self, pipe: Connection, who: str) -> dict[str, Any]:
        try:
            answer = pipe.recv() if pipe.poll(LIMIT_SECONDS) else f"hung for {LIMIT_SECONDS:g} s"
        except EOFError:
            answer = "died"
        if isinstance(answer, str):
            self.end()
            pytest.fail(f"{who}: {answer}")
        return dict(answer)

    def end(self) -> None:
        """Kill all processes; the next case starts new ones."""
        for process in self.processes:
            process.kill()
            process.join(10)
        self.processes, self.pipes = [], {}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    before = {name: os.environ.get(name) for name in ("DS_ACCELERATOR", "OMP_NUM_THREADS")}
    os.environ.update(DS_ACCELERATOR="cpu", OMP_NUM_THREADS="1")
    group = Ranks()
    yield group
    group.end()
    for name, value in before.items():
        os.environ.pop(name, None) if value is None else os.environ.update({name: value})


def furthest(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> float:
    """Largest difference of two sets of tensors."""
    assert one.keys() == other.keys()
    assert all(one[name].shape == other[name].shape for name in one)
    return max(float(np.abs(one[name].astype(np.float64) - other[name]).max()) for name in one)


def same_bytes(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> bool:
    return one.keys() == other.keys() and all(one[name].tobytes() == other[name].tobytes() for name in one)


Run = Callable[[Case], list[dict[str, Any]]]

# ---- float32: the same weights for every engine, number of ranks and accumulation

DDP_CUTS = [Case(Ddp(), world, accumulation) for world in (1, 2, 4) for accumulation in (1, 4)]
SCATTERED = DeepSpeedZero(stage=3, config={"zero_optimization": {"stage3_param_persistence_threshold": 0}})
"""By default, DeepSpeed keeps tensors of this size complete on every rank."""
CUTS = [*DDP_CUTS, Case(Single(), 1, 4), *(Case(engine, 2, 4) for engine in ZERO)]
RECIPES = [(SGD, None), (ADAMW, 0.5)]
MORE = [replace(Case(engine, 2, 4), optimizer=optimizer, clip=clip)
        for engine in (Ddp(), *ZERO) for optimizer, clip in ((SGD, 0.5), (ADAMW, None))]
FP32_CASES = [replace(cut, optimizer=optimizer, clip=clip) for cut in CUTS for optimizer, clip in RECIPES] + MORE
FP32_CASES += [Case(engine, 4, 1, ADAMW, 0.5) for engine in ZERO] + [Case(DeepSpeedZero(stage=2), 1, 4, ADAMW, 0.5)]
FP32_CASES += [Case(Ddp(static_graph=True, broadcast_buffers=False), 4, 1),
               Case(Ddp(bucket_mib=0.001), 4, 2), Case(SCATTERED, 4, 2), Case(SCATTERED, 2, 4, clip=0.5)]
# By default: every engine under AdamW with clipping, both recipes, every number of ranks, accumulation and none, and
# odd buckets.
FP32_FAST = [*(Case(engine, 2, 4, ADAMW, 0.5) for engine in (Ddp(), *ZERO)),
             Case(Single(), 1, 4), Case(Ddp(), 1, 4), Case(Ddp(), 4, 1, ADAMW, 0.5), *FP32_CASES[-4:]]


def thorough(cases: list[Case], fast: list[Case]) -> list[Any]:
    """All `cases`; those that are not `fast` wait for `make test-slow`."""
    assert all(case in cases for case in fast)
    return [case if case in fast else pytest.param(case, marks=pytest.mark.slow) for case in cases]


@pytest.mark.parametrize("case", thorough(FP32_CASES, FP32_FAST), ids=str)
def test_float32_training_is_the_same(ranks: Run, case: Case) -> None:
    reference = ranks(Case(Single(), optimizer=case.optimizer, clip=case.clip))[0]
    found = ranks(case)
    assert same_bytes(found[0]["initial"], reference["initial"])
    for rank in found:
        assert same_bytes(rank["weights"], found[0]["weights"])
        np.testing.assert_allclose(rank["losses"][:10], reference["losses"][:10], rtol=1e-5)
        np.testing.assert_allclose(rank["norms"], reference["norms"], rtol=1e-5)
    assert furthest(found[0]["weights"], reference["initial"]) > 0.05
    tolerance = 5e-7 if isinstance(case.optimizer, Sgd) else 2e-6
    assert furthest(found[0]["weights"], reference["weights"]) < tolerance


def test_clipping_bites_in_these_cases(ranks: Run) -> None:
    assert max(ranks(Case(Single(), optimizer=SGD, clip=0.5))[0]["norms"]) > 0.5
    assert furthest(ranks(Case(Single(), clip=0.5))[0]["weights"], ranks(Case(Single()))[0]["weights"]) > 1e-3


# ---- lower precision

SLOW_ADAMW = AdamW(lr=0.001, weight_decay=0.1)
LOW = [replace(Case(engine, 2, 4), precision=precision, optimizer=SGD)
       for engine in ZERO for precision in (Bf16Autocast(), Bf16Master())]
LOW += [replace(Case(engine, 2, 4), precision=Bf16Master(), optimizer=SLOW_ADAMW) for engine in ZERO]
LOW += [Case(ZERO[0], 2, 4, precision=Fp16Autocast(), clip=0.5)]
LOW_FAST = [Case(ZERO[3], 2, 4, precision=Bf16Autocast()),
            *(Case(ZERO[stage], 2, 4, precision=Bf16Master()) for stage in (0, 2)),
            Case(ZERO[1], 2, 4, SLOW_ADAMW, precision=Bf16Master()), LOW[-1]]


@pytest.mark.parametrize("case", thorough(LOW, LOW_FAST), ids=str)
def test_low_precision_agrees_between_ddp_and_zero(ranks: Run, case: Case) -> None:
    reference, found = ranks(replace(case, engine=Ddp()))[0], ranks(case)[0]
    assert same_bytes(found["initial"], reference["initial"])
    # ZeRO 2 and 3 average every micro-batch, the others their sum: under bf16-master the sums are rounded in another
    # order. With float32 gradients nothing is rounded that float32 training would not round.
    rounded = case.precision.master and getattr(case.engine, "stage", 0) >= 2
    np.testing.assert_allclose(found["losses"], reference["losses"], rtol=5e-3 if rounded else 1e-6)
    assert furthest(found["weights"], reference["weights"]) < (5e-3 if rounded else 1e-6)


@pytest.mark.parametrize("precision", [Bf16Autocast(), Bf16Master(), Fp16Autocast(), Fp16Master()],
                         ids=lambda precision: type(precision).__name__)
def test_low_precision_differs_from_float32_but_not_much(ranks: Run, precision: Precision) -> None:
    low, full = ranks(Case(Single(), precision=precision))[0], ranks(Case(Single()))[0]
    assert same_bytes(low["initial"], full["initial"])
    assert 1e-6 < furthest(low["weights"], full["weights"]) < 5e-2


# ---- warm-up leaves nothing behind

WARM = [replace(Case(engine, 1 if isinstance(engine, Single) else 2, 4), optimizer=optimizer, clip=clip)
        for engine in (Single(), Ddp(), *ZERO) for optimizer, clip in RECIPES]
WARM += [Case(engine, 2, 4, precision=Bf16Master()) for engine in (Ddp(), *ZERO)]
WARM += [Case(Ddp(bucket_mib=0.001), 2, 4), Case(SCATTERED, 2, 4, clip=0.5)]
WARM += [Case(Ddp(), 2, 4, precision=Fp16Autocast(), clip=0.5), Case(ZERO[0], 2, 4, precision=Fp16Autocast(), clip=0.5)]

WARM_FAST = [case for case in WARM if case.optimizer == ADAMW and case.engine not in (ZERO[0], ZERO[2])]
WARM_FAST += [WARM[-1], Case(Ddp(), 2, 4, precision=Bf16Master()), Case(SCATTERED, 2, 4, clip=0.5)]


@pytest.mark.parametrize("case", thorough(WARM, WARM_FAST), ids=str)
def test_training_after_a_warm_up_is_bit_identical(ranks: Run, case: Case) -> None:
    check_warm_up(ranks, case)


def check_warm_up(ranks: Run, case: Case) -> None:
    """Check that training ends with the same bits with and without a warm-up."""
    cold, warm = ranks(case)[0], ranks(replace(case, warm_up=True))[0]
    assert warm["rng_restored"]
    assert warm["losses"] == cold["losses"]
    assert same_bytes(warm["weights"], cold["weights"])


def test_with_more_ranks_and_buckets_a_warm_up_spares_ddp_its_first_layout(ranks: Run) -> None:
    # DDP lays out its buckets again after the first step, and the place of a number in a bucket decides the order
    # in which more than two ranks are summed. After a warm-up step 0 already has the layout that stays.
    case = Case(Ddp(bucket_mib=0.001), 4, 2)
    cold, warm = ranks(case)[0], ranks(replace(case, warm_up=True))[0]
    assert furthest(warm["weights"], cold["weights"]) < 5e-7


# ---- buffers, evaluation, read-outs

NORMED = [Case(engine, 2, 2, batch_norm=True, steps=6) for engine in (Ddp(), ZERO[0], ZERO[1], ZERO[3])]


@pytest.mark.parametrize("case", NORMED, ids=str)
def test_batch_norm_statistics_are_rank_0s_on_every_rank(ranks: Run, case: Case) -> None:
    found, reference = ranks(case), ranks(NORMED[0])[0]
    assert same_bytes(found[0]["buffers"], found[1]["buffers"])
    assert int(found[0]["buffers"]["1.num_batches_tracked"]) == 12
    assert furthest(found[0]["buffers"], reference["buffers"]) < 1e-6
    assert found[0]["totals"] == reference["totals"]


def test_a_warm_up_restores_buffers(ranks: Run) -> None:
    cold, warm = ranks(NORMED[0])[0], ranks(replace(NORMED[0], warm_up=True))[0]
    assert same_bytes(warm["buffers"], cold["buffers"]) and same_bytes(warm["weights"], cold["weights"])


@pytest.mark.parametrize("case", [Case(Ddp(), 4, 1), Case(ZERO[3], 4, 1, ADAMW, 0.5), Case(Single())], ids=str)
def test_sums_over_ranks(ranks: Run, case: Case) -> None:
    found = ranks(case)
    assert [rank["scored"][1] for rank in found] == [24 * (rank + 1) for rank in range(case.world)]
    assert all(rank["totals"] == [float(sum(r["scored"][i] for r in found)) for i in (0, 1)] for rank in found)
    assert all(rank["gathered"] == [{"rank": i} for i in range(case.world)] for rank in found)
    assert all(rank["peak"] > 50_000_000 for rank in found)


@pytest.mark.parametrize(("case", "expected"), [
    (Case(Single()), {"comm": "none", "matmul_dtype": "float32", "weight_dtype": "float32"}),
    (Case(Ddp(), 2, 4), {"comm": "gloo", "comm_dtype": "unknown", "buckets": "1", "optimizer": "torch.optim.sgd.SGD",
                         "gradient_as_bucket_view": "on", "overlap": "on", "compression": "none"}),
    (Case(Ddp(), 2, 4, precision=Bf16Master()), {"weight_dtype": "bfloat16", "master_dtype": "float32"}),
    (Case(Ddp(), 2, 4, precision=Bf16Master(), warm_up=True), {"comm_dtype": "bfloat16"}),
    (Case(Ddp(), 2, 4, ADAMW, 0.5, warm_up=True), {"comm_dtype": "float32"}),
    (Case(ZERO[2], 2, 4, ADAMW, 0.5, warm_up=True), {
        "zero_stage": "2", "wrapper": "DeepSpeedZeroOptimizer", "comm_dtype": "float32", "overlap": "off",
        "optimizer": "torch.optim.adamw.AdamW"}),
    (Case(ZERO[3], 2, 4, precision=Bf16Autocast()), {"matmul_dtype": "bfloat16",
                                                     "gradient_dtype": "float32", "weight_dtype": "float32"}),
    (Case(ZERO[3], 2, 4, precision=Bf16Master(), warm_up=True), {
        "matmul_dtype": "bfloat16", "comm_dtype": "bfloat16", "gradient_dtype": "bfloat16",
        "master_dtype": "float32"}),
    (Case(ZERO[0], 2, 4, precision=Fp16Autocast(), clip=0.5, warm_up=True), {
        "matmul_dtype": "float16", "comm_dtype": "float32", "loss_scale": "65536"}),
], ids=lambda value: str(value) if isinstance(value, Case) else "")
def test_effective_settings_are_read_back(ranks: Run, case: Case, expected: dict[str, str]) -> None:
    effective = ranks(case)[0]["effective"]
    assert {key: effective[key] for key in expected} == expected
    assert all(isinstance(value, str) for value in effective.values())
