"""End of a trial and its criterion of success: a target, or a number of timed steps."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from repro.seams.training import Direction
from repro.suite.design import JUDGES, Judges, claim_text
from repro.suite.field_problem import FieldProblem, SuitePart

OF_A_TARGET = ("metric", "target", "max_epochs", "confirm_evals", "direction")
"""Fields that only a design with a target has."""
OF_STEPS = ("steps", "warmup")
"""Fields that only design fixed_steps has."""
NO_TARGET = ("design fixed_steps asks for throughput and memory, not for a quality: it has no {name}; remove it, or "
             "use design stop_at_target or fixed_budget")
ALPHA = 0.01
"""Level of the claim of quality, if a suite says nothing else."""
MOST_OPERATIONS = 100_000

Alpha = Annotated[float, Field(gt=0, lt=0.5, description="design contest: level of the claim that the mean quality is "
                                                         "at least as good as the target")]
ConfirmEvals = Annotated[int, Field(
    ge=1, description="consecutive evaluations at or past the target that establish it")]


class Repeats(SuitePart):
    """Operations of a measurement: it has no target and ends after its repeats."""

    repeats: int = Field(ge=1, le=MOST_OPERATIONS, description="operations that are timed")
    warmup: int = Field(1, ge=0, le=MOST_OPERATIONS, description="operations before those, in no figure")
    design: ClassVar[str] = "repeats"
    judges: ClassVar[Judges] = JUDGES[design]
    has_target: ClassVar[bool] = False
    metric: ClassVar[str] = ""
    claim: ClassVar[str] = ""
    target: ClassVar[float | None] = None
    direction: ClassVar[Direction | None] = None
    confirm_evals: ClassVar[int] = 1
    steps: ClassVar[int | None] = None


class Bar(SuitePart):
    """What a trial, or the mean of all trials, has to reach: what all designs with a target share."""

    if TYPE_CHECKING:  # declared by every end itself, so that its fields stay in the order in which people read them
        metric: str
        target: Any
        confirm_evals: int
        design: Any
        alpha: float
        direction: Direction | None

    @property
    def judges(self) -> Judges:
        """What the target judges; nothing under design fixed_steps, which evaluates nothing."""
        return JUDGES[self.design]

    @property
    def has_target(self) -> bool:
        return self.judges != "nothing"

    @property
    def claim(self) -> str:
        """The claim about the mean quality of all trials in words; "" if the target judges none."""
        if self.judges != "mean":
            return ""
        return claim_text(self.metric, self.direction or "", self.target, self.alpha)

    @model_validator(mode="after")
    def _one_claim(self) -> Bar:
        if self.judges != "mean" and self.alpha != ALPHA:
            raise FieldProblem(f"only design contest tests a mean, not {self.design}; remove it", ("alpha",))
        if self.judges == "mean" and self.confirm_evals != 1:
            raise FieldProblem("a contest judges the last evaluation of a run alone; remove it", ("confirm_evals",))
        return self

    @model_serializer(mode="wrap")
    def _own_fields(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out what only another design has."""
        foreign = (*(OF_STEPS if self.has_target else OF_A_TARGET), *(() if self.judges == "mean" else ("alpha",)))
        data: dict[str, Any] = handler(self)
        return {name: value for name, value in data.items() if name not in foreign}


class Stop(Bar):
    """End of a trial and its criterion of success, declared beforehand."""

    metric: str = Field("", description="a metric of the workload")
    target: float | None = Field(None, description="the quality to reach")
    max_epochs: float | None = Field(None, gt=0, le=1e6, description="budget in passes over the training data")
    confirm_evals: ConfirmEvals = 1
    design: Literal["stop_at_target", "fixed_budget", "contest", "fixed_steps"] = Field(
        "stop_at_target", description="stop_at_target: a trial ends at its target; fixed_budget: at the end of its "
                                      "epochs; contest: the same, and the target judges the mean over all trials; "
                                      "fixed_steps: after a number of steps, without a target")
    alpha: Alpha = ALPHA
    direction: Direction | None = Field(None, description="filled in from the workload's metric")
    steps: int | None = Field(None, ge=1, le=1_000_000, description="design fixed_steps: steps that are timed")
    warmup: int = Field(0, ge=0, le=1_000_000, description="design fixed_steps: steps before those, in no speed")

    @model_validator(mode="after")
    def _one_design(self) -> Stop:
        foreign = [name for name in (OF_STEPS if self.has_target else OF_A_TARGET) if name in self.model_fields_set
                   and getattr(self, name) != type(self).model_fields[name].default]
        if foreign:
            raise FieldProblem(f"only design fixed_steps has it, not {self.design}" if self.has_target
                               else NO_TARGET.format(name=foreign[0]), (foreign[0],))
        for name in ("metric", "target", "max_epochs") if self.has_target else ("steps",):
            if getattr(self, name) in ("", None):
                why = "" if self.has_target else ": design fixed_steps times a number of steps"
                raise FieldProblem(f"is missing{why}", (name,))
        return self


def stop_phrase(value: str) -> str:
    """Return a level of the factor `stop` in words, `to top1 0.97 in 20 epochs`; `value` as labels write it: JSON."""
    given = json.loads(value) if value.startswith("{") else {}
    if given.get("target") is None:
        return f"{given['steps']} steps" if "steps" in given else f"stop {value}"
    return f"to {given.get('metric')} {given['target']:g} in {given.get('max_epochs', 0):g} epochs"
