"""The ledger of a trial, and its gradient at the end: what healthy training leaves in them, and what defects do."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch

from repro.comm.algorithms.backend import Backend
from repro.core.random_streams import Streams
from repro.engines.deepspeed_zero import DeepSpeedZero
from repro.engines.precisions import Bf16Autocast, Fp16Autocast, Fp32
from repro.engines.torch_engines import Ddp
from repro.optimizers.rules import Adam, AdamW, Sgd
from repro.record.derive.effective import find_contradictions, find_other_steps
from repro.record.log.facts import Apart, LedgerNote, RankLedger, ScoreAgain, StepAgain, StepsAgain, WeightsAt
from repro.record.result.step_causes import NO_FACTOR, UPDATE_CAUSE, Place
from repro.seams.training import Batch, Held, Job, Optimizer, Precision, Session, TrainingParts
from repro.worker.evaluation import OwnModel
from repro.worker.ledger.seen import Unlike, unlike
from repro.worker.ledger.training import FIRST_WATCHED, TrainingLedger
from repro.worker.ledger.writes import Writes
from repro.worker.report import own_rule
from repro.worker.report.own_rule import OwnRule
from repro.worker.report.own_step import OwnStep
from repro.worker.report.score_difference import like_score
from repro.worker.report.step_difference import Worst, changed

STEPS, SIZE = 12, 8
RATES = [0.1 * (1 - step / STEPS) for step in range(STEPS)]


def batch(seed: int) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(SIZE, 4, generator=generator), torch.randint(0, 3, (SIZE,), generator=generator)


def parts_of() -> TrainingParts:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Dropout(0.1), torch.nn.Linear(6, 3))
    unused: Any = None
    return TrainingParts(model=model, loss=torch.nn.functional.cross_entropy, scores={},
                         eval_batch=lambda indices: batch(int(indices[0])),
                         train_batch=lambda _, indices: batch(int(indices[0])), synthetic_batch=unused,
                         open_data=lambda: "sha")


@dataclass
class Loop:
    """A training loop whose parts a defect replaces."""

    parts: TrainingParts
    ledger: TrainingLedger
    step: int = 0
    micro: int = 2
    fed: Callable[[int, list[Batch]], list[Batch]] = lambda _, batches: batches
    rate: Callable[[int], float] = lambda step: RATES[step]
    updates: Callable[[int], int] = lambda _: 1
    context: Callable[[int], Any] = lambda _: torch.enable_grad()
    before: Callable[[Loop, int], None] = lambda *_: None
    after: Callable[[Loop, int], None] = lambda *_: None
    deferring: int = -1
    """Step whose last backward pass is left to `after`."""
    held: torch.Tensor | None = None
    writes_alike: bool = True
    optimizer: torch.optim.Optimizer = field(init=False)

    def __post_init__(self) -> None:
        self.optimizer = torch.optim.SGD(self.parts.model.parameters(), lr=9.0, momentum=0.9)
        self.ledger.watch(cast("Any", self))

    def train(self, batches: list[Batch], rate: float | None = None) -> torch.Tensor:
        """Forward and backward of every micro-batch; then updates."""
        for inputs, targets in self.fed(self.step, batches):
            with self.context(self.step):
                loss = self.parts.loss(self.parts.model(inputs), targets)
            if self.step == self.deferring:
                self.held = loss
            else:
                loss.backward()
        self.optimizer.param_groups[0]["lr"] = self.rate(self.step) if rate is None else rate
        for _ in range(self.updates(self.step)):
            self.optimizer.step()
        self.optimizer.zero_grad()
        return loss

    def run(self) -> None:
        self.train([batch(99)], 0.0)  # the warm-up
        self.ledger.start()
        for self.step in range(STEPS):
            dealt = [batch(10 * self.step + number) for number in range(self.micro)]
            self.before(self, self.step)
            if self.step % 4 == 0:
                self.ledger.begin_block(self.step, self.step + 3)
            self.ledger.begin(self.step, dealt, RATES[self.step])
            self.train(dealt)
            self.ledger.end()
            if self.ledger.learning:
                self.ledger.learn()
            if self.step % 4 == 3:
                self.ledger.compare()
            self.after(self, self.step)
        self.ledger.stop()


@pytest.fixture
def loop() -> Iterator[Callable[..., Loop]]:
    ledgers: list[TrainingLedger] = []

    def make(precision: Precision | None = None, **changes: Any) -> Loop:
        parts = parts_of()
        ledgers.append(TrainingLedger(parts, job_of(Sgd(lr=0.1), precision), Streams(7, 0)))
        return Loop(parts, ledgers[-1], **changes)

    yield make
    for ledger in ledgers:
        ledger.close()


def job_of(optimizer: Optimizer, precision: Precision | None = None) -> Job:
    return Job(rank=0, world=1, device="cpu", micro_batch=SIZE, accumulation=2, gradient_clip=None,
               precision=precision or Fp32(), optimizer=optimizer, comm=Backend())


def notes(made: Loop) -> dict[str, LedgerNote]:
    made.run()
    return {note.kind: note for note in made.ledger.facts().notes}


def test_healthy_training_contradicts_nothing(loop: Callable[..., Loop]) -> None:
    made = loop()
    assert notes(made) == {}
    found = made.ledger.facts()
    assert (found.steps, found.forwarded, found.losses, found.updates) == (STEPS, STEPS * 16, STEPS * 16, 1)
    assert found.compared >= 4, "one step of every doubling and the last"


@pytest.mark.parametrize(("at", "change", "kind", "words"), [
    (5, lambda made: made.parts.model[0].weight.mul_(0.5), "written",
     "rank 0: something beside the optimizer's steps wrote into '0.weight': 5 writes and not 4, first in steps 5 to 8"),
    (8, lambda made: [each["momentum_buffer"].neg_() for each in made.optimizer.state.values()], "written",
     "rank 0: something beside the optimizer's steps wrote into 'momentum_buffer of 0.weight' and 3 other tensors: 36 "
     "writes and not 32, first in steps 9 to 12"),
    (4, lambda made: made.optimizer.state[made.parts.model[2].bias].update(momentum_buffer=torch.zeros(3)), "replaced",
     "rank 0: another tensor took the place of 'momentum_buffer of 2.bias' in steps 4 to 8"),
    (2, lambda made: made.optimizer.param_groups[0].update(momentum=0.5), "option",
     "rank 0: the optimizer's momentum was 0.5 and not 0.9, as at the start, first in step 4 (9 updates of a "
     "parameter group in all)"),
    (2, lambda made: made.optimizer.param_groups[0].update(dampening=0.1), "option",
     "rank 0: the optimizer's dampening was 0.1 and not 0, as at the start, first in step 4 (9 updates of a "
     "parameter group in all)"),
], ids=["a weight", "momenta between blocks", "a momentum by another", "an option", "an option of no suite"])
def test_what_changes_the_optimizer_beside_its_steps_is_named(
    loop: Callable[..., Loop], at: int, change: Callable[[Loop], Any], kind: str, words: str
) -> None:
    def after(made: Loop, step: int) -> None:
        if step == at:
            with torch.no_grad():
                change(made)

    made = loop(after=after)
    assert notes(made).keys() == {kind}
    assert [remark.words for remark in find_contradictions([made.ledger.facts()])] == [words]


@pytest.mark.parametrize("behind", [False, True])
@pytest.mark.parametrize("what", ["0.weight", "momentum_buffer of 0.weight"])
def test_what_is_written_through_data_in_a_kept_step_is_named(
    loop: Callable[..., Loop], what: str, behind: bool
) -> None:
    """Versions do not tell it; of a step that is kept, the values are compared."""
    read = list[int]()

    def before(made: Loop, step: int) -> None:
        if step in (6, 7):
            made.ledger.update.begin()
            made.ledger.update.begin_update(nullcontext, lambda: read.append(step))

    def after(made: Loop, step: int) -> None:
        if step in (6, 7):
            made.ledger.update.end(1)

    made = loop(before=before, after=after)
    step = made.optimizer.step

    def changed() -> None:
        weight = made.parts.model[0].weight
        if behind:
            step()
        if made.step == 7:
            tensor = weight if what == "0.weight" else made.optimizer.state[weight]["momentum_buffer"]
            tensor.data.mul_(0.5)
        if not behind:
            step()

    made.optimizer.step = changed  # type: ignore[assignment, method-assign]
    made.run()
    assert read == [6, 7]
    assert [remark.words for remark in find_contradictions([made.ledger.facts()])] == [
        f"rank 0: {what!r} changed in step 8 before the optimizer's own step or behind it"]


def test_what_hooks_of_others_and_closures_do_in_a_kept_step_is_named(loop: Callable[..., Loop]) -> None:
    def clamp(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        optimizer.param_groups[0]["params"][0].data.clamp_(-0.1, 0.1)

    def before(made: Loop, step: int) -> None:
        if step == 6:
            made.ledger.update.begin()
            made.ledger.update.begin_update(nullcontext, lambda: None)

    for foreign, updates, words in (
            (lambda made: made.optimizer.register_step_post_hook(clamp), 1,
             "'0.weight' changed in step 7 before the optimizer's own step or behind it"),
            (lambda made: setattr(made.optimizer, "step", partial(made.optimizer.step, lambda: 0.0)), 1,
             "the optimizer was given a closure in step 7, which may change the gradient inside its step"),
            (lambda _: None, 0, "step 7 of the engine called its `update` 0 times and not 1: it does not train by what "
                                "the gate compares")):
        made = loop(before=before, after=lambda made, step, updates=updates: (
            made.ledger.update.end(updates) if step == 6 else None))
        foreign(made)
        made.run()
        assert [remark.words for remark in find_contradictions([made.ledger.facts()])] == [f"rank 0: {words}"]


def test_steps_that_leave_tensors_alone_write_nothing_else() -> None:
    """Some do not use a parameter, some do not update; an engine's copy of the weights is written in every step."""
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2, bias=False))
    copies = [parameter.detach().clone().requires_grad_() for parameter in model.parameters()]
    optimizer = torch.optim.AdamW(copies)
    writes = Writes(optimizer, model)

    def step(*, updates: bool = True, uses: int = 3) -> None:
        for place, own in enumerate(copies):
            own.grad = torch.ones_like(own) if place < uses else None
        if updates:
            optimizer.step()
        with torch.no_grad():
            for parameter, own in zip(model.parameters(), copies, strict=True):
                parameter.copy_(own)

    for updates in (True, False, True, True):
        step(updates=updates)
        writes.learn(updated=updates)
        assert writes.learning
    with torch.no_grad():
        copies[1].neg_()  # in one of the steps that it learns from
    step()
    writes.learn(updated=True)
    assert not writes.learning
    for _ in range(2):
        step(uses=2)
        step(updates=False)
        step()
        assert writes.others(3) is None
    with torch.no_grad():
        model[1].weight.neg_()
        copies[1].neg_()
    step()
    assert writes.others(1) == ("1.weight", 2, 5, 3), "AdamW writes twice into a weight"
    with torch.no_grad():
        copies[0].neg_()
    writes.begin_again()
    assert writes.others(0) is None and writes.replaced() is None
    optimizer.state[copies[2]] = dict(optimizer.state[copies[2]], exp_avg=torch.zeros(2, 2))
    model[0].bias.requires_grad_(False)
    found = writes.replaced()
    assert found is not None and found.name == "exp_avg of stepped tensor 2" and found.tensors == 1
    assert writes.replaced() is None, "reported only once"
    writes.forget()
    assert writes.learning and writes.others(1) is None


