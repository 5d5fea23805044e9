"""Real processes with gloo on loopback that train small cases of every engine, for the tests of engines."""

from __future__ import annotations

import gc
import multiprocessing
import os
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import pytest

from repro.comm.algorithms.backend import Backend
from repro.core.random_streams import Streams
from repro.engines.deepspeed_zero import DeepSpeedZero
from repro.engines.precisions import Fp32
from repro.optimizers.rules import AdamW, Sgd
from repro.seams.plugin import ModelOptions
from repro.seams.preconditioner import Preconditioner, Unchanged
from repro.seams.training import Batch, Comm, Engine, Job, Optimizer, Precision, Session, TrainingParts
from tests.commands import free_port
from tests.live_tensors import ReadbackCounter, live_bytes

GLOBAL_BATCH = 16
PRELOAD = ("torch._dynamo", "repro.engines.zero.session", "repro.engines.plain.ddp_session",
           "repro.engines.plain.fsdp_session", "pytest", "tests.engine_ranks")
ON_GPU = "PYTORCH_NVML_BASED_CUDA_CHECK"
"""torch then asks the driver for GPUs without starting CUDA, which no forked process could use."""
LIMIT_SECONDS = 300.0
"""Longest a single case may take before the processes are killed."""
SGD = Sgd(lr=0.05, momentum=0.9, nesterov=True, weight_decay=0.01, decay="weights")
ADAMW = AdamW(lr=0.01, weight_decay=0.1)
ZERO = tuple(DeepSpeedZero(stage=stage) for stage in (0, 1, 2, 3))  # type: ignore[arg-type]
SCATTERED = DeepSpeedZero(stage=3, config={"zero_optimization": {"stage3_param_persistence_threshold": 0}})
"""By default, DeepSpeed keeps tensors of this size complete on every rank."""


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
    inputs: str = "tensor"
    """Form of the model's inputs: tensor, tuple or dict; the last two also feed tokens."""
    steps: int = 20
    comm: Comm = Backend()  # noqa: RUF009  # frozen
    compression: str = "none"
    overlap: bool | None = True
    model: ModelOptions = ModelOptions()  # noqa: RUF009  # frozen
    device: str = "cpu"
    preconditioner: Preconditioner = Unchanged()  # noqa: RUF009  # frozen
    wide: int = 0
    """Width of a model of eight blocks in place of the small net; 0: the small net."""
    body: str = "follow"
    """What is done with the session: `follow`, `messages`, `state_memory`, `readbacks` or `averages`."""

    def __str__(self) -> str:
        stage = getattr(self.engine, "stage", "")
        changed = "+" if self.engine.model_dump(exclude_defaults=True, exclude={"stage"}) else ""
        parts = [f"{type(self.engine).__name__}{stage}{changed}", f"{self.world}x{self.accumulation}",
                 type(self.optimizer).__name__, f"clip{self.clip}", type(self.precision).__name__]
        changed_comm = ",".join(f"{key}={value}" for key, value in self.comm.model_dump(exclude_defaults=True).items())
        parts += [type(self.comm).__name__ + changed_comm] if not isinstance(self.comm, Backend) else []
        parts += ["batch-norm"] * self.batch_norm + [self.inputs] * (self.inputs != "tensor")
        parts += [*self.model.chosen(), *[self.body] * (self.body != "follow")]
        if self.preconditioner.active:
            options = self.preconditioner.model_dump(exclude_defaults=True)
            parts.append("kfac" + ",".join(f"{key}={value}" for key, value in options.items()))
        parts += [self.compression] * (self.compression != "none") + ["no-overlap"] * (self.overlap is False)
        return "-".join(parts)


# ---- what every rank does


def serve(pipe: Connection, rank: int) -> None:
    """Run the cases that come through `pipe` until None comes."""
    os.environ["MKL_CBWR"] = "AUTO"  # as determinism bitwise does: bits are compared
    import torch
    gc.freeze()  # each session's end collects garbage: not among the modules' objects
    torch.set_num_threads(1)
    while (order := pipe.recv()) is not None:
        case, port = order
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), LOCAL_RANK=str(rank))
        try:
            pipe.send(train(case, rank) if isinstance(case, Case) else case.train(rank))
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

    def total_loss(outputs: Any, targets: Any) -> torch.Tensor:
        return nn.functional.cross_entropy(outputs, targets, reduction="sum")

    def unused(*_: Any) -> Any:
        raise AssertionError

    scores = {"accuracy": correct, "loss": total_loss}
    return TrainingParts(model, nn.functional.cross_entropy, scores, unused, unused, lambda n: images(0, n), unused)


