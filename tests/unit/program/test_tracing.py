"""`watch.trace` in a loop of this process: what it records, what it leaves, and what the gate says of two loops."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from repro import watch
from repro.callbacks.tracing import _fed
from repro.core.errors import OutputError, ParityError
from repro.program.gate.causes import other_input, other_loss
from repro.program.gate.judge import Difference, Intended, _by_position, culprit, judge
from repro.program.gate.sight import repeats, sight_of
from repro.program.gate.trace import Trace, read_folder, read_trace, read_zip, write_zip


class Decaying(torch.optim.SGD):
    """Decays weights by 0.1 without stating it."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        with torch.no_grad():
            for group in self.param_groups:
                for param in group["params"]:
                    param.mul_(1 - 0.1 * group["lr"])
        super().step(closure)


@dataclass
class Loop:
    """A loop over five fixed batches."""

    folder: Path
    monkeypatch: pytest.MonkeyPatch
    starts: list[int] = field(default_factory=list)

    def __call__(
        self, rule: type[torch.optim.Optimizer] = torch.optim.SGD, *, steps: tuple[int, ...] = (1, 2, 3),
        ulp: float = 0, rate: float = 0.1, scaler: Any = None,
        between: Callable[[nn.Module, int], None] = lambda net, step: None,
        build: Callable[[], nn.Module] = lambda: nn.Sequential(
            nn.Linear(6, 12), nn.Tanh(), nn.Dropout(0.5), nn.Linear(12, 3)),
        groups: Callable[[nn.Module], Any] = lambda net: net.parameters(), rows: int = 4,
        noise: Callable[[torch.Tensor], torch.Tensor] = lambda loss: loss, clears: bool = True, turned: bool = False,
    ) -> dict[str, bytes]:
        self.starts.append(1)
        folder = self.folder / str(len(self.starts))
        folder.mkdir()
        torch.manual_seed(1)
        net = build()
        optimizer = rule(groups(net), lr=rate)  # type: ignore[call-arg]
        self.monkeypatch.setenv(watch.TRACE, json.dumps({"folder": str(folder), "steps": steps, "ulp": ulp}))
        watch.trace(net, optimizer, scaler)
        for step in range(1, 8):
            inputs = torch.randn(rows, 6, generator=torch.Generator().manual_seed(step))
            loss = noise((net(inputs.T if turned else inputs) ** 2).mean())
            if scaler is not None:
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
            else:
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
            if clears:
                optimizer.zero_grad()
            between(net, step)
        return read_folder(folder)

    def trace(self, *arguments: Any, **named: Any) -> Trace:
        return read_trace(self(*arguments, **named))


@pytest.fixture
def loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Loop:
    return Loop(tmp_path, monkeypatch)


def found(loop: Loop, ours: Trace, reference: Trace, **how: Any) -> Difference | None:
    null = loop.trace(ulp=reference.width, **how)
    return culprit(judge(ours, reference, sight_of(ours, reference, [(reference, null)]), Intended(1)))


def test_the_steps_asked_for_are_recorded_and_no_hook_stays(loop: Loop) -> None:
    backward = torch.autograd.backward
    trace = loop.trace(steps=(1, 2, 5))
    assert [step.number for step in trace.steps] == [1, 2, 5]
    assert torch.autograd.backward is backward
    assert trace.header.dropout == {"2": 0.5} and trace.header.wrapper == "none"
    step = trace.steps[0]
    assert step.update.norm == pytest.approx(0.1 * step.gradient.norm, rel=1e-5)
    assert [sum(fed.values()) for fed in step.fed] == [4]


def test_two_runs_of_one_loop_are_equal_with_and_without_a_loss_scale(loop: Loop) -> None:
    reference = loop.trace()
    assert found(loop, loop.trace(), reference) is None
    assert found(loop, loop.trace(scaler=torch.amp.GradScaler("cpu", init_scale=1024.0)), reference) is None


def test_a_decay_that_no_setting_states_is_recognised_by_its_direction(loop: Loop) -> None:
    item = found(loop, loop.trace(Decaying), loop.trace())
    assert item is not None and item.check == "update" and item.step == 1
    assert "the decay is larger by 0.1 (Decaying ran, SGD in the reference)" in item.text