def test_groups_that_are_stepped_one_at_a_time_have_their_own_options(loop: Callable[..., Loop]) -> None:
    """As DeepSpeed does, whose ZeRO 1 has one tensor a group."""
    made = loop()
    weight, bias, *rest = made.parts.model.parameters()
    made.optimizer = torch.optim.SGD([{"params": [bias, *rest]}, {"params": [weight], "weight_decay": 0.1}], lr=0.1)
    made.ledger.watch(cast("Any", made))
    step, groups = made.optimizer.step, made.optimizer.param_groups

    def each_group() -> None:
        for group in groups:
            made.optimizer.param_groups = [group]
            step()
        made.optimizer.param_groups = groups

    def rates(made: Loop, number: int) -> None:
        for group in groups:
            group["lr"] = RATES[number]
        groups[1]["weight_decay"] = 0.2 if number == 9 else 0.1

    made.optimizer.step = each_group  # type: ignore[method-assign, assignment]
    made.before = rates
    found = notes(made)
    assert found.keys() == {"option"}
    assert (found["option"].step, found["option"].times, found["option"].name) == (9, 1, "weight_decay")


@pytest.mark.parametrize(("session", "rule", "found"), [(False, True, {"option"}), (True, False, set())])
def test_what_does_not_declare_that_its_steps_write_alike_is_not_watched(
    loop: Callable[..., Loop], monkeypatch: pytest.MonkeyPatch, session: bool, rule: bool, found: set[str]
) -> None:
    def after(made: Loop, step: int) -> None:
        if step == 5:
            with torch.no_grad():
                made.parts.model[0].weight.mul_(0.5)
            made.optimizer.param_groups[0]["momentum"] = 0.5

    monkeypatch.setattr(Sgd, "writes_alike", rule)
    assert notes(loop(writes_alike=session, after=after)).keys() == found


