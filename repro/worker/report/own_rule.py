"""The requested update rule in the hands of the harness, compared with an engine's update of the same gradient."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from repro.record.derive.effective import STEP_TOLERANCE
from repro.record.log.facts import Apart
from repro.record.result.step_causes import EXACT
from repro.seams.training import Job
from repro.worker.report.step_difference import UNEXPLAINED, Worst, changed, in_bfloat16, norm_of, short

if TYPE_CHECKING:
    import torch

Arrays = Mapping[str, np.ndarray]

ROUNDING = 4e-7
"""Share of the norm of the weights below which two updates do not differ: a few last places of float32."""
OTHERWISE = (("forgotten", "", None), ("unclipped", "", None), ("uncorrected", "", None),
             ("nesterov", "nesterov", True), ("no nesterov", "nesterov", False),
             ("decoupled", "decoupled_weight_decay", True), ("coupled", "decoupled_weight_decay", False))
"""Name of another update, and the option of the rule that makes it."""
MANY = 1e9
"""Steps after which Adam's moments are no longer corrected."""
SECONDS = 5.0
"""Longest search of an option: other ranks wait for it."""
MOST_EARLIER, MOST_NUMBERS = 4, 1 << 22
"""Updates, and numbers of all tensors, up to which other values of the options are tried."""
ROUNDED, CLIP, CUT = "state in bfloat16", "gradient_clip", "limit of each number of the gradient"
BETWEEN = (0.0, 0.5, 0.8, 0.9, 0.95, 0.98, 0.99, 0.999)
"""Values that are tried of an option between 0 and 1."""
SIZES = {"eps": (0.0, *(10.0**power for power in range(-10, 0))),
         "weight_decay": (0.0, *(10.0**power for power in range(-6, 1)))}
"""Those of others."""


@dataclass(frozen=True, slots=True)
class _Update:
    """One update, by weights and the full mean gradient before it."""

    weights: Arrays
    gradients: Arrays
    rate: float


