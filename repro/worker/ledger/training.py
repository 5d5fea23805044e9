"""What went through the model, the loss and the optimizer of a trial, seen by torch's own hooks.

An engine states what it did; the ledger counts it. A step costs counters only: no device is waited for and nothing is
sent. What a few steps were fed is kept by reference, and compared after their block, off the clock of training.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import astuple
from typing import TYPE_CHECKING, Any

from repro.core import devices
from repro.core.random_streams import Streams
from repro.record.log.facts import Cause, NoteKind, RankLedger, WeightsAt
from repro.seams.training import Batch, Held, Job, Session, TrainingParts
from repro.seams.workload import tensors_in
from repro.worker.ledger.notes import Note, Notes
from repro.worker.ledger.seen import KeptBatches, Step, Unlike, same_tensors, unlike
from repro.worker.ledger.update import UpdateWatch
from repro.worker.ledger.writes import GroupOptions, Others, Writes, local, options_of_groups
from repro.worker.weights import checksum_held

if TYPE_CHECKING:
    import torch
    from torch.utils.hooks import RemovableHandle


FIRST_WATCHED = 64
"""Step, from 1, from which on drawn steps are kept and weights held: the gate compares earlier ones, and in a trial of
few steps even few copies would be a share of its time."""
DRAWN = 3
"""Steps of a long doubling that are drawn: one alone misses every second defect that lasts half of a doubling."""
DOUBLINGS = 32
"""As many as a trial may have; drawn before it, because a generator costs a tenth of a millisecond of its clock."""
LOOKED = frozenset(2 * 4 ** power for power in range(16))
"""Blocks, from 1, after which replaced tensors are looked for, as also before a checkpoint and at the end: such a look
costs as much as ten readings of the writes."""
CLOCK_SHARE = 1e-3
"""Largest difference between a trial's clock and the kernel's, as a share of the time: both are the same clock."""


class TrainingLedger:
    """The ledger of one rank.

    Args:
        parts: of the trial, before the engine starts: the calls of its model and its loss are watched.
    """

    def __init__(self, parts: TrainingParts, job: Job, streams: Streams) -> None:
        import torch
        from torch.nn.modules.module import _global_forward_pre_hooks

        # In every step between two kernels, and so from cold caches: no import, no generator, few calls and counters.
        self._grad_enabled, self._autocast_enabled = torch.is_grad_enabled, torch.is_autocast_enabled
        self._device = job.device.partition(":")[0]
        self._parts, self._model, self._loss = parts, parts.model, parts.loss
        self._autocast = job.precision.autocast is not None
        self._scaled = job.precision.loss_scaling is not None
        self._resting = _resting_in_training(parts.model)
        self._handles: list[Any] = []
        self._last: list[RemovableHandle] = []
        """The hook behind those of others on the model, once there are any."""
        self._hooks, self._shared_hooks = parts.model._forward_pre_hooks, _global_forward_pre_hooks
        self._replaced: Callable[..., Any] | None = None
        """What torch called for the model before; None: the model itself."""
        self.may_read = False
        """The clock is running, so training data may be read."""
        self._early = {name: _Early(getattr(parts, name), self) for name in ("open_data", "train_batch")}
        self._eval_batch = parts.eval_batch
        for name, watched in self._early.items():
            setattr(parts, name, watched)
        self.attach()
        self.optimizer: Any = None
        """The trial's own optimizer; steps of others (the outer one of local SGD) are not counted."""
        self._writes: Writes | None = None
        self.update = UpdateWatch(None, None, self._note_of)
        """Of a kept step."""
        self._first, self._counted_to = 0, 0
        """First step of this block, from 0; steps up to the newest reading of the writes."""
        self._blocks, self._looked = 0, 0
        """Those whose writes were compared; the first step, from 0, since the last look for replaced tensors."""
        self._options: Mapping[int, GroupOptions] = {}
        self._rule = job.optimizer
        self._started = False
        self._step = Step()
        """The newest one."""
        self._first_rate = 0.0
        self._micro, self._dealt = job.micro_batch, job.micro_batch * job.accumulation
        """Samples of a micro-batch, and of a step: every one is full."""
        self._passed = [True, True]
        """Inputs, and targets, were the dealt objects so far, so a comparison of objects finds others."""
        self._drawn = [_drawn_steps(streams, 1 << power) for power in range(DOUBLINGS)]
        """Of each doubling the drawn steps, from 0, in the order in which they were drawn."""
        self._comparing: Collection[int] = ()
        """Steps of this block that are compared."""
        self._waiting: list[KeptBatches] = []
        self.newest: list[KeptBatches] = []
        """The last two compared steps."""
        self._state: list[torch.Tensor] | None = None
        self._held = ""
        self.is_watching = False
        """The weights were held after the last step, and are to be held again before the next one."""
        self._undrawn = self._generator_state()
        """Before the first step."""
        self._weights: list[WeightsAt] = []
        self._notes = Notes()
        self._totals = {"steps": 0, "forwarded": 0, "losses": 0, "compared": 0}
        self._counts: dict[int, Note] = {}
        """Updates in a step -> the first such step, and how many there are."""
        self._usual, self._alike = -1, 0
        """Updates in the newest step that was counted alone, and the steps since then that saw as many and all samples:
        they are not in the totals yet."""

    # ---- the run

    def open_data(self) -> None:
        """Let the training data be read from now on: the clock is running."""
        self.may_read = True
        for name, watched in self._early.items():
            if getattr(self._parts, name) is watched:
                setattr(self._parts, name, watched.right)

    def start(self) -> None:
        """Begin: what the warm-up did does not count."""
        self._started = True
        if self._model._compiled_call_impl != self._on_call:  # an engine compiled the model
            self._watch_calls()

    def stop(self) -> None:
        """End: what follows is no training."""
        self._started = False
        self._compare_tensors()
        if self._writes is not None:
            self._writes.forget()

    def watch(self, session: Session) -> None:
        """Watch the session's optimizer from now on: it has been built."""
        self.optimizer = getattr(session, "optimizer", None)
        if self.optimizer is not None:
            self._options = options_of_groups(self.optimizer) if self._rule.writes_alike else {}
            if session.writes_alike and self._rule.writes_alike:
                self._writes = Writes(self.optimizer, self._model)
            self.update = UpdateWatch(self.optimizer, self._writes, self._note_of)

    def begin_block(self, first: int, last: int) -> tuple[Collection[int], Collection[int]]:
        """Choose the steps of a block, `first` to `last` from 0, that are compared.

        Returns:
            Drawn ones that the gate did not reach; those of them after which the weights are held, one of a doubling.
        """
        doublings = self._drawn[(first + 1).bit_length() - 1:(last + 1).bit_length()]
        drawn = [step for steps in doublings for step in steps if first <= step <= last]
        if self._writes is not None:
            self._first, self._counted_to = first, self._totals["steps"]
            self._writes.begin_again()
        one = {*drawn} & {steps[0] for steps in self._drawn}
        # The first step of a block follows an evaluation, and the last one is behind the value that is found next.
        self._comparing = {first, last, *one}  # batches stay in memory until the block ends, so of a doubling one
        late = {step for step in drawn if step + 1 >= FIRST_WATCHED}
        return late, late & one

    def begin(self, step: int, batches: Sequence[Batch], rate: float) -> None:
        """Begin a step of this block; `step` is its number, from 0."""
        now = self._step
        now.rate_before, now.number, now.batches, now.rate, now.inside = now.rate, step, batches, rate, True
        now.calls = now.losses = now.forwarded = now.lost = now.updates = 0
        if step in self._comparing:
            now.kept = KeptBatches(step, batches)
            now.kept.note_versions(batches)
        if not self._first_rate:
            self._first_rate = rate

    def end(self) -> None:
        """End a step."""
        now = self._step
        now.inside, now.batches = False, ()
        if now.forwarded == now.lost == self._dealt and now.updates == self._usual and now.kept is None:
            self._alike += 1
            return
        self._count_alike()
        totals = self._totals
        totals["steps"] += 1
        totals["forwarded"] += now.forwarded
        totals["losses"] += now.lost
        if now.forwarded != self._dealt:
            self._note("samples", now.forwarded, self._dealt)
        if now.lost != self._dealt:
            self._note("loss", now.lost, self._dealt)
        if (known := self._counts.get(now.updates)) is None:
            self._counts[now.updates] = Note(now.number, now.updates, 0)
        else:
            known.times += 1
        self._usual = now.updates
        if now.kept is not None:
            self._waiting.append(now.kept)
            if (now_resting := resting(self._model)) != self._resting:
                self._note("flags", now_resting, self._resting)
            now.kept = None

    def _count_alike(self) -> None:
        """Add the steps since the last one that was counted alone to the totals."""
        if self._alike:
            self._totals["steps"] += self._alike
            self._totals["forwarded"] += self._alike * self._dealt
            self._totals["losses"] += self._alike * self._dealt
            self._counts[self._usual].times += self._alike
            self._alike = 0

    def compare(self) -> None:
        """Compare what the kept steps of the last block were fed with what they were dealt; off the clock."""
        self._count_alike()
        self._compare_writes()
        for kept in self._waiting:
            if not kept.as_dealt and kept.was_changed:
                continue
            self._totals["compared"] += 1
            for kind, how in kept.others():
                self._note(kind, how.found, how.wanted, kept.step, how.cause)
        self.newest = [*self.newest, *self._waiting][-2:]
        for kept in self._waiting:
            kept.forget_seen()
        self._waiting = []

    def read_again(self, read: Callable[[int, Any], Batch], shares: Callable[[int], tuple[int, Sequence[Any]]]) -> None:
        """Compare the batches of the last compared steps with those that the workload gives; after the trial.

        Args:
            read: returns the batch of an epoch and its samples, by the function that no engine has seen.
            shares: returns the epoch and this rank's micro-batches of a step, from 0.
        """
        other = dict[int, tuple[str, ...]]()
        for kept in self.newest:
            epoch, micro_batches = shares(kept.step)
            again = zip(*(read(epoch, indices) for indices in micro_batches), strict=True)
            dealt = zip(*kept.dealt, strict=True)
            names = tuple(name for name, mine, right in zip(("inputs", "targets"), again, dealt, strict=True)
                          if not same_tensors(mine, right))
            if names and not kept.was_changed:
                other[kept.step] = names
        for step in other:
            name, *more = {name for names in other.values() for name in names}
            self._note("dealt", 0, 0, step, of=Others("" if more else name))

    def hold_state(self) -> None:
        """Copy the optimizer's state before an evaluation; after it, it must equal the copy."""
        state = getattr(self.optimizer, "state", {}) if self._started else {}
        found = [*map(local, tensors_in([*state.values()]))]
        if self._state is None:
            self._state = [tensor.clone() for tensor in found]
            return
        if len(found) != len(self._state) or not all(map(_equal, found, self._state)):
            self._note("state", 0, 0)
        self._state = None

    @property
    def learning(self) -> bool:
        """`learn` is to be called after each step."""
        return self._writes is not None and self._writes.learning

    def learn(self) -> None:
        """Look how often this step wrote into each tensor; off the clock, and in the first steps only."""
        assert self._writes is not None
        self._writes.learn(updated=self._step.updates > 0)
        self._looked = self._step.number + 1
        self._count_alike()
        self._counted_to = self._totals["steps"]

    def _compare_writes(self) -> None:
        """Compare the writes into weights and the optimizer's state with those of the steps since the newest reading.
        """
        if self._writes is None or self._writes.learning:
            return
        steps, self._counted_to = self._totals["steps"] - self._counted_to, self._totals["steps"]
        self._blocks += 1
        if self._blocks in LOOKED:
            self._compare_tensors()
        other = self._writes.others(steps)
        if other is not None and sum(count > 0 for count in self._counts) == 1:  # else the number of updates tells it
            self._note("written", 0, 0, self._first, of=other)

    def _compare_tensors(self) -> None:
        """Note the tensors that others have taken the place of since the last time."""
        if self._writes is None or self._writes.learning:
            return
        if (replaced := self._writes.replaced()) is not None:
            self._note("replaced", 0, 0, self._looked, of=replaced)
        self._looked = self._step.number + 1

    def _counted(self) -> float | None:
        """Return the most steps that the optimizer counts in what it keeps of a tensor; None if it counts none."""
        counts = list[float]()
        with suppress(Exception):  # a rule may keep anything by this name
            kept = self.optimizer.state.values()
            counts = [float(each["step"]) for each in kept if isinstance(each, Mapping) and "step" in each]
        return max(counts) if counts else None

    def compare_clocks(self, own: float, kernel: float) -> None:
        """Compare the seconds of the trial by its own clock and by the kernel's."""
        if abs(own - kernel) > CLOCK_SHARE * kernel:
            self._note("clock", own, kernel)

    def attach(self) -> None:
        """Hook into the model, its loss and all optimizers of this process."""
        from torch.optim import optimizer as optimizers

        self._handles = [optimizers.register_optimizer_step_post_hook(self._on_update)]
        self._watch_calls()
        self._parts.loss = self._on_loss
        self._parts.eval_batch = self._on_eval_batch

    def _watch_calls(self) -> None:
        # A hook before the forward pass would take every step through the slow half of torch's call.
        self._replaced = self._model._compiled_call_impl
        self._call = self._replaced or self._model._call_impl
        self._model._compiled_call_impl = self._on_call

    def close(self) -> None:
        """Remove the hooks: the next trial may run in this process."""
        self.update.close()
        for handle in (*self._handles, *self._last):
            handle.remove()
        self._handles, self._last = [], []
        if self._model._compiled_call_impl == self._on_call:
            self._model._compiled_call_impl = self._replaced
        self._parts.loss = self._loss
        self._parts.eval_batch = self._eval_batch

    def hold(self, held: Sequence[Held]) -> None:
        """Take the weights that this rank holds after a drawn step; then those before the next one, which are to be
        the same."""
        parts, values = checksum_held(held)
        if not self.is_watching:
            self._held, self.is_watching = values, True
            drawn = self._generator_state()
            self._weights.append(WeightsAt(step=self._step.number, parts=parts, values=values,
                                           drawn=drawn if drawn != self._undrawn else ""))
            return
        if values != self._held:
            self._note("moved", 0, 0)
        self.is_watching = False

    def _generator_state(self) -> str:
        """Return a checksum of the state of the generator of the device, which a layer draws masks from."""
        return f"{zlib.crc32(devices.random_state(self._device).numpy().data):08x}"

    # ---- what it saw

    def facts(self) -> RankLedger:
        """Return what this rank saw."""
        totals, more = self._totals, dict[NoteKind, Note]()
        # An engine that calls another model, or computes the loss itself, is not watched.
        without = [kind for watched, kind in (("forwarded", "samples"), ("losses", "loss")) if not totals[watched]]
        usual = max(self._counts.values(), key=lambda note: note.times, default=None)
        if usual is not None and usual.found:
            other = [note for count, note in self._counts.items() if note is not usual and (count or not self._scaled)]
            if other:  # a step without an update is one whose scaled gradients overflowed
                first = min(other, key=lambda note: note.step)
                more["updates"] = Note(first.step, first.found, usual.found, sum(note.times for note in other))
        updated, counted = sum(note.times for count, note in self._counts.items() if count), self._counted()
        most = sum(count * note.times for count, note in self._counts.items())
        # Fused kernels step, and do not count, where scaled gradients overflow.
        least = 0 if self._scaled else updated
        if updated and counted is not None and not least <= counted <= most:
            more["counted"] = Note(self._step.number, counted, updated)
        return RankLedger(**totals, updates=int(usual.found) if usual else 0, weights=tuple(self._weights),
                          notes=self._notes.facts(without, more))

    def state(self) -> dict[str, Any]:
        """Return the state that a later attempt continues from (JSON-like); it learns the tensors again."""
        self._compare_tensors()
        return {"totals": dict(self._totals), "notes": self._notes.state(),
                "counts": {str(count): [*astuple(note)] for count, note in self._counts.items()},
                "weights": [item.model_dump() for item in self._weights]}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from what `state` returned."""
        self._totals = dict(state["totals"])
        self._weights = [WeightsAt.model_validate(item) for item in state["weights"]]
        self._notes.restore(state["notes"])
        self._counts = {int(count): Note(*values) for count, values in state["counts"].items()}

    # ---- hooks

    def _on_call(self, *args: Any, **kwargs: Any) -> Any:
        if self._hooks or self._shared_hooks:
            self._watch_behind()
        else:
            self._on_forward(args, kwargs)
        return self._call(*args, **kwargs)

    def _watch_behind(self) -> None:
        """Watch by a hook behind all others, which may change what the model sees, and how it computes."""
        if self._last and next(reversed(self._hooks), None) == self._last[0].id:
            return
        for handle in self._last:
            handle.remove()
        self._last = [self._model.register_forward_pre_hook(
            lambda _, args, kwargs: self._on_forward(args, kwargs), with_kwargs=True)]

    def _on_forward(self, args: Any, kwargs: Any) -> None:
        if not self._started or not self._grad_enabled():
            return
        now = self._step
        number, batches, kept = now.calls, now.batches, now.kept
        now.calls += 1
        dealt = number < len(batches) and bool(args) and args[0] is batches[number][0]
        if dealt:
            now.forwarded += self._micro  # nothing else of it need be asked
            first = None
        else:
            first = args[0] if args and hasattr(args[0], "untyped_storage") else next(tensors_in((args, kwargs)), None)
            count = self._count(number, first)
            if not now.inside:
                self._note("outside", count, 0)
                return
            now.forwarded += count
        if not self._model.training:
            self._note("flags", 1, 0)
        if self._autocast_enabled(self._device) != self._autocast:
            self._note("autocast", not self._autocast, self._autocast)
        if kept is not None:
            if number == 0 and kept.was_changed:  # no model has run yet, so the engine wrote into a batch
                for kind in kept.changed():
                    self._note(kind, 0, 0)
            kept.keep(kept.inputs, (args, kwargs), dealt=dealt and len(args) == 1 and not kwargs)
        elif first is not None and self._passed[0]:
            self._look(0, number, first)

    def _count(self, number: int, first: Any) -> int:
        """Return the number of samples in a call whose first tensor is given. That of some models has no row a sample
        (a mask, the edges of a graph): as many as were dealt if it is the dealt one, or has its shape."""
        batches = self._step.batches
        dealt = next(tensors_in(batches[number][0]), None) if number < len(batches) else None
        if dealt is not None and first is not None and first.shape == dealt.shape:
            return self._micro
        return 0 if first is None or not first.ndim else len(first)

    def _on_loss(self, outputs: Any, targets: Any) -> torch.Tensor:
        loss = self._loss(outputs, targets)
        now = self._step
        if not (self._started and now.inside and loss.requires_grad):
            return loss
        number, batches = now.losses, now.batches
        now.losses += 1
        same = number < len(batches) and targets is batches[number][1]
        now.lost += self._micro if same else len(targets)
        if now.kept is not None:
            now.kept.keep(now.kept.targets, targets, dealt=same)
            loss.register_hook(self._on_backward)  # type: ignore[no-untyped-call]
        elif not same and self._passed[1]:
            self._look(1, number, targets if hasattr(targets, "untyped_storage") else next(tensors_in(targets), None))
        return loss

    def _on_eval_batch(self, indices: Any) -> Batch:
        if self._started and self._step.inside:
            self._note("evaluation data", 0, 0)
        return self._eval_batch(indices)

    def _on_backward(self, _: torch.Tensor) -> None:
        if not self._step.inside:
            self._note("backward", 0, 0)

    def _on_update(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if not self._started or (self.optimizer is not None and optimizer is not self.optimizer):
            return
        now = self._step
        if not now.inside:
            self._note("update outside", 0, 0)
            return
        now.updates += 1
        for group in optimizer.param_groups:
            if group["lr"] != now.rate:
                self._note("rate", found := float(group["lr"]), now.rate, cause=self._cause(found))
                break
        for group in optimizer.param_groups if self._options else ():
            options = self._options.get(id(group))
            if options is not None and options.read(group) != options.values:
                self._note("option", 0, 0, of=options.other())
                break

    def _cause(self, rate: float) -> Cause:
        """Return what gives a step another rate than the scheduled one."""
        if rate == self._step.rate_before:
            return "late"
        return "left out" if not rate else "held" if rate == self._first_rate else ""

    def _look(self, place: int, number: int, seen: Any) -> None:
        """Compare what one call, another object, saw with what was dealt."""
        if number >= len(batches := self._step.batches):
            return  # the number of samples tells it
        dealt = next(tensors_in(batches[number][place]), None)
        if seen is dealt:
            return
        if seen is None or dealt is None or (
                same_tensors([seen], [dealt]) if seen.shape == dealt.shape else
                len(seen) != len(dealt) or seen.numel() == dealt.numel()):
            self._passed[place] = False  # the engine casts, copies or joins; kept steps are compared
        else:
            kind: NoteKind = "targets" if place else "inputs"
            cause = self._notes.cause(kind)
            how = unlike([seen], [dealt]) if cause is None else Unlike(cause)
            self._note(kind, how.found, how.wanted, cause=how.cause)

    def _note(
        self, kind: NoteKind, found: float, wanted: float, step: int | None = None, cause: Cause = "",
        of: Others | None = None,
    ) -> None:
        """Note a step that contradicts the ledger; the newest one if `step` is None."""
        now = self._step.number
        self._notes.add(kind, now if step is None else step, found, wanted, cause, of,
                        now if kind in ("written", "replaced") else 0)

    def _note_of(self, kind: NoteKind, found: float, wanted: float, of: Others | None) -> None:
        self._note(kind, found, wanted, of=of)


def _drawn_steps(streams: Streams, begin: int) -> list[int]:
    """Return the drawn steps, from 0, of the doubling that begins with the step `begin`, from 1."""
    chosen = streams.generator("ledger-step", begin).choice(begin, min(begin, DRAWN), replace=False)
    return [begin - 1 + int(place) for place in chosen[:drawn_of(begin)]]


def drawn_of(begin: int) -> int:
    """Return how many steps are drawn of the doubling that begins with the step `begin`, from 1: few of the first ones
    that are kept, because a kept step takes longer, and trials that end there are short."""
    return min(max(1, begin // FIRST_WATCHED), DRAWN)


class _Early:
    """A function that reads training data, while nothing may: the clock is not running yet."""

    def __init__(self, right: Callable[..., Any], ledger: TrainingLedger) -> None:
        self.right, self.ledger = right, ledger

    def __call__(self, *args: Any, **named: Any) -> Any:
        if not self.ledger.may_read:
            self.ledger._note("data", 0, 0)
        return self.right(*args, **named)


def resting(model: torch.nn.Module) -> int:
    """Return how many layers are in evaluation mode."""
    return sum(not module.training for module in model.modules())


def _resting_in_training(model: torch.nn.Module) -> int:
    """Return how many layers stay in evaluation mode when the model is set to training mode; it is set back."""
    flags = {module: module.training for module in model.modules()}
    model.train()
    found = resting(model)
    for module, was in flags.items():
        module.training = was
    return found


def _equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Return whether two dense tensors are the same; NaN, which is unequal to itself, by its bytes."""
    import torch

    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    return torch.equal(one, other) or torch.equal(
        *(tensor.reshape(-1).contiguous().view(torch.uint8) for tensor in (one, other)))
