"""Signatures of common mistakes and of silent defaults of backends, in the differences between two trainings."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from repro.program.gate.trace import Measured, Quantity, Step, Tensors, Trace
from repro.record.result.step_causes import NO_FACTOR, NOTHING, UPDATE_CAUSE, factor_cause

ALIKE = 0.02
"""Relative distance of factors that are one factor."""
PURE = 0.05
"""Largest part of a tensor that its factor leaves open."""
PARALLEL = 0.9
"""Least cosine of two sketches of tensors that are parallel: a sketch of 64 numbers has errors of about 0.12."""
SCALES_FROM = 256
"""Least scale of a loss that is recognised by being a power of two."""
SAME_SIZE = 0.25
"""Relative difference of the norms of two draws from one distribution."""
COPIES = {
    "gradient": "it is not averaged over the ranks, so each trains on its own samples",
    "weights": "the ranks have drifted apart, by a change that only some of them made",
    "update": "each rank makes its own step",
}
"""Quantity whose copies differ between ranks -> meaning."""
KEPT_GRADIENT = "it still holds that of the step before: zero_grad() was not called"
WRAPPERS = {"deepspeed": "DeepSpeed", "fsdp": "FSDP", "fsdp2": "FSDP 2", "ddp": "DistributedDataParallel"}


@dataclass(frozen=True, slots=True)
class Facts:
    """Both sides of a comparison."""

    ours: Trace
    theirs: Trace

    @property
    def world(self) -> int:
        """Return ranks of the candidate for one of the reference's, or the candidate's if both have as many."""
        here, there = self.ours.header.world, self.theirs.header.world
        return here if here == there else max(1, here // there)


@dataclass(frozen=True, slots=True)
class Apart:
    """A tensor that differs from the reference's."""

    ours: Measured
    theirs: Measured
    size: float
    tolerance: float

    @property
    def factor(self) -> float:
        """Return the factor of the reference's tensor that this one is; NaN: it is none."""
        if not self.theirs.norm or not math.isfinite(self.ours.norm):
            return math.nan
        ratio = self.ours.norm / self.theirs.norm
        if ratio < NOTHING:
            return 0.0
        signed = math.copysign(ratio, float(self.ours.sketch @ self.theirs.sketch))
        left = float(np.linalg.norm(self.ours.sketch - signed * self.theirs.sketch)) / self.ours.norm
        return signed if left <= min(PURE, 0.25 * abs(signed - 1)) else math.nan

    def words(self, name: str) -> str:
        """Return what the tensor is against the reference's."""
        if not math.isfinite(self.ours.norm):
            return f"{name!r} is not finite"
        if self.theirs.norm and math.isfinite(self.factor):
            return f"{name!r} is {self.factor:.4g} times the reference's"
        ratio = f" (norm {self.ours.norm:.4g}, the reference's {self.theirs.norm:.4g})"
        return f"{name!r} differs by {self.size:.2g} of its norm{ratio}"


def fallback(requested: str, ran: str) -> str:
    """Return why another wrapper than the requested one may have run."""
    word = WRAPPERS.get(requested.split("-")[0], requested)
    if ran == "none":
        return f"the launcher or the configuration that would turn {word} on was not read"
    if requested.split("-")[0] == ran.split("-")[0]:
        return "the configuration states another stage or version, or another file was read"
    return f"the framework fell back, as Accelerate does without a word if {word} is not to be had on this device"


def other_formats(facts: Facts) -> str:
    """Return which types differ, and what that does; "": none that matters."""
    ours, theirs = facts.ours, facts.theirs
    for what, words in (("weights", "the weights that the optimizer updates are"),
                        ("state", "the optimizer's state is")):
        mine, right = ({*_types(side, what)} for side in (ours, theirs))
        if mine and right and mine != right:
            narrow = {"bfloat16", "float16"}
            side = "here" if mine & narrow else "in the reference" if right & narrow else ""
            meaning = (f": {side} there are no float32 master weights, so small updates round to nothing, and a rate "
                       "that suits one of the two does not suit the other") if what == "weights" and side else ""
            return f"{words} {'/'.join(sorted(mine))}, the reference's {'/'.join(sorted(right))}{meaning}"
    if ours.computes != theirs.computes:
        return (f"the forward pass computes in {ours.computes}, the reference's in {theirs.computes}: mixed precision "
                "is on in only one of the two")
    if any(len({rank.autocast for rank in step.ranks}) > 1 for side in (ours, theirs) for step in side.steps):
        return "the forward pass computes in another type on some ranks: mixed precision is not on in all of them"
    for header in (*ours.headers, *theirs.headers):
        if dropped := {*header.dropout.items()} ^ {*theirs.header.dropout.items()}:
            name, rate = min(dropped)
            place = "in only one of the two" if header.dropout == ours.header.dropout else "on some ranks only"
            return f"the dropout rate of {name!r} is {rate:g} {place}"
    return ""