def test_steps_are_counted_on_in_a_resumed_attempt(loop: Callable[..., Loop]) -> None:
    first = loop()
    assert notes(first) == {}
    again = loop()
    again.ledger.restore(first.ledger.state())
    assert notes(again) == {} and again.ledger.facts().steps == 2 * STEPS


def evaluated(made: Loop, _: int) -> None:
    made.parts.model.eval()
    with torch.no_grad():
        made.parts.loss(made.parts.model(batch(5)[0]), batch(5)[1])
    made.parts.model.train()


def test_evaluations_casts_and_overflows_contradict_nothing(loop: Callable[..., Loop]) -> None:
    assert notes(loop(after=evaluated)) == {}
    wide = loop(fed=lambda _, batches: [(inputs.bfloat16(), targets.clone()) for inputs, targets in batches])
    wide.parts.model.to(torch.bfloat16)
    assert notes(wide) == {}
    joined = loop(fed=lambda _, batches: [tuple(map(torch.cat, zip(*batches, strict=True)))])
    assert notes(joined) == {}, "an engine that runs two micro-batches in one pass"
    assert notes(loop(fed=lambda _, batches: [part for x, y in batches for part in ((x[:3], y[:3]), (x[3:], y[3:]))])
                 ) == {}, "and one that cuts them"
    auto = torch.autocast("cpu", torch.bfloat16)
    assert notes(loop(precision=Bf16Autocast(), context=lambda _: auto)) == {}
    assert notes(loop(precision=Fp16Autocast(), context=lambda _: torch.autocast("cpu", torch.float16),
                      updates=lambda step: int(step not in (0, 5)))) == {}, "a step whose gradients overflowed"


def test_what_replaces_the_call_of_a_model_is_called_and_left_alone(loop: Callable[..., Loop]) -> None:
    """A compiled model brings its own call; a copy of a watched model is not watched, and computes with its weights."""
    made, calls = loop(), list[int]()
    model = made.parts.model
    made.ledger.close()
    assert model._compiled_call_impl is None

    def compiled(inputs: torch.Tensor) -> torch.Tensor:
        calls.append(len(inputs))
        return model._call_impl(inputs)  # type: ignore[no-any-return]

    model._compiled_call_impl = compiled
    made.ledger.attach()
    assert notes(made) == {} and calls == [SIZE] * (2 * STEPS + 1), "two micro-batches a step, and the warm-up"
    other = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.zero_()
    assert not other.eval()(batch(1)[0]).any() and len(calls) == 2 * STEPS + 1
    made.ledger.close()
    assert model._compiled_call_impl is compiled


@pytest.mark.parametrize("register", [torch.nn.Module.register_forward_pre_hook,
                                      lambda _, hook: torch.nn.modules.module.register_module_forward_pre_hook(hook)],
                         ids=["of the model", "of all modules"])
def test_hooks_of_others_before_the_model_are_seen_through(loop: Callable[..., Loop], register: Callable[..., Any]
                                                           ) -> None:
    """They come and go during the trial, and change inputs, or modes until the model returns."""
    def hooked(change: Callable[[torch.Tensor], Any]) -> dict[str, LedgerNote]:
        made = loop()
        model, handles = made.parts.model, list[Any]()
        after = model.register_forward_hook(lambda *_: torch.set_autocast_enabled("cpu", False))

        def before(made: Loop, step: int) -> None:
            if step in (3, 9):
                handles.append(register(model, lambda module, args: change(args[0]) if module is model else None))
            if step == 6:
                handles[0].remove()

        made.before = before
        try:
            return notes(made)
        finally:
            for handle in (after, *handles):
                handle.remove()

    assert hooked(lambda inputs: None) == {}
    assert hooked(lambda inputs: inputs * 2)["inputs"].step == 3
    auto = hooked(lambda _: torch.set_autocast_enabled("cpu", True))["autocast"]
    assert (auto.step, auto.times) == (3, 12)


def test_a_model_that_its_engine_compiles_is_watched(loop: Callable[..., Loop]) -> None:
    made = loop()
    made.parts.model._compiled_call_impl = made.parts.model._call_impl  # as `Module.compile` does
    assert notes(made) == {} and made.ledger.facts().forwarded == STEPS * 16


