"""The options of AdaptAhead, our reading: Nesterov's look-ahead with the scaling of RMSProp."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from repro.optimizers.rules import Decay, Rule


class AdaptAhead(Rule):
    """AdaptAhead (our reading): Nesterov's look-ahead with the scaling of RMSProp.

    Of "A Hybrid Optimization Algorithm for Learning Deep Models"; the formulas are in `update.py`. As with Nesterov
    momentum in SGD, the model holds and is evaluated at the look-ahead weights.
    """

    preload = (*Rule.preload, "repro.papers.adaptahead.update")
    rule = "repro.papers.adaptahead.update:AdaptAhead"
    moves_at_rate_zero: ClassVar[bool] = True

    momentum: float = Field(0.9, ge=0, lt=1)
    rho: float = Field(0.99, ge=0, lt=1, description="share of the mean square that a step keeps")
    eps: float = Field(1e-8, gt=0, description="added to the mean square, inside of the root")
    weight_decay: float = Field(0.0, ge=0)
    decay: Decay = "all"
