"""One step by the harness itself, in a model of its own and a plain loop, and how that of an engine differs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass

import numpy as np

from repro.record.log.facts import Apart, StepAgain
from repro.record.result.step_causes import Place
from repro.seams.training import Batch, Job, Session, TrainingParts
from repro.seams.workload import map_tensors
from repro.suite.model import Trial
from repro.worker.evaluation import OwnModel
from repro.worker.report.layer_trace import LayerTrace, first_place, where_it_begins
from repro.worker.report.own_rule import OwnRule
from repro.worker.report.step_difference import SUSPECT, UNEXPLAINED, UNLIKE, Worst, changed, parts_of, short
from repro.worker.weights import in_groups

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
    """The full mean gradient before clipping, float32; empty: not read."""
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
        self.rule: OwnRule | None = None
        self.newest: dict[str, np.ndarray] = {}
        """The mean gradient of the step before, on the first rank."""
        self.theirs: Mapping[str, np.ndarray] = {}
        """That of the engine."""
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
        self.place = first_place(session.gather(self._where(found.layers)))
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
                    likes |= {"late": before.get(name, whole), "kept": whole + self.theirs.get(name, 0)}
                worst.could_be(name, theirs, likes | changed(theirs, whole, begun.weights[name]))
        self.theirs = found.gradients if first else {}
        gradient, buffers = worst.found(), Worst("buffer")
        if found.buffers is not None:
            for name, array in self.moved.items():
                if buffers.add(name, theirs := found.buffers[name], array) and name in begun.buffers:
                    buffers.could_be(name, theirs, {"": array, "still": begun.buffers[name]})
                    buffers.could_be_multiple(name, "follows", theirs, array, begun.buffers[name])
        return [loss, *gradient, *buffers.found()] if gradient or not found.gradients else []

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
        theirs, ours = (np.array([pair[place] for pair in losses]) for place in (0, 1))
        found = {like: np.array([each[like] for each in told]) for like in told[0]
                 if all(like in each for each in told)}
        apart = {like: float(np.linalg.norm(values - theirs)) for like, values in found.items()}  # of each rank
        like, size = min(apart, key=lambda name: (apart[name], name), default=""), float(np.linalg.norm(theirs - ours))
        if like and apart[like] < UNEXPLAINED_LOSS * size:
            return like
        return "masks" if np.linalg.norm(found.get("masks", ours) - ours) > UNEXPLAINED * size else ""

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
                else as_array(parameter.grad, scale)
                for name, parameter in self.model.model.named_parameters() if name in weights}

    def compare_update(
        self, weights: Mapping[str, np.ndarray], gradients: Mapping[str, np.ndarray], after: Mapping[str, np.ndarray],
        rate: float,
    ) -> list[Apart]:
        """Return the tensor whose update differs most from that of the requested rule for the same gradient."""
        found = list[Apart]()
        if self.model is None or self.problem:
            return found
        with self.noting():
            if self.rule is None:
                names = [name for name, _ in self.model.model.named_parameters() if name in weights]
                self.rule = OwnRule(self.job, self.clip, {name: weights[name] for name in names})
            found += self.rule.compare(weights, gradients, after, rate, self.unused)
        return found


def _of_loss(losses: Sequence[Sequence[float]]) -> Apart:
    theirs, ours = (float(np.mean([pair[place] for pair in losses])) for place in (0, 1))
    if not np.isfinite(theirs):
        return Apart(what="loss", apart=UNLIKE, ratio=0.0)
    return Apart(what="loss", apart=short(abs(theirs - ours) / (abs(ours) or 1.0)),
                 ratio=short(theirs / ours) if ours else 1.0)