def test_frozen_layers_that_never_train_are_the_models_own(loop: Callable[..., Loop]) -> None:
    class Frozen(torch.nn.Dropout):
        def train(self, mode: bool = True) -> Frozen:
            return super().train(False)

    parts = parts_of()
    parts.model[1] = Frozen()  # type: ignore[index]  # a Sequential
    made = loop()
    ledger = TrainingLedger(parts, job_of(Sgd(lr=0.1)), Streams(7, 0))
    try:
        parts.model.train()
        made = Loop(parts, ledger)
        assert notes(made) == {}
    finally:
        ledger.close()


def other(step: int, batches: list[Batch], at: int = 4) -> list[Batch]:
    return [batch(1000 + step), *batches[1:]] if step >= at else batches


def train_outside(made: Loop, step: int) -> None:
    if step == 6:
        made.train([batch(3)])


def work_deferred(made: Loop, step: int) -> None:
    """The backward pass of a loss that a compared step has computed runs after it."""
    if made.held is not None:
        made.held.backward()
        made.held = None


def sleeping(made: Loop, step: int) -> None:
    if step == 5:
        made.parts.model[1].eval()  # type: ignore[index]


@pytest.mark.parametrize(("changes", "kind", "step", "times", "words"), [
    ({"fed": lambda _, batches: [(x[:4], y[:4]) for x, y in batches]}, "samples", 0, STEPS, "some are left out"),
    ({"fed": lambda _, batches: [(x[:4], y[:4]) for x, y in batches]}, "loss", 0, STEPS, "8 samples and not of the 16"),
    ({"fed": lambda step, batches: batches * 2 if step == 3 else batches}, "samples", 3, 1, "more than once"),
    ({"fed": other}, "inputs", 4, 8, "saw other inputs than were dealt, first seen in step 5"),
    ({"fed": other}, "targets", 4, 8, "saw other targets than were dealt"),
    ({"fed": lambda _, found: [(2 * x, y) for x, y in found]}, "inputs", 0, 16, "they are 2 times the dealt ones"),
    ({"fed": lambda _, found: [(x.bfloat16().float(), y) for x, y in found]}, "inputs", 0, 16, "to bfloat16"),
    ({"fed": lambda _, found: [(x.flip(0), y) for x, y in found]}, "inputs", 0, 16, "the same, in another order"),
    ({"fed": lambda _, found: [(x, y.roll(1)) for x, y in found]}, "targets", 0, 16, "others, or changed"),
    ({"fed": lambda _, found: [(x[[0, *range(SIZE - 1)]], y) for x, y in found]}, "inputs", 0, 16,
     "some of them twice"),
    ({"fed": lambda _, found: [(torch.cat([x[:-1], x[:1] + 1]), y) for x, y in found]}, "inputs", 0, 16,
     "1 of 8 samples in this step are others, or changed"),
    ({"fed": lambda step, found: other(step, found, STEPS - 1)}, "inputs", STEPS - 1, 1, "first seen in step 12"),
    ({"fed": lambda step, found: [tuple(map(torch.cat, zip(*other(step, found), strict=True)))]}, "inputs", 4, 5,
     "saw other inputs"),
    ({"after": train_outside}, "outside", 6, 1, "trained outside the timed steps, first after step 7"),
    ({"after": train_outside}, "update outside", 6, 1, "the optimizer stepped outside"),
    ({"after": work_deferred, "deferring": 7}, "backward", 7, 1, "gradients were computed outside"),
    ({"before": sleeping}, "flags", 5, 4, "1 layers were in evaluation mode and not 0"),
    ({"context": lambda _: torch.autocast("cpu", torch.bfloat16)}, "autocast", 0, 2 * STEPS, "autocast was 1, not 0"),
    ({"updates": lambda step: int(step != 4)}, "updates", 4, 1, "stepped 0 times and not 1, as usual"),
    ({"updates": lambda step: 2 if step == 4 else 1}, "updates", 4, 1, "stepped 2 times"),
    ({"rate": lambda step: RATES[step] * 1.01}, "rate", 0, STEPS, ": 1.01 times it"),
    ({"rate": lambda step: RATES[max(0, step - 1)]}, "rate", 1, STEPS - 1, ": that of the step before"),
    ({"rate": lambda _: RATES[0]}, "rate", 1, STEPS - 1, ": that of the first step, which the schedule does not reach"),
    ({"rate": lambda step: 0.0 if step == 6 else RATES[step]}, "rate", 6, 1, ": the update changes nothing"),
])
def test_each_defect_is_found_with_its_step_and_its_cause(
    loop: Callable[..., Loop], changes: dict[str, Any], kind: str, step: int, times: int, words: str
) -> None:
    made = loop(**changes)
    found = notes(made)[kind]
    assert (found.step, found.times) == (step, times), found
    told, = (item.words for item in find_contradictions([made.ledger.facts()]) if item.what == kind)
    assert words in told and told.startswith("rank 0: ")


def test_few_steps_of_a_doubling_are_drawn_and_the_weights_are_held_after_one(loop: Callable[..., Loop]) -> None:
    ledger = loop().ledger
    assert ledger.begin_block(0, FIRST_WATCHED - 2) == (set(), set()), "the gate compares these"
    drawn, held = ledger.begin_block(FIRST_WATCHED - 1, 16 * FIRST_WATCHED - 2)
    for begin, count in ((FIRST_WATCHED, 1), (2 * FIRST_WATCHED, 2), (4 * FIRST_WATCHED, 3), (8 * FIRST_WATCHED, 3)):
        doubling = {*range(begin - 1, 2 * begin - 1)}
        assert len({*drawn} & doubling) == count and len({*held} & doubling) == 1
    assert {*held} < {*drawn} < {*range(FIRST_WATCHED - 1, 16 * FIRST_WATCHED - 1)}
    assert {*ledger.begin_block(FIRST_WATCHED - 1, 2 * FIRST_WATCHED - 2)[0]} < {*drawn}, "a block draws no others"