class OwnRule:
    """The optimizer of a trial, of parameters of its own.

    Args:
        clip: the limit of the gradient's norm; None: it is not clipped.
        weights: of the parameters, in the model's order.
    """

    def __init__(self, job: Job, clip: float | None, weights: Arrays) -> None:
        self.job, self.clip, self.names = job, clip, [*weights]
        self.parameters, self.optimizer = self._build(weights)
        self.first: list[_Update] = []
        """The first updates, while they are few and small."""
        self.made = 0
        self._until = 0.0
        """Time at which a search ends."""

    def compare(
        self, weights: Arrays, gradients: Arrays, after: Arrays, rate: float, unused: Collection[str] = ()
    ) -> list[Apart]:
        """Make an update and return the tensor of which the engine's differs most.

        Args:
            after: the engine's weights.
            unused: parameters without a gradient, which some engines decay and others leave alone.
        """
        worst, update = Worst("update"), _Update(dict(weights), gradients, rate)
        before = dict[str, Any]()
        with suppress(Exception):  # what an update is like is no part of whether it differs
            before = copy.deepcopy(self.optimizer.state_dict())
        right = self._make(self.parameters, self.optimizer, update, self.clip)
        self.made += 1
        if self.made <= MOST_EARLIER and sum(array.size for array in right.values()) <= MOST_NUMBERS:
            self.first.append(update)
        theirs = {name: after[name] - weights[name] for name in self.names if name not in unused}
        suspects = [name for name, found in theirs.items()
                    if worst.add(name, found, right[name], ROUNDING * norm_of(weights[name]))]
        for name in suspects:
            worst.could_be(name, theirs[name], changed(theirs[name], right[name], weights[name]) | {
                "narrow": in_bfloat16(weights[name] + right[name]) - weights[name],
                "left out": np.zeros_like(right[name])})
            if not self.job.optimizer.linear:
                worst.could_be_multiple(name, "multiples", theirs[name], right[name])
        with suppress(Exception):
            for like, updates in self._otherwise(before, update) if suspects else ():
                for name in suspects:
                    if like == "gradient":
                        worst.could_be_of(theirs[name] - updates[name], [right[name] - updates[name]])
                        worst.could_be_multiple(name, "gradients", theirs[name], right[name], updates[name])
                    else:
                        worst.could_be(name, theirs[name], {like: updates[name]})
        found = worst.found()
        with suppress(Exception):
            found = [self._with_option(item, {name: theirs[name] for name in suspects}, right) for item in found]
        return found

    def _build(self, weights: Arrays) -> tuple[dict[str, torch.nn.Parameter], torch.optim.Optimizer]:
        import torch

        made = {name: torch.nn.Parameter(torch.from_numpy(weights[name]).to(self.job.device, copy=True))
                for name in self.names}
        return made, self.job.optimizer.build([*made.items()])

    def _make(
        self, parameters: Mapping[str, torch.nn.Parameter], optimizer: torch.optim.Optimizer, update: _Update,
        clip: float | None,
    ) -> dict[str, np.ndarray]:
        """Return what a step of the rule adds to the weights."""
        import torch

        with torch.no_grad():
            for name, parameter in parameters.items():
                parameter.copy_(torch.from_numpy(update.weights[name]))
                parameter.grad = torch.from_numpy(update.gradients[name]).to(parameter.device, copy=True)
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(parameters.values(), clip)
        for group in optimizer.param_groups:
            group["lr"] = update.rate
        optimizer.step()
        return {name: parameter.detach().cpu().numpy() - update.weights[name]
                for name, parameter in parameters.items()}

    def _otherwise(self, before: Mapping[str, Any], update: _Update) -> Iterator[tuple[str, dict[str, np.ndarray]]]:
        """Yield the updates that the requested rule would make otherwise; of one that is linear in the gradient also
        that of none, as "gradient".

        Args:
            before: its state before the step.
        """
        none = _Update(update.weights, {name: np.zeros_like(array) for name, array in update.gradients.items()},
                       update.rate)
        for like, option, value in OTHERWISE:
            clip, made = None if like == "unclipped" else self.clip, dict[str, np.ndarray]()
            with suppress(Exception):  # a rule may have none of this
                parameters, optimizer = self._build(update.weights)
                if like != "forgotten":
                    optimizer.load_state_dict(copy.deepcopy(dict(before)))
                changes = clip != self.clip or (like == "forgotten" and bool(before["state"]))
                if like == "uncorrected":
                    if not before["state"]:
                        self._make(parameters, optimizer, none, None)
                    changes = _set_steps(optimizer, MANY)
                for group in optimizer.param_groups:
                    if group.get(option, value) != value:
                        group[option], changes = value, True
                made = self._make(parameters, optimizer, update, clip) if changes else {}
            if made:
                yield like, made
        if self.job.optimizer.linear:
            parameters, optimizer = self._build(update.weights)
            optimizer.load_state_dict(copy.deepcopy(dict(before)))
            yield "gradient", self._make(parameters, optimizer, none, None)

    def _with_option(self, item: Apart, theirs: Arrays, right: Arrays) -> Apart:
        """Return the difference of the newest update with the option, and its value, that explain it."""
        explained = abs(item.apart - abs(item.ratio - 1)) <= EXACT * item.apart
        if (item.like or explained or len(self.first) < self.made
                or item.apart <= max(STEP_TOLERANCE, self.job.optimizer.rounding)):
            return item
        self._until = time.monotonic() + SECONDS
        square = sum(norm_of(theirs[name] - right[name])**2 for name in theirs)
        if self._apart_with(ROUNDED, 0.0, theirs) < UNEXPLAINED**2 * square:
            return item.model_copy(update={"like": "rounded"})
        kept = sorted({name for state in self.optimizer.state.values() for name in state if name != "step"})
        for name in kept:
            if self._apart_with(name, 0.0, theirs) < UNEXPLAINED**2 * square:
                return item.model_copy(update={"like": "frozen", "option": name})
        norm = float(np.sqrt(sum(norm_of(array)**2 for array in self.first[-1].gradients.values())))
        options = {*dict(self.job.optimizer), "dampening"}
        option, value = nearest_option(
            {name: value for name, value in _numbers(self.optimizer.param_groups[0])
             if name.partition("[")[0] in options} | {CLIP: self.clip or 0.0, CUT: 0.0}, {
                CLIP: norm, CUT: max(float(np.max(np.abs(array), initial=0.0))
                                     for array in self.first[-1].gradients.values())},
            lambda option, value: self._apart_with(option, value, theirs), UNEXPLAINED**2 * square)
        return item.model_copy(
            update={"like": "option", "option": option, "shares": (short(value),)}) if option else item

    def _apart_with(self, option: str, value: float, theirs: Arrays) -> float:
        """Return the squared difference of the newest update from that of the rule with another value of an option;
        `ROUNDED`: with a state that is rounded to bfloat16 after each update; a name of the state: with that unchanged.

        Raises:
            TimeoutError: the search has taken too long.
        """
        if time.monotonic() > self._until:
            raise TimeoutError
        parameters, optimizer = self._build(self.first[0].weights)
        asked = dict(_numbers(optimizer.param_groups[0])).get(option)
        for group in optimizer.param_groups:
            if dict(_numbers(group)).get(option, value) == asked:  # others have an option of their own
                _set_number(group, option, value)
        clip = (value or None) if option == CLIP else self.clip
        for update in self.first:
            if option == CUT and value:
                update = replace(update, gradients={name: np.clip(array, -value, value)
                                                    for name, array in update.gradients.items()})
            kept = {parameter: state[option].clone()
                    for parameter, state in optimizer.state.items() if option in state}
            found = self._make(parameters, optimizer, update, clip)
            for parameter, state in optimizer.state.items():
                if option in state:
                    state[option].copy_(kept.get(parameter, 0.0 * state[option]))
            if option == ROUNDED:
                _round_state(optimizer)
        return sum(norm_of(theirs[name] - found[name])**2 for name in theirs)