def test_weights_that_something_else_writes_are_seen_before_their_effect(loop: Loop) -> None:
    def average(net: nn.Module, step: int) -> None:
        if step == 1:
            with torch.no_grad():
                net[3].bias.add_(1e-3)  # type: ignore[index]

    item = found(loop, loop.trace(between=average), loop.trace())
    assert item is not None and (item.check, item.step, item.tensor) == ("weights", 2, "3.bias")


def test_training_that_multiplies_rounding_is_seen_up_to_a_stated_step(loop: Loop) -> None:
    wild = {"rate": 400.0}
    reference, null = loop.trace(**wild), loop.trace(ulp=0.01, **wild)
    sight = sight_of(reference, reference, [(reference, null)])
    assert 1 < sight.blind <= 3
    checks = judge(loop.trace(**wild), reference, sight, Intended(1))
    assert culprit(checks) is None


@pytest.mark.slow
def test_a_training_that_does_not_repeat_is_told_from_one_that_does(loop: Loop) -> None:
    dice = torch.Generator().manual_seed(9)  # goes on over the starts, as an unseeded one does
    wild = {"noise": lambda loss: loss * (0.2 + 1.6 * torch.rand((), generator=dice))}
    assert "has another loss in step 1" in repeats(loop.trace(**wild), loop.trace(**wild))
    assert repeats(loop.trace(), loop.trace()) == repeats(loop.trace(), loop.trace(ulp=1e-7)) == ""
    reference = loop.trace()
    sight = sight_of(reference, reference, [])
    sight.unrepeated = "the reference draws"
    assert culprit(judge(reference, reference, sight, Intended(1))).check == "repetition"  # type: ignore[union-attr]


def test_a_mask_with_infinities_and_a_computed_rate_are_no_difference(loop: Loop) -> None:
    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(6, 3)
            for name, value in (("mask", -math.inf), ("least", torch.finfo(torch.float32).min), ("far", 1e200)):
                self.register_buffer(name, torch.full((2, 2), value, dtype=torch.float64))
            self.register_buffer("few", torch.eye(3).to_sparse())

        @property
        def dropout(self) -> float:
            return 0.1

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            found: torch.Tensor = self.inner(inputs)
            return found

    reference = loop.trace(build=Masked)
    assert found(loop, loop.trace(build=Masked), reference, build=Masked) is None


@pytest.mark.slow
def test_settings_are_compared_tensor_by_tensor(loop: Loop) -> None:
    def grouped(last: int) -> Callable[[nn.Module], Any]:
        def of(net: nn.Module) -> Any:
            params = [*net.parameters()]
            return [{"params": params[:last], "weight_decay": 0.1}, {"params": params[last:], "weight_decay": 0.0}]
        return of

    reference = loop.trace(groups=grouped(2))
    assert found(loop, loop.trace(groups=grouped(2)), reference, groups=grouped(2)) is None
    item = found(loop, loop.trace(groups=grouped(3)), reference, groups=grouped(2))
    assert item is not None and (item.check, item.step) == ("rate", 1)
    assert "weight_decay is 0.1, the reference's 0 for 1 of 4 tensors, such as '3.weight'" in item.text


@pytest.mark.slow
def test_what_both_change_besides_updates_is_no_difference(loop: Loop) -> None:
    def clamp(net: nn.Module, step: int) -> None:
        with torch.no_grad():
            net[0].weight.clamp_(-0.1, 0.1)  # type: ignore[index]

    reference = loop.trace(between=clamp)
    assert found(loop, loop.trace(between=clamp), reference, between=clamp) is None
    item = found(loop, loop.trace(), reference, between=clamp)
    assert item is not None and item.check == "weights" and "not here, but in the reference" in item.text


@pytest.mark.slow
def test_a_buffer_and_a_frozen_weight_that_differ_are_named(loop: Loop) -> None:
    def build(mean: float = 0.0, weight: float = 1.0) -> Callable[[], nn.Module]:
        def of() -> nn.Module:
            net = nn.Sequential(nn.Linear(6, 12), nn.BatchNorm1d(12), nn.Linear(12, 3))
            net[1].running_mean += mean
            net[1].weight.requires_grad_(False).mul_(weight)
            return net
        return of

    reference = loop.trace(build=build())
    assert found(loop, loop.trace(build=build()), reference, build=build()) is None
    for other, words in (({"mean": 0.5}, "the buffer '1.running_mean'"),
                         ({"weight": 2.0}, "frozen weights '1.weight'")):
        item = found(loop, loop.trace(build=build(**other)), reference, build=build())
        assert item is not None and item.check == "initial weights" and words in item.text