@pytest.mark.parametrize(("change", "words"), [
    (lambda x, y: (x, y), ""), (lambda x, y: (x, y.roll(1)), "other targets than the workload gives, and the right in"),
    (lambda x, y: (x + 1, y), "other inputs than the workload gives, and the right targets"),
    (lambda x, y: (x.flip(0), y.flip(0)), "other samples than the workload gives, or changed ones")])
def test_batches_that_are_read_again_are_named_by_what_differs(
    loop: Callable[..., Loop], change: Callable[..., Batch], words: str
) -> None:
    made = loop()
    made.run()
    made.ledger.read_again(lambda _, number: change(*batch(number)), lambda step: (0, [10 * step, 10 * step + 1]))
    told = [item.words for item in find_contradictions([made.ledger.facts()])]
    assert len(told) == bool(words) and words in "".join(told)


def test_a_score_is_that_of_one_rank_only_if_it_is_like_nothing_else() -> None:
    class OfTwo:
        def gather(self, mine: tuple[float, int]) -> list[tuple[float, int]]:
            return [mine, (30.0, 50)]

        def total(self, values: list[float]) -> list[float]:
            return [2 * value for value in values]

    def like(reported: float, training: float = 0.0) -> str:
        return like_score(cast("Session", OfTwo()), reported, (40.0, 50), {"training": (training, 50)}, 100)

    assert (like(0.6), like(0.6, 30.0), like(0.7)) == ("rank 1", "training", "")


def test_inputs_are_unlike_in_their_first_tensor_that_differs() -> None:
    inputs, targets = batch(3)
    mask, ids = torch.ones(SIZE, 2), torch.arange(SIZE * 3).reshape(SIZE, 3)
    assert unlike([inputs[:, :3]], [inputs]).cause == "shape" and unlike([], [inputs]) == Unlike()
    assert unlike([(ids, mask.clone().fill_diagonal_(0))], [(ids, mask)]) == Unlike("some", 2, SIZE)
    assert unlike([targets * 0], [targets]).cause == "some", "labels repeat, so other ones fit by chance"


def test_the_cause_of_two_unlike_notes_is_not_that_of_either(loop: Callable[..., Loop]) -> None:
    def fed(step: int, batches: list[Batch]) -> list[Batch]:
        return [((2 * x if step else x.flip(0)), y) for x, y in batches]

    made = loop(fed=fed)
    assert notes(made)["inputs"].cause == ""


def test_a_scaled_loss_may_overflow_in_a_fused_kernel(loop: Callable[..., Loop]) -> None:
    for precision, found in ((Fp16Autocast(), False), (Fp32(), True)):
        made = loop(precision, context=lambda _: torch.autocast("cpu", torch.float16, enabled=False))
        made.optimizer = torch.optim.AdamW(made.parts.model.parameters())
        made.ledger.watch(cast("Any", made))
        made.after = lambda made, step: [
            state["step"].data.fill_(step) for state in made.optimizer.state.values()]  # one less than the updates
        assert ("counted" in notes(made)) == found
        made.ledger.close()


@pytest.mark.parametrize("changed", [0, 4])
def test_a_count_of_steps_that_is_changed_is_found(loop: Callable[..., Loop], changed: int) -> None:
    made = loop()
    made.optimizer = torch.optim.AdamW(made.parts.model.parameters())
    made.ledger.watch(cast("Any", made))

    def after(made: Loop, step: int) -> None:
        for state in made.optimizer.state.values():
            state["step"].data.fill_(1.0 + step if not changed or step < 4 else step + 1.0 - changed)

    made.after = after
    assert ("counted" in notes(made)) == bool(changed)
    told = [item.words for item in find_contradictions([made.ledger.facts()])]
    words = "rank 0: what the optimizer keeps counts 8 steps, and it took 12: it was replaced or changed"
    assert told == [words] * bool(changed)


@pytest.mark.parametrize(("place", "kind"), [(0, "inputs"), (1, "targets")])
def test_an_engine_that_writes_into_the_dealt_batches_is_found(
    loop: Callable[..., Loop], place: int, kind: str
) -> None:
    def emptied(step: int, batches: list[Batch]) -> list[Batch]:
        for batch in batches:
            if step >= 4:
                batch[place].mul_(0)
        return batches

    found = notes(loop(fed=emptied))
    assert set(found) == {kind} and found[kind].step == 4


def test_a_model_that_writes_into_its_own_input_is_not_accused(loop: Callable[..., Loop]) -> None:
    made = loop()
    made.parts.model[0].register_forward_pre_hook(lambda _, args: (args[0].mul_(1.0),))
    assert notes(made) == {}


def test_a_model_that_writes_into_a_copy_of_its_input_is_not_accused(loop: Callable[..., Loop]) -> None:
    made = loop(fed=lambda step, batches: [(inputs.clone(), targets) for inputs, targets in batches])
    made.parts.model[0].register_forward_pre_hook(lambda _, args: (args[0].mul_(0.5),))
    assert notes(made) == {} and made.ledger.facts().compared == 0


def test_an_engine_that_calls_neither_model_nor_loss_is_not_judged_by_them(loop: Callable[..., Loop]) -> None:
    made = loop()
    made.train = lambda batches, rate=None: torch.zeros(())  # type: ignore[method-assign]
    assert notes(made) == {}
    assert made.ledger.facts().forwarded == 0


def test_data_that_are_read_before_the_clock_runs_are_a_note(loop: Callable[..., Loop]) -> None:
    early = loop()
    assert early.parts.open_data() == "sha"
    assert [note.kind for note in early.ledger.facts().notes] == ["data"]
    right = loop()
    within = right.parts.train_batch
    right.parts.train_batch = lambda epoch, indices: within(epoch, indices)  # an engine's own, around it
    right.ledger.open_data()
    right.parts.open_data()
    right.parts.train_batch(0, np.arange(3))
    assert right.ledger.facts().notes == ()