def wide_parts(width: int) -> TrainingParts:
    """Eight equal blocks: a model whose states take far more memory than its activations."""
    import torch
    from torch import nn

    torch.manual_seed(5)
    model = nn.Sequential(*[nn.Linear(width, width) for _ in range(8)])

    def unused(*_: Any) -> Any:
        raise AssertionError

    return TrainingParts(model, nn.functional.mse_loss, {"error": unused}, unused, unused, unused, unused)


def with_tokens(parts: TrainingParts) -> TrainingParts:
    """The same net with a second input of tokens, and outputs in a dict."""
    import torch
    from torch import nn

    class WithTokens(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net, self.embedding = parts.model, nn.Embedding(20, 10)

        def forward(self, pixels: torch.Tensor, tokens: torch.Tensor) -> dict[str, Any]:
            assert tokens.dtype == torch.long
            return {"logits": self.net(pixels) + self.embedding(tokens).mean(1), "unused": (pixels.sum(), None)}

    loss, scores = parts.loss, parts.scores

    def float32(outputs: Any) -> Any:
        assert outputs["logits"].dtype == outputs["unused"][0].dtype == torch.float32
        return outputs["logits"]

    return replace(parts, model=WithTokens(), loss=lambda outputs, targets: loss(float32(outputs), targets),
                   scores={name: lambda outputs, targets, score=score: score(float32(outputs), targets)
                           for name, score in scores.items()})


def shaped(batch: Batch, form: str) -> Batch:
    """The batch with its inputs in another form."""
    pixels, targets = batch
    tokens = (pixels[:, 0, 0] * 100).long() % 20
    if form == "tensor":
        return batch
    return ((pixels, tokens) if form == "tuple" else {"tokens": tokens, "pixels": pixels}), targets


def images(first: int, count: int, device: str = "cpu") -> Batch:
    """`count` labelled images, the same for everybody."""
    import torch

    generator = torch.Generator().manual_seed(11)
    inputs = torch.randn(20 * GLOBAL_BATCH, 1, 8, 8, generator=generator)
    targets = (inputs.mean((1, 2, 3)) * 80).long() % 10
    return inputs[first:first + count].to(device), targets[first:first + count].to(device)


def limit_of(case: Any) -> float:
    """Longest the case may take, seconds: compiling takes a minute on two busy cores."""
    return LIMIT_SECONDS * (10 if isinstance(case, Case) and case.model.compile else 1)


def device_of(case: Case, rank: int) -> str:
    return case.device if case.device == "cpu" else f"{case.device}:{rank}"


def step_batches(case: Case, rank: int, step: int) -> list[Batch]:
    device = device_of(case, rank)
    micro = GLOBAL_BATCH // case.world // case.accumulation
    first = step % 20 * GLOBAL_BATCH
    return [shaped(images(first + (part * case.world + rank) * micro, micro, device), case.inputs)
            for part in range(case.accumulation)]


def train(case: Case, rank: int) -> dict[str, Any]:
    """Everything a rank can say about one case."""
    import torch

    device = device_of(case, rank)
    job = Job(rank, case.world, device, GLOBAL_BATCH // case.world // case.accumulation, case.accumulation, case.clip,
              case.precision, case.optimizer, case.comm, timeout_seconds=limit_of(case) / 2,
              compression=case.compression, overlap=case.overlap, model=case.model,
              preconditioner=case.preconditioner)
    if device != "cpu":
        torch.cuda.set_device(device)
    before = live_bytes() if case.body == "state_memory" else 0  # DeepSpeed keeps tensors of earlier engines
    parts = wide_parts(case.wide) if case.wide else build_parts(case.batch_norm)
    if case.inputs != "tensor":
        parts = with_tokens(parts)
    session = case.engine.start(parts, job, Streams(1, 0))
    try:
        # In a measurement of memory copies of the weights would count as tensors of the engine.
        found: dict[str, Any] = {"initial": session.weights()} if case.body == "follow" else {"before": before}
        if case.warm_up:
            state = torch.get_rng_state()
            made_up = torch.randn(job.micro_batch, 1, 8, 8, generator=torch.Generator().manual_seed(3)).to(device)
            made_up_batch = shaped((made_up, torch.zeros(job.micro_batch, dtype=torch.long, device=device)),
                                   case.inputs)
            session.warm_up([made_up_batch] * case.accumulation)
            session.evaluate([shaped(images(0, 24, device), case.inputs)], "accuracy")
            found["compiled"] = session.compilation()
            found["rng_restored"] = bool(torch.equal(state, torch.get_rng_state()))
        return {**found, **BODIES[case.body](case, session, rank)}
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
    device = device_of(case, rank)
    scored = session.evaluate([shaped(images(0, 24, device), case.inputs)] * (rank + 1), "accuracy")
    return {
        "losses": losses, "norms": norms, "weights": session.weights(), "scored": scored,
        "totals": session.total(list(scored)), "gathered": session.gather({"rank": rank}),
        "buffers": session.buffers(), "traffic": session.traffic(), "effective": session.effective(),
        "late": session.compilation(), "peak": session.peak_bytes(), "held": session.held(),
    }


def state_memory(case: Case, session: Session, rank: int) -> dict[str, Any]:
    """Bytes of all live tensors when gradients are complete and the optimizer has its state."""
    import torch

    inputs = torch.randn(2, case.wide)
    for _ in range(2):
        session.backward([(inputs, inputs)])
        session.update(0.01)
    session.backward([(inputs, inputs)])
    return {"measured": live_bytes(), "predicted": session.state_memory()}


def readbacks(case: Case, session: Session, rank: int) -> dict[str, Any]:
    """Operators of a step that copy values from the device to the host."""
    for step in range(2):
        session.step(step_batches(case, rank, step), 0.01)
    batches = step_batches(case, rank, 2)
    with ReadbackCounter() as counter:
        session.step(batches, 0.01)
    return {"readbacks": counter.found}


def averages(case: Case, session: Session, rank: int) -> dict[str, Any]:
    """Weights and losses around evaluations under an optimizer that evaluates others than it trains."""
    def loss() -> float:
        return session.evaluate([shaped(images(0, 24), case.inputs)], "loss")[0]

    for step in range(case.steps):
        session.step(step_batches(case, rank, step), case.optimizer.lr)
    found: dict[str, Any] = {"before": session.weights()}
    with session.evaluated():
        found |= {"averaged": session.weights(), "scored_inside": loss(), "held": session.held()}
    found |= {"scored": loss(), "after": session.weights()}
    return found


def messages(case: Case, session: Session, rank: int) -> dict[str, Any]:
    """What the meter counts in each step, and the trained parameters."""
    found = []
    session.traffic()
    for step in range(case.steps):
        session.step(step_batches(case, rank, step), 0.01)
        found.append({(line["operation"], line["dtype"]): line for line in session.traffic()["lines"]})
    return {"messages": found, "shapes": {name: value.shape for name, value in session.weights().items()}}


BODIES = {"follow": follow, "messages": messages, "state_memory": state_memory, "readbacks": readbacks,
          "averages": averages}

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
            self.known[repr(case)] = [self._answer(pipe, case, rank) for rank, pipe in enumerate(pipes)]
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

    def _answer(self, pipe: Connection, case: Case, rank: int) -> dict[str, Any]:
        try:
            limit = limit_of(case)
            answer = pipe.recv() if pipe.poll(limit) else f"hung for {limit:g} s"
        except EOFError:
            answer = "died"
        if isinstance(answer, str):
            self.end()
            pytest.fail(f"{case}, rank {rank}: {answer}")
        return dict(answer)

    def end(self) -> None:
        """Kill all processes; the next case starts new ones."""
        for process in self.processes:
            process.kill()
            process.join(10)
        self.processes, self.pipes = [], {}


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


def thorough(cases: list[Case], fast: list[Case]) -> list[Any]:
    """All `cases`; those that are not `fast` wait for `make test-slow`."""
    assert all(case in cases for case in fast)
    return [case if case in fast else pytest.param(case, marks=pytest.mark.slow) for case in cases]


def check_warm_up(ranks: Run, case: Case) -> None:
    """Check that training ends with the same bits with and without a warm-up."""
    cold, warm = ranks(case)[0], ranks(replace(case, warm_up=True))[0]
    assert warm["rng_restored"]
    assert warm["losses"] == cold["losses"]
    assert same_bytes(warm["weights"], cold["weights"])
