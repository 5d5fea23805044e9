"""One step by the harness itself, in a model of its own and a plain loop, and how that of an engine differs."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from repro.record.log.facts import Apart, StepAgain
from repro.record.result.step_causes import Place
from repro.seams.training import Batch, Job, Session, TrainingParts
from repro.seams.workload import map_tensors
from repro.suite.model import Trial
from repro.worker.evaluation import OwnModel
from repro.worker.report.layer_trace import LayerTrace, where_it_begins
from repro.worker.report.step_difference import (
    SUSPECT,
    UNEXPLAINED,
    UNLIKE,
    Worst,
    changed,
    in_bfloat16,
    norm_of,
    parts_of,
    short,
)
from repro.worker.weights import in_groups

if TYPE_CHECKING:
    import torch

ROUNDING = 4e-7
"""Share of the norm of the weights below which two updates do not differ: a few last places of float32."""
SCALE = 2.0**12
"""Factor of the loss of formats that scale it: a small one, which overflows nowhere."""
UNEXPLAINED_LOSS = 0.01
"""Largest share of a difference of losses that a resemblance may leave unexplained: two numbers may be near by chance.
"""


@dataclass(frozen=True, slots=True)
class Begun:
    """The state of this rank before a step."""

    weights: Mapping[str, np.ndarray]
    """Full, float32."""
    buffers: Mapping[str, np.ndarray]
    batches: Sequence[Batch]
    reseed: Callable[[], None]
    """Sets the random states, so that the same masks are drawn."""


@dataclass(frozen=True, slots=True)
class Found:
    """Loss and gradient of a step, as the engine reports them."""

    loss: float
    """The mean of this rank."""
    gradients: Mapping[str, np.ndarray]
    """The full mean gradient before clipping, float32."""
    buffers: Mapping[str, np.ndarray] | None = None
    """Of this rank, after the backward pass; None: not kept."""
    layers: LayerTrace | None = None
    """None: not traced."""


class OwnStep:
    """The model and the optimizer of the harness."""

    def __init__(self, session: Session, trial: Trial, job: Job, functions: TrainingParts) -> None:
        self.session, self.job, self.clip = session, job, trial.training.gradient_clip
        self.shares_buffers = session.effective().get("broadcast_buffers") == "on"
        self.problem = ""
        """The first failure, after which nothing is repeated."""
        self.model: OwnModel | None = None
        self.rule: torch.optim.Optimizer | None = None
        self.stepped: dict[str, torch.nn.Parameter] = {}
        self.newest: dict[str, np.ndarray] = {}
        """The mean gradient of the step before, on the first rank."""
        self.before: Mapping[str, np.ndarray] = {}
        """The weights before the newest step."""
        self.layers: LayerTrace | None = None
        """Of the newest step."""
        self.place: Place | None = None
        """Where the newest step begins to differ; on the first rank."""
        self.moved: dict[str, np.ndarray] = {}
        """The buffers after the newest step, where they are numbers with a fraction."""
        self.unused: set[str] = set()
        """Parameters that the newest loss does not depend on: some engines decay them, others leave them alone."""
        with self.noting():
            self.model = OwnModel(trial, job, functions)

    @contextmanager
    def noting(self) -> Iterator[None]:
        """Keep a failure, so that this rank goes on to gather with the others."""
        try:
            yield
        except Exception as error:  # a workload's own code may raise anything
            self.problem = " ".join(str(error).split())[:200] or type(error).__name__

    def buffers(self, own: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        """Return the buffers with which the forward pass of an engine begins; all ranks take part."""
        found: Mapping[str, np.ndarray] = self.session.gather(own)[0] if self.shares_buffers else own
        return found

    def compare_gradient(self, begun: Begun, found: Found) -> list[Apart] | None:
        """Return on the first rank how loss, gradient and buffers of a step differ from the harness's own, empty if a
        number is not finite; None on every rank if one could not repeat it. All take part, also one that has failed."""
        session, self.before = self.session, begun.weights
        own_loss, own_gradients = self._gradients(begun)
        told = session.gather((found.loss, own_loss, self.problem))
        begins: list[Place | None] = session.gather(self._where(found.layers))
        self.place = next((place for place in begins if place and place.at != "nowhere"), begins[0])
        losses, before, first = [pair[:2] for pair in told], self.newest, self.job.rank == 0
        worst = Worst("gradient", self.job.precision.loss_scaling is not None)
        if any(problem for _, _, problem in told) or not np.isfinite([pair[1] for pair in losses]).all():
            return None
        loss = _of_loss(losses)
        if loss.apart > SUSPECT:
            loss = loss.model_copy(update={"like": self._like_loss(begun, losses)})
        self.newest = {}
        for names in in_groups(found.gradients):
            told_of = session.gather({name: own_gradients.pop(name) for name in names if name in own_gradients})
            for name in names if first else ():
                shares = [share[name] for share in told_of if name in share]
                if len(shares) < len(told_of):
                    continue
                whole, *last = (np.mean([share[place].astype(np.float64) for share in shares], axis=0)
                                for place in range(len(shares[0])))
                self.newest[name] = whole.astype(np.float32)
                theirs = found.gradients[name]
                if not worst.add(name, theirs, whole):
                    continue
                likes = {f"rank {rank}": share[0] for rank, share in enumerate(shares)} if len(shares) > 1 else {}
                worst.could_be_of(theirs, parts_of(shares, self.job.accumulation))
                likes |= {"last": last[0]} if last else {}
                worst.could_be_multiple(name, "multiples", theirs, whole)
                if before:
                    likes |= {"late": before.get(name, whole), "kept": whole + before.get(name, 0)}
                worst.could_be(name, theirs, likes | changed(theirs, whole, begun.weights[name]))
        gradient, buffers = worst.found(), Worst("buffer")
        if found.buffers is not None:
            for name, array in self.moved.items():
                buffers.add(name, found.buffers[name], array)
        return [loss, *gradient, *buffers.found()] if gradient else []

    def repeated(self, number: int, apart: Sequence[Apart]) -> StepAgain:
        """Return what the log says of the newest step."""
        differs = any(item.apart > SUSPECT for item in apart)
        return StepAgain(number=number, apart=tuple(apart), place=self.place if differs else None)

    def _where(self, theirs: LayerTrace | None) -> Place | None:
        with suppress(Exception):  # where a difference begins is no part of whether there is one
            return (where_it_begins(theirs, self.layers, self.job.precision)
                    if theirs is not None and self.layers is not None else None)
        return None

    def _like_loss(self, begun: Begun, losses: Sequence[Sequence[float]]) -> str:
        """Return what the ranks' mean loss is like, alike on all ranks; all take part."""
        told: list[dict[str, float]] = self.session.gather(self._other_losses(begun))
        theirs, ours = (float(np.mean([pair[place] for pair in losses])) for place in (0, 1))
        means = {like: float(np.mean([each[like] for each in told])) for like in told[0]
                 if all(like in each for each in told)}
        like = min(means, key=lambda name: (abs(means[name] - theirs), name), default="")
        if like and abs(means[like] - theirs) < UNEXPLAINED_LOSS * abs(theirs - ours):
            return like
        return "masks" if abs(means.get("masks", ours) - ours) > UNEXPLAINED * abs(theirs - ours) else ""

    def _other_losses(self, begun: Begun) -> dict[str, float]:
        """Return this rank's mean loss as it would be otherwise; empty if it failed."""
        import torch

        own, found = self.model, dict[str, float]()
        if own is None:
            return found
        with suppress(Exception), torch.no_grad():  # what a loss is like is no part of whether it differs
            narrow = torch.autocast(torch.device(self.job.device).type, torch.bfloat16)
            for like, training, numbers in (("masks", True, own.numerics.autocast()),
                                            ("evaluation", False, own.numerics.autocast()),
                                            ("bfloat16", True, narrow), ("float32", True, nullcontext())):
                own.load(begun.weights, begun.buffers)
                own.model.train(training)
                if like != "masks":
                    begun.reseed()
                found[like] = float(np.mean([float(own.loss(batch, numbers)) for batch in map_tensors(
                    begun.batches, lambda tensor: tensor.clone())]))
        return found

    def _gradients(self, begun: Begun) -> tuple[float, dict[str, tuple[np.ndarray, ...]]]:
        """Return this rank's mean loss over its micro-batches, and by name its gradient and, of several micro-batches,
        that of the last one alone, float32; empty if it failed.
        """
        from repro.engines.plain.session import as_array

        own, total, found = self.model, 0.0, dict[str, tuple[np.ndarray, ...]]()
        if own is None or self.problem:
            return total, found
        scale = SCALE if self.job.precision.loss_scaling else 1.0
        with self.noting():
            own.load(begun.weights, begun.buffers)
            own.model.train()
            own.model.zero_grad()
            begun.reseed()
            share, self.layers = 1 / len(begun.batches), LayerTrace(own.model)
            for place, batch in enumerate(begun.batches):
                if place and place == len(begun.batches) - 1:
                    earlier = self._taken(begun.weights, scale)
                with self.layers.watching():
                    loss = own.loss(batch)
                    total += float(loss.detach()) * share
                    (loss * (scale * share)).backward()
            self.moved = {name: as_array(buffer) for name, buffer in own.model.named_buffers()
                          if buffer.is_floating_point()}
            self.unused = {name for name, parameter in own.model.named_parameters() if parameter.grad is None}
            found = {name: (array, (array - earlier[name]) / np.float32(share)) if share < 1 else (array,)
                     for name, array in self._taken(begun.weights, scale).items()}
        return total, found

    def _taken(self, weights: Collection[str], scale: float) -> dict[str, np.ndarray]:
        """Return the gradients so far, copied."""
        from repro.engines.plain.session import as_array

        assert self.model is not None
        return {name: np.zeros(tuple(parameter.shape), np.float32) if parameter.grad is None
                else as_array(parameter.grad) / np.float32(scale)
                for name, parameter in self.model.model.named_parameters() if name in weights}

    def compare_update(
        self, weights: Mapping[str, np.ndarray], gradients: Mapping[str, np.ndarray], after: Mapping[str, np.ndarray],
        rate: float,
    ) -> list[Apart]:
        """Return the tensor whose update differs most from that of the requested rule for the same gradient."""
        worst = Worst("update")
        if self.model is None or self.problem:
            return []
        names = [name for name, _ in self.model.model.named_parameters() if name in weights]
        with self.noting():
            if self.rule is None:
                self.stepped, self.rule = self._rule(names, weights)
            kept = dict[str, Any]()
            with suppress(Exception):  # what an update is like is no part of whether it differs
                kept = copy.deepcopy(self.rule.state_dict())
            whole = self._updates(self.stepped, self.rule, weights, gradients, rate, self.clip)
            theirs = {name: after[name] - weights[name] for name in names if name not in self.unused}
            suspects = [name for name, update in theirs.items()
                        if worst.add(name, update, whole[name], ROUNDING * norm_of(weights[name]))]
            for name in suspects:
                worst.could_be(name, theirs[name], changed(theirs[name], whole[name], weights[name]) | {
                    "narrow": in_bfloat16(weights[name] + whole[name]) - weights[name]})
                if not self.job.optimizer.linear:
                    worst.could_be_multiple(name, "multiples", theirs[name], whole[name])
            with suppress(Exception):
                for like, updates in self._other_updates(kept, weights, gradients, rate) if suspects else ():
                    for name in suspects:
                        if like == "gradient":
                            worst.could_be_of(theirs[name] - updates[name], [whole[name] - updates[name]])
                            worst.could_be_multiple(name, "gradients", theirs[name], whole[name], updates[name])
                        else:
                            worst.could_be(name, theirs[name], {like: updates[name]})
        return worst.found()

    def _rule(
        self, names: Sequence[str], weights: Mapping[str, np.ndarray]
    ) -> tuple[dict[str, torch.nn.Parameter], torch.optim.Optimizer]:
        """Return parameters, and the requested optimizer of them."""
        import torch

        stepped = {name: torch.nn.Parameter(torch.from_numpy(weights[name]).to(self.job.device, copy=True))
                   for name in names}
        return stepped, self.job.optimizer.build([*stepped.items()])

    def _updates(
        self, stepped: Mapping[str, torch.nn.Parameter], rule: torch.optim.Optimizer, weights: Mapping[str, np.ndarray],
        gradients: Mapping[str, np.ndarray], rate: float, clip: float | None,
    ) -> dict[str, np.ndarray]:
        """Return what a step of the rule adds to the weights."""
        import torch

        with torch.no_grad():
            for name, parameter in stepped.items():
                parameter.copy_(torch.from_numpy(weights[name]))
                parameter.grad = torch.from_numpy(gradients[name]).to(parameter.device, copy=True)
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(stepped.values(), clip)
        for group in rule.param_groups:
            group["lr"] = rate
        rule.step()
        return {name: parameter.detach().cpu().numpy() - weights[name] for name, parameter in stepped.items()}

    def _other_updates(
        self, kept: Mapping[str, Any], weights: Mapping[str, np.ndarray], gradients: Mapping[str, np.ndarray],
        rate: float,
    ) -> Iterator[tuple[str, dict[str, np.ndarray]]]:
        """Yield the updates that the requested rule would make otherwise; of one that is linear in the gradient also
        that of none, as "gradient".

        Args:
            kept: its state before the step.
        """
        for like, option, value in OTHERWISE:
            clip = None if like == "unclipped" else self.clip
            stepped, rule = self._rule([*self.stepped], weights)
            if like != "forgotten":
                rule.load_state_dict(copy.deepcopy(dict(kept)))
            changed = [group for group in rule.param_groups if group.get(option, value) != value]
            for group in changed:
                group[option] = value
            if changed or clip != self.clip or (like == "forgotten" and kept["state"]):
                yield like, self._updates(stepped, rule, weights, gradients, rate, clip)
        if self.job.optimizer.linear:
            stepped, rule = self._rule([*self.stepped], weights)
            rule.load_state_dict(copy.deepcopy(dict(kept)))
            none = {name: np.zeros_like(array) for name, array in gradients.items()}
            yield "gradient", self._updates(stepped, rule, weights, none, rate, None)


OTHERWISE = (("forgotten", "", None), ("unclipped", "", None), ("nesterov", "nesterov", True),
             ("no nesterov", "nesterov", False))
"""Name of another update, and the option of the rule that makes it."""


def _of_loss(losses: Sequence[Sequence[float]]) -> Apart:
    theirs, ours = (float(np.mean([pair[place] for pair in losses])) for place in (0, 1))
    if not np.isfinite(theirs):
        return Apart(what="loss", apart=UNLIKE, ratio=0.0)
    return Apart(what="loss", apart=short(abs(theirs - ours) / (abs(ours) or 1.0)),
                 ratio=short(theirs / ours) if ours else 1.0)