def test_evaluation_samples_are_read_outside_the_steps(loop: Callable[..., Loop]) -> None:
    read = np.arange(3)
    assert notes(loop(after=lambda made, _: made.parts.eval_batch(read))) == {}
    made = loop(rate=lambda step: RATES[step] if made.parts.eval_batch(read) or step else 0)
    found = notes(made)
    assert found.keys() == {"evaluation data"} and found["evaluation data"].times == STEPS


def test_weights_that_change_between_two_steps_or_differ_between_ranks_are_notes(loop: Callable[..., Loop]) -> None:
    held = [[Held("a", np.arange(4, dtype=np.float32))], [Held("a", np.arange(4, dtype=np.float32) + 1)]]
    made = loop()
    made.ledger.hold(held[0])
    made.ledger.hold(held[0])
    assert not made.ledger.facts().notes and not made.ledger.is_watching
    made.ledger.hold(held[0])
    made.ledger.hold(held[1])
    assert [note.kind for note in made.ledger.facts().notes] == ["moved"]
    other = loop()
    other.ledger.hold(held[1])
    told = find_contradictions([made.ledger.facts(), other.ledger.facts()])
    assert [(item.what, item.rank) for item in told] == [("moved", 0), ("ranks", 1)]


def test_a_later_attempt_goes_on_with_the_ledger_of_the_first(loop: Callable[..., Loop]) -> None:
    first = loop(fed=other)
    before = notes(first)
    second = loop()
    second.ledger.restore(first.ledger.state())
    assert {note.kind: note for note in second.ledger.facts().notes} == before
    second.run()
    assert second.ledger.facts().steps == 2 * STEPS


def test_the_first_rank_and_step_are_named() -> None:
    def ledger(*found: LedgerNote) -> RankLedger:
        return RankLedger(steps=9, forwarded=9, losses=9, compared=1, updates=1, notes=found)

    late, early = (LedgerNote(kind="inputs", step=step, times=1) for step in (5, 2))
    assert [(item.rank, item.step) for item in find_contradictions([ledger(late), ledger(early)])] == [(1, 3)]
    assert find_contradictions([ledger(), ledger()]) == []


def test_ranks_that_draw_the_same_masks_are_found_and_models_that_draw_none_are_not() -> None:
    def ledger(drawn: str, parts: str = "a") -> RankLedger:
        held = WeightsAt(step=70, parts=parts, values="v", drawn=drawn)
        return RankLedger(steps=99, forwarded=9, losses=9, compared=1, updates=1, weights=(held,))

    assert find_contradictions([ledger("1"), ledger("2")]) == find_contradictions([ledger(""), ledger("")]) == []
    found, = find_contradictions([ledger("1", "a"), ledger("1", "b")])
    assert found.words == ("rank 1: it drew the same random numbers as another rank, first in step 71: dropout masks "
                           "are not its own")


# ---- the steps after the trial


def judged(apart: float, ratio: float = 1.0, what: Any = "gradient", **changes: Any) -> list[str]:
    """Words about the second step after a trial on four processes with two micro-batches; the first one was right."""
    choices: Any = SimpleNamespace(
        precision=SimpleNamespace(get=lambda _: changes.get("precision", Fp32())), device=changes.get("device", "cpu"),
        compression=changes.get("compression", "none"), processes=4, batch=SimpleNamespace(accumulation=2),
        optimizer=SimpleNamespace(get=lambda _: Sgd(lr=0.1)),
        engine=SimpleNamespace(get=lambda _: changes.get("engine", Ddp())),
        workload=SimpleNamespace(get=lambda _: SimpleNamespace(ranges={"top1": (0.0, 1.0)})))
    name = "" if what == "loss" else "0.weight"
    named = {key: changes[key] for key in ("like", "shares", "until", "differing", "differ") if key in changes}
    steps = [StepAgain(number=number, apart=(Apart(what=what, name=name, apart=size, ratio=ratio, **named),),
                       place=changes.get("place")) for number, size in ((1, 6e-8), (2, apart))]
    again = StepsAgain(updates=True, steps=tuple(steps), scores=changes.get("scores", ()))
    return [item.words for item in find_other_steps(choices, again)]


def test_rounding_is_no_other_step_and_nothing_is_judged_without_one() -> None:
    choices: Any = SimpleNamespace(precision=SimpleNamespace(get=lambda _: Fp32()), compression="none", device="cpu",
                                   optimizer=SimpleNamespace(get=lambda _: Sgd(lr=0.1)),
                                   engine=SimpleNamespace(get=lambda _: Ddp()))
    assert judged(6e-8) == judged(0.004, compression="bf16") == judged(6e-8, precision=Bf16Autocast()) == []
    assert judged(0.002, precision=Bf16Autocast(), device="cuda") == [], "another kernel of the device"
    assert judged(0.002, engine=DeepSpeedZero(stage=3, quantized="weights")) == [], "ZeRO++ sends 8 or 4 bits"
    factors = Ddp(sufficient_factors="all")
    assert judged(0.0015, engine=factors, precision=Bf16Autocast()) == [], "their product is not rounded to bfloat16"
    assert judged(0.0015, engine=factors) != [], "in float32 it is the usual one"
    assert judged(0.002, what="update", compression="bf16") != [], "an update is made in float32"
    assert find_other_steps(choices, None) == find_other_steps(choices, StepsAgain(problem="x")) == []


GRADIENT = [
    (1.0, 0.0, "it is not trained"),
    (3.0, 4.0, "it is summed over the ranks and not averaged"),
    (1.0, 2.0, "it is summed over the micro-batches and not averaged"),
    (0.75, 0.25, "it is averaged over the ranks twice"),
    (0.5, 0.5, "it is averaged over the micro-batches twice"),
    (0.1, 0.9, "0.9 times it"),
    (0.002, 1.0001, NO_FACTOR),
    (0.51, 0.84, NO_FACTOR),
]
UPDATE = [
    (1.0, 2.0, "2 times it: another rate, dampening, decay or limit of clipping"),
    (1.0, 0.0, "it is not trained"),
    (0.002, 1.0001, UPDATE_CAUSE), (1.371, -0.3714, UPDATE_CAUSE),
]