def test_rates_that_layers_hand_to_functions_are_set_to_0(loop: Loop) -> None:
    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.MultiheadAttention(6, 2, dropout=0.3, batch_first=True)
            self.dropout = 0.2

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            mixed: torch.Tensor = self.inner(inputs[:, None], inputs[:, None], inputs[:, None])[0]
            return nn.functional.dropout(mixed, self.dropout, self.training)

    reference = loop.trace(build=Attention)
    assert reference.header.dropout == {"dropout": 0.2, "inner.dropout": 0.3} or \
        reference.header.dropout == {".dropout": 0.2, "inner.dropout": 0.3}
    assert found(loop, loop.trace(build=Attention), reference, build=Attention) is None


def test_a_large_batch_is_compared_whole(loop: Loop) -> None:
    assert [sum(fed.values()) for fed in loop.trace(rows=9000).steps[0].fed] == [9000]


def test_padding_that_a_mask_leaves_out_is_no_part_of_a_sample() -> None:
    tokens, mask = torch.tensor([[5, 6, 0], [7, 8, 9]]), torch.tensor([[1, 1, 0], [1, 1, 1]])
    together, _ = _fed((), {"input_ids": tokens, "attention_mask": mask})
    alone, _ = _fed((), {"input_ids": tokens[:1, :2], "attention_mask": mask[:1, :2]})
    assert together[0] == alone[0] != together[1]
    _fed((), {"input_ids": tokens, "attention_mask": mask.to(torch.bfloat16)})
    added = torch.tensor([[0.0, 0.0, -1e9], [0.0, 0.0, 0.0]])  # nothing is left out by its numbers
    first, second = (_fed((), {"input_ids": ids, "attention_mask": added})[0][0] for ids in (tokens, tokens + 1))
    assert first != second


def test_gradients_that_are_not_cleared_are_recognised(loop: Loop) -> None:
    item = found(loop, loop.trace(clears=False), loop.trace())
    assert item is not None and (item.check, item.step) == ("gradient", 2) and "zero_grad() was not called" in item.text


def test_a_training_that_changes_nothing_is_no_comparison(loop: Loop) -> None:
    item = found(loop, loop.trace(rate=0.0), loop.trace(rate=0.0), rate=0.0)
    assert item is not None and item.check == "repetition" and "nothing is compared" in item.text


