"""Likely causes, in words, of a step that differs from the harness's own: of its loss, gradient, buffers or update."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from repro.core.frozen import Frozen

NOTHING, NEAR, EXPLAINED, EXACT = 1e-3, 0.02, 0.2, 0.02
"""Largest ratio that is none, largest distance from a factor that is this factor, and the shares of a difference that a
factor may leave open if it is one explanation, and if it is the only one."""
SLIGHT = 5e-3
"""Relative difference of a layer's output up to which rounding may be the cause: bfloat16 has three digits."""
STATEFUL = ", or the model keeps state beside weights and buffers (then its workload is not `repeatable`)"
OTHER_FORWARD = "the forward pass is another one (a layer, something random, the loss), or it is of other samples"
NO_FACTOR = "no factor explains it: of another loss or other samples, rounded or noisy"
UPDATE_CAUSE = ("what the optimizer keeps is lost or rounded, it is another rule, the weights are changed beside it, "
                "or the gradient before it")
RANDOM = "the model is random (dropout), and other numbers may have been drawn; "
LIKE = {
    "late": "it is that of the step before",
    "kept": "it still holds that of the step before",
    "last": "it is that of the last micro-batch alone",
    "parts": "it is another mean of the ranks and micro-batches, which count so many times: {}",
    "gradient": "the gradient in it counts {} times: another limit of clipping, or dampening",
    "gradients": "the gradient in it counts another number of times in each tensor, {}: clipping of some tensors or of "
                 "each one alone, or rates of their own",
    "decayed": "it differs by a share of the weights: weight decay where there is none, or another one",
    "bfloat16": "it is that in bfloat16",
    "float32": "it is that in float32",
    "evaluation": "it is that in evaluation mode",
    "masks": f"{RANDOM}or {OTHER_FORWARD}",
    "centred": "the mean over the inputs of each output is taken away from it",
    "cut": "its largest numbers are cut",
    "thinned": "some of its numbers are 0",
    "forgotten": "what the optimizer keeps (momentum, moments) is lost or not used",
    "narrow": "the weights are rounded to bfloat16 after it",
    "unclipped": "it is that without clipping",
    "nesterov": "it is that with Nesterov's momentum",
    "no nesterov": "it is that without Nesterov's momentum",
    "uncorrected": "it is that without the correction of the moments for the first steps (bias correction)",
    "decoupled": "it is that with weight decay beside the gradient, as AdamW has it",
    "coupled": "it is that with weight decay in the gradient, as Adam has it",
    "left out": "the weights do not change: the update is left out, its rate is 0, or the optimizer does not have them",
    "frozen": "what the optimizer keeps as {} is not updated",
    "factor": "it is {} times as large: another rate or limit of clipping",
    "momentum": "what the optimizer keeps (momentum) counts {} times in it",
    "other gradient": "the gradient in it counts another number of times: another limit of clipping, or one of the "
                      "steps before was left out",
    "rounded": "what the optimizer keeps is rounded to bfloat16",
    "still": "it did not change in this step",
    "follows": "its change is {} the right one: another momentum",
    "option": "it is that with another {}",
}
"""Of a loss, a gradient or an update that is like another one."""

LIKE_SCORE = {
    "training": "it is that in training mode",
    "before": "it is that of the weights before the last step",
    "model": "the trained model was not called: another model, or an earlier value",
    "again": "repeated it is right: it is that of an earlier evaluation, or depends on what came before it",
    "loss": "the outputs of all layers are correct: the metric is another one, or is added up otherwise",
    "": "of other samples, other weights or another function",
}


class Place(Frozen):
    """First place in which a step differs from the harness's own."""

    at: Literal["samples", "input", "output", "loss", "backward", "nowhere", "model", "again"]
    """The inputs of the model, the input of a layer, its output, the loss (of an evaluation: the metric) of correct
    outputs, back-propagation through a layer; "nowhere": no layer differs, so gradients are changed after
    back-propagation, or the engine reports another loss. Of an evaluation that did not call the trained model
    ("model"), or was right when it was repeated ("again")."""
    layer: str = ""
    """Its name; "": the model itself, behind its layers."""
    kind: str = ""
    """Its class."""
    apart: float = 0.0
    """Relative difference of the norm, or of one projection, of its output ("output")."""
    turns: tuple[int, ...] = ()
    """Micro-batches that differ, and all; empty: all do."""
    ranks: tuple[int, ...] = ()
    """Ranks on which one differs; empty: all."""


def factor_cause(ratio: float, processes: int, accumulation: int, *, exact: bool = False) -> str:
    """Return what a gradient that is `ratio` times the right one looks like.

    Args:
        exact: it has the direction of the right one, which that of one rank or micro-batch seldom has.
    """
    if abs(ratio) < NOTHING:
        return "it is not trained"
    alone = ("", "") if exact else ("one rank alone contributes, or ", "one micro-batch alone contributes, or ")
    known = ((processes, "it is summed over the ranks and not averaged"),
             (accumulation, "it is summed over the micro-batches and not averaged"),
             (1 / processes, f"{alone[0]}it is averaged over the ranks twice"),
             (1 / accumulation, f"{alone[1]}it is averaged over the micro-batches twice"))
    near = [words for factor, words in known if factor != 1 and abs(ratio / factor - 1) < NEAR]
    return "; or ".join(dict.fromkeys(near)) or f"{ratio:.4g} times it"


def place_cause(place: Place, *, of_loss: bool) -> str:
    """Return where a loss, or a gradient, begins to differ."""
    layer = f"layer {place.layer!r} ({place.kind})" if place.layer else "the model behind its layers"
    slightly = 0 < place.apart < SLIGHT
    found = {
        "input": f"the input of {layer} is the first to differ: it is changed before this layer",
        "output": f"the output of {layer} is the first to differ" + (
            f", by {place.apart:.1g} of its norm: it is rounded or computed in another type, or has a slightly other "
            "function (a factor, an epsilon) or weights" if slightly else
            ": it has another function or mode, other weights or other random numbers"),
        "loss": "the outputs of all layers are correct: the loss is another one, or of changed outputs or targets",
        "backward": f"back-propagation through {layer} is the first to differ: its output is correct, and its gradient "
                    "is not",
        "nowhere": "all layers are correct, forwards and backwards: "
                   + ("the reported loss is another one" if of_loss else
                      "it is changed where it is added up, averaged, compressed or sent"),
    }.get(place.at, "the inputs of the model are the first to differ: other samples, or changed ones")
    only = [f"{' of '.join(map(str, place.turns))} micro-batches"] if place.turns else []
    if place.ranks:
        only.append(f"rank{'s' * (len(place.ranks) > 1)} {', '.join(map(str, place.ranks))}")
    return found + (f"; only in {' of '.join(only)}" if only else "")


def score_cause(like: str, place: Place | None = None) -> str:
    """Return what a differing evaluation is like, or where it begins to differ."""
    if like or place is None:
        return LIKE_SCORE.get(like, f"it is that of {like} alone, or equals it by chance")
    return LIKE_SCORE.get(place.at) or place_cause(place, of_loss=True)


def names_of(differing: Sequence[str], differ: int) -> str:
    """Return which tensors differ; "": all of them."""
    if not differ:
        return ""
    named = ", ".join(map(repr, differing))
    return f"; in {named} and {differ - len(differing)} more" if differ > len(differing) else (
        f"; only in {named}")