@pytest.mark.parametrize(("what", "apart", "ratio", "cause"), [
    *(("gradient", *row) for row in GRADIENT), *(("update", *row) for row in UPDATE)])
def test_another_step_is_named_with_its_tensor_and_its_likely_cause(
    what: str, apart: float, ratio: float, cause: str
) -> None:
    told, = judged(apart, ratio, what)
    assert told.startswith(f"in step 2 after the trial the {what} of '0.weight' differs by {apart:.2g} of its norm "
                           f"from the harness's own (limit 0.0001): {cause}")


CHANGED: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "decayed": lambda ours, weights: ours + 0.01 * weights,
    "bfloat16": lambda ours, _: torch.from_numpy(ours).bfloat16().float().numpy(),
    "centred": lambda ours, _: ours - ours.mean(axis=1, keepdims=True),
    "cut": lambda ours, _: ours.clip(-0.5, 0.5), "thinned": lambda ours, _: np.where(abs(ours) > 0.5, ours, 0),
    "": lambda ours, weights: ours + 0.1 * np.roll(weights, 1), "zero": lambda ours, _: 0 * ours,
}


@pytest.mark.parametrize("change", CHANGED)
def test_a_changed_tensor_is_named_like_its_change(change: str) -> None:
    ours, weights = np.random.default_rng(3).normal(size=(2, 8, 6)).astype(np.float32)
    theirs, worst = CHANGED[change](ours, weights), Worst("gradient")
    assert not worst.add("right", ours, ours) and worst.add("other", theirs, ours)
    worst.could_be("other", theirs, changed(theirs, ours, weights))
    found, = worst.found()
    assert (found.name, found.like) == ("other", "" if change == "zero" else change)


def test_a_tensor_of_few_numbers_is_like_nothing_by_chance() -> None:
    ours, weights, worst = np.array([0.3]), np.array([0.7]), Worst("gradient")
    assert worst.add("bias", 2 * ours, ours)
    worst.could_be("bias", 2 * ours, changed(2 * ours, ours, weights))
    assert worst.found()[0].like == ""


def test_another_mean_of_the_parts_is_named_with_its_shares() -> None:
    worst, parts = Worst("gradient"), np.random.default_rng(3).normal(size=(4, 8, 6)).astype(np.float32)
    theirs = parts[0] + 0.5 * parts[1] + parts[2] + 2 * parts[3]
    assert worst.add("first", theirs, parts.sum(axis=0)) and not worst.add("last", parts[0], parts[0])
    worst.could_be("first", theirs, changed(theirs, parts.sum(axis=0), parts[0]))
    worst.could_be_of(theirs, [*parts])
    found, = worst.found()
    assert (found.like, found.shares, found.until) == ("parts", (1.0, 0.5, 1.0, 2.0), "first")
    words, = judged(0.3, like="parts", shares=2 * found.shares)
    assert "which count so many times: 1 (rank 0), 0.5 (rank 0, last micro-batch), 1 (rank 1), 2 (rank 1" in words
    assert " (right: all gradients after that of 'first'), or" in judged(0.3, until="first")[0]


def test_tensors_with_factors_of_their_own_are_told_from_one_factor() -> None:
    arrays = np.random.default_rng(4).normal(size=(3, 8, 6)).astype(np.float32)
    for factors, like, shares in (((2.0, 2.0, 2.0), "", ()), ((2.0, 1.0, 1.0), "multiples", (1.0, 2.0)),
                                  ((0.5, 0.25, 1.0), "multiples", (0.25, 1.0))):
        worst = Worst("gradient")
        for place, (factor, array) in enumerate(zip(factors, arrays, strict=True)):
            if worst.add(str(place), factor * array, array):
                worst.could_be(str(place), factor * array, changed(factor * array, array, arrays[0] + 1))
                worst.could_be_multiple(str(place), "multiples", factor * array, array)
        found, = worst.found()
        assert (found.like, found.shares) == (like, shares), found
        count = sum(factor != 1 for factor in factors)
        assert (found.differ, len(found.differing)) == (count % 3, count % 3)
    words, = judged(1.0, ratio=2.0, like="multiples", shares=(1.0, 2.0), differing=("0.weight",), differ=1)
    assert "summed over the micro-batches" in words
    assert words.endswith("from 1 to 2 times; only in '0.weight'; since which step is not known")


def test_a_layer_that_differs_is_the_cause_where_no_factor_or_likeness_is_known() -> None:
    place = Place(at="backward", layer="6", kind="ReLU")
    assert "back-propagation through layer '6' (ReLU) is the first" in judged(0.3, place=place)[0]
    assert "summed over the ranks" in judged(3.0, ratio=4.0, place=place)[0]
    assert "rank 1 alone" in judged(0.3, like="rank 1", place=place)[0]
    masks = Place(at="output", layer="7", kind="Dropout")
    assert "the output of layer '7' (Dropout)" in judged(0.3, what="loss", like="masks", place=masks)[0]


SGD, ADAM = Sgd(lr=0.1, momentum=0.9, weight_decay=0.1), AdamW(lr=0.1, weight_decay=0.1)


@pytest.mark.parametrize(("like", "asked", "ran"), [
    ("", SGD, {}), ("nesterov", SGD, {"nesterov": True}), ("decayed", SGD, {"weight_decay": 0.0}),
    ("forgotten", SGD, None), ("unclipped", SGD, {"clip": None}), ("narrow", SGD, {"rounds": True}),
    ("gradient", SGD, {"clip": 0.5}), ("gradients", SGD, {"each": True}), ("momentum 0.7", SGD, {"momentum": 0.7}),
    ("", ADAM, {}), ("eps 0.01", ADAM, {"eps": 0.01}), ("betas[0] 0.6", ADAM, {"betas": (0.6, 0.999)}),
    ("betas[1] 0.95", ADAM, {"betas": (0.9, 0.95)}), ("gradient_clip 10", ADAM, {"clip": 10.0}),
    ("limit of each number of the gradient 1", SGD, {"cut": 1.0}), ("left out", SGD, {"at": 0.0}),
    ("limit of each number of the gradient 1", ADAM, {"cut": 1.0}), ("rounded", SGD, {"narrow": True}),
    ("frozen exp_avg_sq", ADAM, {"frozen": True}),
    ("coupled", ADAM, {"rule": "torch.optim:Adam"}), ("uncorrected", ADAM, {"late": True})])
