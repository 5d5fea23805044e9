"""Reader of the quality that a user's program states: its fields in a suite."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from repro.suite.field_problem import FieldProblem, SuitePart
from repro.suite.kinds.output_patterns import OutputPatterns
from repro.suite.kinds.ready_patterns import Ready, is_name, ready

PATTERNS = ("pattern", "progress", "context", "start", "stop")
LEAST_OWN = 0.5


class Evaluation(SuitePart):
    """Reader of a program's stated quality."""

    metric: str = Field(pattern=r"^[A-Za-z_][\w./ -]{0,99}$", description="name of the quality")
    direction: Literal["higher", "lower"] = Field(description="which values are better")
    reader: Literal["pattern", "mllog", "watch", "tensorboard"] = Field(
        "pattern", description="pattern: lines of its output; mllog: MLPerf's log lines; watch: `repro.watch` in its "
                               "code; tensorboard: event files")
    pattern: str = Field("", max_length=1000, description="regular expression (RE2) with a group `value`, or the name "
                                                          "of a ready one")
    progress: str = Field("", max_length=1000, description="regular expression of lines with steps but no quality")
    context: str = Field("", max_length=1000, description="regular expression of lines whose step holds for the "
                                                          "evaluations after them")
    start: str = Field("", max_length=1000, description="regular expression of the line with which training begins; "
                                                        "empty: with the start of the process")
    stop: str = Field("", max_length=1000, description="regular expression of the line with which training ends")
    key: Literal["eval_accuracy", "eval_error"] = Field("eval_accuracy", description="mllog: key of the quality")
    tag: str = Field("", max_length=200, description="tensorboard: the scalar that is the quality")
    axis: Literal["step", "samples", "epoch"] = Field("step", description="tensorboard: what its steps count")
    logs: str = Field("", max_length=1000, description="file of a csv pattern, or folder of the event files, relative "
                                                       "to the working folder; takes placeholders")
    least_own_share: float = Field(LEAST_OWN, ge=0, le=1, description="least share of the harness's clock that the "
                                   "program's own clock must count; less makes a trial invalid")

    @model_validator(mode="after")
    def _of_its_reader(self) -> Evaluation:
        if self.reader == "pattern" and not self.pattern:
            raise FieldProblem("is missing: it finds the quality in the output; or name another reader", ("pattern",))
        if name := next((name for name in PATTERNS if getattr(self, name) and self.reader != "pattern"), None):
            raise FieldProblem(f"reader {self.reader} has none; remove it", (name,))
        self._ready_or_own()
        if bool(self.tag) != (self.reader == "tensorboard"):
            raise FieldProblem("only reader tensorboard has it; remove it" if self.tag else "is missing: the scalar "
                               "that is the quality", ("tag",))
        if bool(self.logs) != self.reads_file:
            raise FieldProblem("nothing reads a file here; remove it" if self.logs else "is missing: where the program "
                               "writes it", ("logs",))
        return self

    def _ready_or_own(self) -> None:
        if self.reader != "pattern":
            return
        if is_name(self.pattern):
            ready(self.pattern, self.metric)
            if name := next((name for name in PATTERNS[1:] if getattr(self, name)), None):
                raise FieldProblem(f"the ready pattern {self.pattern} has its own; remove it", (name,))
            return
        try:
            self.patterns().compiled()
        except FieldProblem as error:
            raise FieldProblem(str(error), ("pattern" if error.path == ("evaluation",) else error.path[0],)) from error

    @property
    def known(self) -> Ready | None:
        """The ready pattern that it names; None: its own, or another reader."""
        return ready(self.pattern, self.metric) if self.reader == "pattern" and is_name(self.pattern) else None

    @property
    def reads_file(self) -> bool:
        """The quality comes from a file and not from the output."""
        return self.reader == "tensorboard" or (self.known is not None and self.known.kind == "csv")

    def patterns(self) -> OutputPatterns:
        """Return what the lines of the output mean."""
        if self.known is not None:
            return self.known.patterns(self.metric)
        return OutputPatterns(self.pattern, self.progress or None, self.context or None, self.start or None,
                              self.stop or None)
