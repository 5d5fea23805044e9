"""Options of the parity gate for a cell: the steps it leaves out, and the reason."""

from __future__ import annotations

from pydantic import Field, field_validator

from repro.suite.field_problem import SuitePart

EVAL_SAMPLES = 2048
"""Samples of an evaluation in the gate: all of a small data set, enough of a large one."""


class GateOptions(SuitePart):
    """The gate trains in fp32, and its reference on one device: a model that fits in a trial need not fit there."""

    skip: str | None = Field(None, max_length=300, description="do not gate the cell, for this reason, which the "
                                                               "plan, the report and its verdicts show")
    micro: int | None = Field(None, ge=1, description="samples per process and pass in the gate, at most the trial's; "
                                                      "null: the trial's")
    eval_samples: int = Field(EVAL_SAMPLES, ge=2, le=1 << 53, description="samples of an evaluation in the gate, over "
                                                                          "all processes")

    @field_validator("skip")
    @classmethod
    def _has_a_reason(cls, value: str | None) -> str | None:
        if value is not None and not value.strip():
            raise ValueError("needs a reason in words, because readers of the results see it")
        return None if value is None else " ".join(value.split())