def other_start(found: Mapping[str, Apart], reference: Tensors) -> str:
    """Return what other initial weights mean."""
    factors = {name: item.factor for name, item in found.items()}
    if common := _common(factors.values()):
        return f"{common:.4g} times: another scale of initialisation"
    here, there = (math.hypot(*(getattr(item, side).norm for item in found.values())) for side in ("ours", "theirs"))
    alike = abs(here - there) <= SAME_SIZE * there
    if alike and len(found) * 2 >= sum(bool(item.norm) for item in reference.whole.values()):
        return "another seed, or a model that is built before the seed is set or after other draws"
    return "other values are drawn or loaded for them"


def other_input(ours: Step, theirs: Step, steps: Sequence[Step]) -> str:
    """Return in what the fed samples differ; "": they are the reference's."""
    mine, right = sum(ours.fed, Counter[str]()), sum(theirs.fed, Counter[str]())
    if mine == right or not mine or not right:
        return ""
    n, wanted, world = mine.total(), right.total(), len(ours.ranks)
    common, kinds = (mine & right).total(), [step.ranks[0].kinds for step in (ours, theirs)]
    if n == wanted and not common and kinds[0] != kinds[1]:
        here, there = (", ".join(kind) for kind in kinds)
        return (f"the model is called with other tensors ({here}; the reference's: {there}): samples are cut, padded "
                "or typed otherwise, or labels go to the loss alone")
    if world > 1 and all(fed == ours.fed[0] for fed in ours.fed) and n:
        return (f"every rank was fed the same {n // world} samples: no sampler deals them out (DistributedSampler), or "
                "all ranks take the first share")
    if n != wanted:
        factor = f"{n / wanted:.4g} times" if wanted else "none in the reference"
        meaning = ("the batch of a process is taken for that of all, or the other way round" if n > wanted else
                   "micro-batches, or the shares of some ranks, are lost")
        return f"{n} samples were fed, the reference's are {wanted} ({factor}): {meaning}"
    if common:
        other = [2 * (fed & right).total() < fed.total() for fed in ours.fed]
        meaning = "a sampler that pads or drops at its end, or some are prepared differently"
        if any(other):
            meaning = "another order or seed of shuffling" if all(other) else (
                f"rank {other.index(True)} shuffles by another order or seed than rank {other.index(False)}")
        return f"{wanted - common} of {n} samples are not the reference's: {meaning}"
    seen = sum((fed for step in steps for fed in step.fed), Counter[str]())
    if mine & seen:
        return f"its {n} samples are those of other steps of the reference: another order or seed of shuffling"
    return (f"none of its {n} samples is one of the reference's traced steps: another order or seed of shuffling, or "
            "they are prepared differently")


def other_loss(facts: Facts, ours: Step, theirs: Step) -> str:
    """Return what another loss of the same samples means."""
    ratio = ours.loss / theirs.loss if theirs.loss else math.nan
    micro, samples = len(ours.ranks[0].loss), sum(ours.fed, Counter[str]()).total()
    calls = max(1, len(ours.ranks[0].fed)) * len(ours.ranks)
    for factor, words in ((micro, "it is summed over the micro-steps and not averaged"),
                          (1 / micro, "it is divided by the number of micro-steps twice"),
                          (samples / calls, "it is the sum over a batch and not its mean"),
                          (facts.world, "it is summed over the ranks and not averaged"),
                          (ours.ranks[0].scale, "the loss scale is not taken out")):
        if factor not in (0, 1) and abs(ratio / factor - 1) < ALIKE:
            return f"{ratio:.4g} times: {words}"
    if ratio >= SCALES_FROM and abs(math.log2(ratio) - round(math.log2(ratio))) < ALIKE:
        return f"{ratio:.6g} times: it holds the scale of a GradScaler; hand that to watch.trace(..., scaler=scaler)"
    rows = [max((len(call) for rank in step.ranks for call in rank.fed), default=0) for step in (ours, theirs)]
    norm = next((name for name in facts.ours.header.untrained if name.endswith("running_mean")), "")
    if norm and 0 not in rows and rows[0] != rows[1]:
        return (f"the model normalises over the samples of one call ({norm!r}), {rows[0]} here and {rows[1]} in the "
                "reference, so it cannot train alike (BatchNorm; SyncBatchNorm takes the samples of all ranks)")
    if any(step.ranks[0].draws for step in (ours, theirs)):
        return ("the forward pass draws random numbers (such as a rate of dropout that a function gets), and others in "
                "each process: set them aside to compare")
    if ours.number == 1:
        if not (ours.ranks[0].fed and theirs.ranks[0].fed):
            return "the samples were not seen: others, another order, other labels or another reduction"
        return ("the same samples and weights give another loss: other labels, another reduction or smoothing, or a "
                "mean over other tokens for each rank")
    if (last := max((step.number for step in facts.ours.steps if step.number < ours.number), default=0)) \
            < ours.number - 1:
        return (f"the two have parted between steps {last} and {ours.number}, which were not traced; name some of them "
                "in gate.later")
    return "what is not compared differs: labels, buffers, or a state outside the weights"