def test_samples_in_another_dimension_are_not_taken_for_others(loop: Loop) -> None:
    class Turning(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(6, 3)

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            found: torch.Tensor = self.inner(inputs if inputs.shape[1] == 6 else inputs.T)
            return found

    reference = loop.trace(build=Turning)
    assert found(loop, loop.trace(build=Turning, turned=True), reference, build=Turning) is None


@pytest.mark.parametrize(("calls", "rows", "width", "expected"), [
    (2, 6, 4, True), (2, 6, 8, False), (1, 6, 8, False), (2, 3, 4, False)])
def test_rows_that_are_positions_are_not_compared(calls: int, rows: int, width: int, expected: bool) -> None:
    def step(calls: int, rows: int, width: int) -> Any:
        return SimpleNamespace(ranks=[SimpleNamespace(fed=[["a"] * rows] * calls, kinds=[f"int64 [{width}]"])])

    assert _by_position(step(calls, rows, width), step(1, 6, 8)) is expected


def fed_step(*ranks: str, loss: float = 1.0) -> Any:
    each = [SimpleNamespace(fed=[tuple(samples)], kinds=[], loss=[loss], scale=1.0, draws=False) for samples in ranks]
    return SimpleNamespace(ranks=each, fed=[Counter(samples) for samples in ranks], number=1, loss=loss)


@pytest.mark.parametrize(("ranks", "words"), [
    (("abcd", "wxyz"), "rank 1 shuffles by another order or seed than rank 0"),
    (("wxyz", "efgh"), "rank 0 shuffles by another order or seed than rank 1"),
    (("axyz", "ewvu"), "another order or seed of shuffling"), (("abcd", "efga"), "a sampler that pads or drops")])
def test_the_rank_with_another_order_is_named(ranks: tuple[str, ...], words: str) -> None:
    assert words in other_input(fed_step(*ranks), fed_step("abcdefgh"), [fed_step("abcdefgh")])


@pytest.mark.parametrize(("buffers", "share", "named"), [
    ({"1.running_mean": 0}, ("abcd", "efgh"), True), ({}, ("abcd", "efgh"), False),
    ({"1.running_mean": 0}, ("abcdefgh",), False)])
def test_batch_norm_over_other_shares_is_named(buffers: Any, share: tuple[str, ...], named: bool) -> None:
    facts: Any = SimpleNamespace(ours=SimpleNamespace(header=SimpleNamespace(untrained=buffers)), world=len(share))
    text = other_loss(facts, fed_step(*share, loss=1.1), fed_step("abcdefgh"))
    assert ("('1.running_mean'), 4 here and 8 in the reference" in text) is named


def test_a_function_that_draws_is_named(loop: Loop) -> None:
    class Drops(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.extra = nn.Linear(6, 3), 0

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            torch.rand(self.extra)
            return nn.functional.dropout(self.inner(inputs), 0.3)

    def other() -> nn.Module:
        net = Drops()
        net.extra = 1
        return net

    item = found(loop, loop.trace(build=other), loop.trace(build=Drops), build=Drops)
    assert item is not None and item.check == "loss" and "draws random numbers" in item.text


def test_sparse_gradients_are_dense_ones(loop: Loop) -> None:
    class Words(nn.Module):
        def __init__(self, sparse: bool) -> None:
            super().__init__()
            self.words = nn.Embedding(8, 3, sparse=sparse)

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            found: torch.Tensor = self.words(inputs.abs().long().clamp(max=7))
            return found

    reference = loop.trace(build=lambda: Words(False))
    assert found(loop, loop.trace(build=lambda: Words(True)), reference, build=lambda: Words(False)) is None


@pytest.mark.parametrize(("model", "optimizer", "words"), [
    (nn.Linear(2, 2), None, "its optimizer is of NoneType"),
    (nn.ReLU(), torch.optim.SGD(nn.Linear(1, 1).parameters()), "no tensor of the model is trained"),
])
def test_what_cannot_be_traced_is_said(
    model: nn.Module, optimizer: Any, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(watch.TRACE, json.dumps({"folder": str(tmp_path), "steps": [1], "ulp": 0}))
    watch.trace(model, optimizer)
    with pytest.raises(ParityError, match=words):
        read_trace(read_folder(tmp_path))
    with pytest.raises(RuntimeError, match="called twice"):
        watch.trace(model, optimizer)


def test_a_step_that_is_not_finite_is_a_difference(loop: Loop) -> None:
    def overflow(net: nn.Module, step: int) -> None:
        if step == 1:
            with torch.no_grad():
                net[3].weight.mul_(math.inf)  # type: ignore[index]

    item = found(loop, loop.trace(between=overflow), loop.trace())
    assert item is not None and item.step == 2


def test_a_stored_trace_is_read_again_and_a_strange_file_refused(loop: Loop, tmp_path: Path) -> None:
    run = loop()
    write_zip(tmp_path / "trace.zip", {"run": run, "null": loop(ulp=1e-7)})
    stored = read_zip(tmp_path / "trace.zip")
    assert [*stored] == ["run", "null"] and found(loop, loop.trace(), stored["run"]) is None
    write_zip(tmp_path / "strange.zip", {"run": {"../../escape": b""}})
    with pytest.raises(OutputError, match="which no trace has"):
        read_zip(tmp_path / "strange.zip")
    (name, content), = run.items()
    with pytest.raises(ParityError, match="no readable trace"):
        read_trace({name: content.replace(b'"square"', b'"round"')})


def test_processes_without_a_group_and_too_few_of_them_are_named(loop: Loop) -> None:
    first, second = loop(), loop()
    alone = read_trace({f"a-{name}": content for name, content in first.items()}
                       | {f"b-{name}": content for name, content in second.items()})
    checks = judge(alone, alone, sight_of(alone, alone, []), Intended(2))
    assert "know nothing of each other" in str(checks["wrapper"])
    one = read_trace(first)
    assert "1 process trained, and the suite states 2" in str(
        judge(one, one, sight_of(one, one, []), Intended(2))["wrapper"])
    assert "ddp was requested and none ran" in str(
        judge(one, one, sight_of(one, one, []), Intended(1, "ddp"))["wrapper"])