def test_an_update_of_another_rule_is_named_like_that_rule(
    like: str, asked: Optimizer, ran: dict[str, Any] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_rule, "SECONDS", 600.0)  # of a search, on a busy machine
    options = {"clip": 1.0} | (ran or {})
    clip, each, late = options.pop("clip"), options.pop("each", False), options.pop("late", False)
    rounds, name, cut, at = (options.pop(key, usual) for key, usual in (
        ("rounds", False), ("rule", None), ("cut", None), ("at", 0.1)))
    narrow, frozen = options.pop("narrow", False), options.pop("frozen", False)
    torch.manual_seed(2)
    theirs = {name: torch.nn.Parameter(item.detach().clone())
              for name, item in torch.nn.Linear(6, 8).named_parameters()}
    rule = (Adam(**dict(asked)) if name else asked.model_copy(update=options)).build([*theirs.items()])
    own = OwnRule(job_of(asked), 1.0, {name: item.detach().numpy().copy() for name, item in theirs.items()})
    draw = np.random.default_rng(3)
    for step in range(3):
        if ran is None:
            rule.state.clear()
        weights = {name: item.detach().numpy().copy() for name, item in theirs.items()}
        # Another size in each step, so that a limit of clipping is no factor of all.
        gradients = {name: (step + 1) * draw.normal(size=array.shape).astype(np.float32)
                     for name, array in weights.items()}
        for name, item in theirs.items():
            item.grad = torch.from_numpy(gradients[name].copy())
            if cut:
                item.grad.clamp_(-cut, cut)
        rule.param_groups[0]["lr"] = at
        if clip:
            for items in [[item] for item in theirs.values()] if each else [theirs.values()]:
                torch.nn.utils.clip_grad_norm_(items, clip)
        for state in rule.state.values() if late and step else ():
            state["step"].fill_(1e9)
        rule.step()
        for state in rule.state.values():
            if frozen:
                state["exp_avg_sq"].zero_()
            if narrow:
                state["momentum_buffer"].copy_(state["momentum_buffer"].bfloat16())
        after = {name: (item.bfloat16().float() if rounds else item).detach().numpy() for name, item in theirs.items()}
        found, = own.compare(weights, gradients, after, 0.1)
        if found.apart > 1e-4:
            break
    told = " ".join([found.option, *(f"{share:.2g}" for share in found.shares)]) if found.option else found.like
    told = f"frozen {told}" if found.like == "frozen" else told
    assert told == like and (found.apart > 1e-4) == bool(like)


@pytest.mark.parametrize(("dropout", "ran", "like"), [
    (0.5, "evaluation", "evaluation"), (0.0, "bfloat16", "bfloat16"), (0.5, "masks", "masks"), (0.0, "samples", "")])
def test_a_loss_of_another_mode_or_type_is_named_like_it(dropout: float, ran: str, like: str) -> None:
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Dropout(dropout), torch.nn.Linear(64, 8))
    inputs, targets = torch.randn(16, 64), torch.randint(8, (16,))
    own: Any = SimpleNamespace(
        job=SimpleNamespace(device="cpu"), session=SimpleNamespace(gather=lambda item: [item]), model=SimpleNamespace(
            model=model, load=lambda *_: None, functions=SimpleNamespace(loss=torch.nn.functional.cross_entropy),
            numerics=SimpleNamespace(autocast=nullcontext, inputs=lambda item: item, outputs=torch.Tensor.float)))
    own._other_losses = OwnStep._other_losses.__get__(own)
    own.model.loss = OwnModel.loss.__get__(own.model)

    def loss(seed: int = 7, **changes: Any) -> float:
        torch.manual_seed(seed)
        model.train(changes.get("training", True))
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=changes.get("narrow", False)):
            outputs = model(changes.get("inputs", inputs)).float()
        return float(torch.nn.functional.cross_entropy(outputs, targets))

    theirs = {"evaluation": loss(training=False), "bfloat16": loss(narrow=True), "masks": loss(seed=8),
              "samples": loss(inputs=inputs.flip(0))}
    begun: Any = SimpleNamespace(weights={}, buffers={}, batches=[(inputs, targets)],
                                 reseed=lambda: torch.manual_seed(7))
    assert OwnStep._like_loss(own, begun, [(theirs[ran], loss())]) == like


def test_a_loss_and_a_score_have_their_words() -> None:
    told, = judged(0.01, what="loss")
    assert told.startswith("in step 2 after the trial the loss differs by 0.01 from the harness's own (limit 0.0001): "
                           "the forward pass is another one (a layer, something random, the loss), or it is of other "
                           "samples, or the model keeps state beside")
    one_off = ScoreAgain(metric="top1", samples=100, reported=0.91, own=0.9)
    assert judged(0.0, scores=(one_off,)) == [], "a sample may round to the other side"
    begin = "an evaluation after the trial found top1 0.93, and the harness 0.9 with the weights that were trained: "
    for changes, cause in (({}, "of other samples, other weights or another function"),
                           ({"counted": 104}, "it counted 104 samples and not 100"),
                           ({"like": "rank 1", "counted": 100}, "it is that of rank 1 alone, or equals it by chance"),
                           ({"like": "before"}, "it is that of the weights before the last step")):
        other = one_off.model_copy(update={"reported": 0.93} | changes)
        assert judged(0.0, scores=(other,)) == [begin + cause]
    moved, = judged(0.0, scores=(one_off.model_copy(update={"moved": "0.weight"}),))
    assert "changed the weights, the first of them '0.weight'" in moved