def other_settings(facts: Facts, ours: Step, theirs: Step) -> str:
    """Return which setting of the optimizer differs, and for which tensors; "": none."""
    mine, right = ours.settings, theirs.settings
    both = [name for name in right if name in mine]
    stated = {key for name in both for key in mine[name] if key in right[name]}
    for key in (*(name for name in _FIRST if name in stated), *sorted(stated - {*_FIRST} - _MUTE)):
        other = [name for name in both if key in mine[name] and key in right[name]
                 and _rounded(mine[name][key]) != _rounded(right[name][key])]
        if not other:
            continue
        found, wanted = mine[other[0]][key], right[other[0]][key]
        share = f" for {len(other)} of {len(both)} tensors, such as {other[0]!r}" if len(other) < len(both) else ""
        text = f"{key} is {_shown(found)}, the reference's {_shown(wanted)}{share}"
        return f"{text}{_other_rate(facts, other[0], found / wanted)}" if key == "lr" and wanted else text
    return ""


def _other_rate(facts: Facts, tensor: str, ratio: float) -> str:
    """Return what a learning rate means that is `ratio` times the reference's in the first step where they differ."""
    right = {step.number: step.settings for step in facts.theirs.steps}
    pairs = [(step.settings.get(tensor, {}).get("lr"), right.get(step.number, {}).get(tensor, {}).get("lr"))
             for step in facts.ours.steps]
    constant = all(abs(mine - ratio * wanted) <= ALIKE * abs(ratio * wanted) for mine, wanted in pairs
                   if mine is not None and wanted is not None)
    times = f" ({ratio:.4g} times)"
    if not constant:
        return f"{times}: the schedule or its warm-up begins elsewhere, or is stepped once a rank or micro-step"
    if facts.world > 1 and abs(ratio / facts.world - 1) < ALIKE:
        return f"{times}: it is multiplied by the number of ranks"
    return times


_FIRST = ("lr", "weight_decay", "betas", "momentum", "nesterov")
_MUTE = {"initial_lr", "foreach", "fused", "capturable", "differentiable", "step", "maximize", "bias_correction",
         "decoupled_weight_decay"}
"""Settings that change nothing, or that not all classes of one rule state."""


def other_quantity(facts: Facts, what: Quantity, found: Mapping[str, Apart], ours: Step, theirs: Step) -> str:
    """Return what the differences of one quantity look like together."""
    if any(not math.isfinite(item.ours.norm) for item in found.values()):
        return "it overflows: a type with too few exponents, or a loss scale that is not taken out"
    if what == "gradient":
        return _other_gradient(facts, found, ours, theirs)
    if what == "clipping":
        if all(not item.ours.norm for item in found.values()):
            return "it has a gradient, but the optimizer was not given it"
        common = _common(item.factor for item in found.values())
        if common is not None and common > 1 and _clip(theirs) is None:
            return f"between backward pass and update it is multiplied: {factor_cause(common, facts.world, 1)}"
        if common is not None and (ours.gradient.apart or theirs.gradient.apart):  # their norm is not known
            return f"{common:.4g} times it in all: clipped by its norm to another limit, or multiplied"
        return _other_clipping(facts, ours, theirs)
    return _other_update(facts, found, ours, theirs)


def _other_gradient(facts: Facts, found: Mapping[str, Apart], ours: Step, theirs: Step) -> str:
    common = _common(item.factor for item in found.values())
    if common is None:
        before = next((step for step in facts.ours.steps if step.number == ours.number - 1), None)
        return KEPT_GRADIENT if before is not None and _holds(before, found) else NO_FACTOR
    micro, scale = max(1, len(ours.ranks[0].loss)), ours.ranks[0].scale
    if scale != 1 and abs(common / scale - 1) < ALIKE:
        return "the loss scale is not taken out"
    return factor_cause(common, facts.world, micro)