def nearest_option(
    asked: Mapping[str, float], limits: Mapping[str, float], apart: Callable[[str, float], float], allowed: float
) -> tuple[str, float]:
    """Return the option, and its value, with which an update is nearest to that of the engine; "": none is near.

    Args:
        asked: the requested values by name.
        limits: largest values of options that are limits.
        apart: the squared difference with another value of one option.
        allowed: its largest value.
    """
    from scipy.optimize import minimize_scalar

    best = ("", 0.0, allowed)
    sizes = SIZES | {name: tuple(most * 2.0**power for power in range(-10, 1)) for name, most in limits.items()}
    for option, wanted in asked.items():
        values = sorted({*sizes.get(option, BETWEEN), wanted})
        place = min(range(len(values)), key=lambda index: apart(option, values[index]))
        low, high = values[max(0, place - 1)], values[min(len(values) - 1, place + 1)]
        found = minimize_scalar(lambda value, option=option: apart(option, float(value)), bounds=(low, high),
                                method="bounded", options={"maxiter": 20, "xatol": 1e-4 * high})
        for value in (values[place], float(found.x)):
            if value != wanted and (square := apart(option, value)) < best[2]:
                best = option, value, square
    return best[:2]


def _numbers(group: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Yield the options of a rule that are numbers, but the rate; of several numbers each."""
    for name, value in group.items():
        if isinstance(value, tuple | list):
            yield from ((f"{name}[{place}]", item) for place, item in enumerate(value) if isinstance(item, float))
        elif isinstance(value, float) and "lr" not in name:
            yield name, value


def _set_number(group: dict[str, Any], option: str, value: float) -> None:
    name, _, place = option.rstrip("]").partition("[")
    group[name] = value if not place else tuple(
        value if index == int(place) else item for index, item in enumerate(group[name]))


def _round_state(optimizer: torch.optim.Optimizer) -> None:
    import torch

    for state in optimizer.state.values():
        for name, value in state.items():
            if name != "step" and torch.is_tensor(value) and value.is_floating_point():
                value.copy_(value.bfloat16())


def _set_steps(optimizer: torch.optim.Optimizer, steps: float) -> bool:
    """Set the steps that an optimizer has counted; return whether it counts them."""
    import torch

    kept = [state for state in optimizer.state.values() if "step" in state]
    for state in kept:
        state["step"] = torch.full_like(state["step"], steps) if torch.is_tensor(state["step"]) else int(steps)
    return bool(kept)