def _holds(before: Step, found: Mapping[str, Apart]) -> bool:
    """Return True if gradients are the reference's plus those of the step before."""
    pairs = [(item.ours.sketch - item.theirs.sketch, before.gradient.whole[name].sketch)
             for name, item in found.items() if name in before.gradient.whole]
    left, whole = (math.hypot(*(float(np.linalg.norm(value)) for value in values))
                   for values in ([more - then for more, then in pairs], [then for _, then in pairs]))
    return bool(pairs) and left <= PURE * whole


def _other_clipping(facts: Facts, ours: Step, theirs: Step) -> str:
    mine, right = _clip(ours), _clip(theirs)
    if mine is None and right is None:
        return "gradients are clipped by value or tensor by tensor, or changed otherwise before the update"
    here, there = (f"to norm {limit:.4g}" if limit is not None else "not at all" for limit in (mine, right))
    text = f"the gradients (norm {ours.gradient.norm:.4g}) are clipped {here}, the reference's {there}"
    for trace, limit, side in ((facts.ours, mine, ""), (facts.theirs, right, "in the reference ")):
        engine = trace.header.deepspeed
        if engine is not None and limit is not None and not engine.clipping_stated and engine.clipping > 0:
            return (f"{text}: {side}DeepSpeed {engine.version} clips at norm {engine.clipping:g} unless its "
                    "configuration states gradient_clipping; state it, 0 for none")
    return text


def _clip(step: Step) -> float | None:
    """Return the norm to which a step's gradients were clipped; None: they were not, or not all by one factor."""
    before, after = step.gradient.norm, step.clipped.norm
    if not before or after >= before * (1 - 1e-4):
        return None
    factors = [item.norm / step.gradient.whole[name].norm for name, item in step.clipped.whole.items()
               if step.gradient.whole[name].norm > NOTHING * before]
    return after if max(factors) - min(factors) <= ALIKE * min(max(factors), 1 - min(factors)) else None


def _other_update(facts: Facts, found: Mapping[str, Apart], ours: Step, theirs: Step) -> str:
    if all(item.theirs.norm and item.ours.norm < NOTHING * item.theirs.norm for item in found.values()):
        return "it is not updated: the optimizer was not given it"
    if all(not item.theirs.norm for item in found.values()):
        return "it is updated, and not in the reference"
    kinds = facts.ours.header.optimizer, facts.theirs.header.optimizer
    if decay := _decay(found, ours, theirs):
        return f"{decay}{'' if kinds[0] == kinds[1] else f' ({kinds[0]} ran, {kinds[1]} in the reference)'}"
    if kinds[0] != kinds[1]:
        return f"another rule: {kinds[0]} ran, {kinds[1]} in the reference"
    common = _common(item.factor for item in found.values())
    if common is not None:
        return f"{common:.4g} times it: another rate, decay or limit of clipping"
    return UPDATE_CAUSE if ours.number > 1 else f"{NO_FACTOR}; or it is another rule"


def _decay(found: Mapping[str, Apart], ours: Step, theirs: Step) -> str:
    """Return that the updates differ by a multiple of the weights, if they do."""
    shares = []
    for name, item in found.items():
        weights, apart = theirs.weights.whole[name], item.ours.sketch - item.theirs.sketch
        if not weights.norm or not np.linalg.norm(apart):
            continue
        along = float(apart @ weights.sketch)
        if abs(along) < PARALLEL * np.linalg.norm(apart) * np.linalg.norm(weights.sketch):
            return ""
        shares.append(along / float(weights.sketch @ weights.sketch))
    rate = next((stated["lr"] for stated in ours.settings.values() if stated.get("lr")), 0.0)
    if not shares or not rate:
        return ""
    more = -float(np.median(shares)) / rate
    word = "larger" if more > 0 else "smaller"
    return f"it differs by a multiple of the weights: the decay is {word} by {abs(more):.3g}"


def _common(factors: Any) -> float | None:
    """Return the one factor of all tensors; None: there is none."""
    known = [*factors]
    if not known or any(math.isnan(factor) for factor in known):
        return None
    middle = float(np.median(known))
    return middle if all(abs(factor - middle) <= ALIKE * max(abs(middle), NOTHING) for factor in known) else None


def _types(trace: Trace, what: str) -> Mapping[str, int]:
    if what == "state":
        return {name: count for step in trace.steps[:1] for name, count in step.ranks[0].state.items() if count > 1}
    return trace.header.formats.get(what, {})


def _rounded(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return tuple(map(_rounded, value))
    return float(f"{value:.5g}") if isinstance(value, float) else value


def _shown(value: Any) -> str:
    return f"{value:.5g}" if isinstance(value, float) else str(value)
