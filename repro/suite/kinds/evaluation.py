"""How a suite says what a program states of its quality: fields, regular expressions of lines, ready ones by name."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import re2
from pydantic import Field, model_validator

from repro.core.errors import nearest
from repro.suite.field_problem import FieldProblem, SuitePart

POSITIONS = ("step", "samples", "epoch")
"""Counters of progress: optimizer steps, training samples, epochs so far."""
CLOCKS = ("train_ms", "train_s", "train_time")
"""The program's own clock, training time so far: milliseconds, seconds, or a number with its unit (ms, s, min, h)."""
LONGEST = 1000
"""Longest pattern, in characters."""
MEMORY = 8 << 20
"""Most bytes that a compiled pattern may take while it matches."""
GROUPS: dict[str, tuple[str, ...]] = {
    "evaluation": ("value", *POSITIONS, *CLOCKS), "progress": (*POSITIONS, *CLOCKS), "context": POSITIONS,
    "start": (), "stop": (),
}
"""Patterns of a program's lines, each searched anywhere in a line, and the named groups that each may have.

evaluation: a statement of the quality (group `value`), and where it has them a position and a clock. progress: one of
position or clock without a quality. context: a line whose position holds for the evaluations after it that state none.
start: the training begins. stop: it ended; lines after it mean nothing.
"""


class Pattern:
    """A compiled pattern.

    RE2 matches in time linear in the line: no pattern can stall the harness, whatever a program prints.
    """

    def __init__(self, expression: Any) -> None:
        """Make it of an expression that `re2` has compiled."""
        self._search = expression.search
        self._groups = tuple(expression.groupindex.items())
        self.names = tuple(expression.groupindex)

    def find(self, line: bytes) -> dict[str, str] | None:
        """Return the named groups that took part in the first match in a line of UTF-8; None if nothing matches."""
        match = self._search(line)
        if match is None:
            return None
        return {name: found.decode(errors="replace")  # \C matches a part of a character
                for name, index in self._groups if (found := match[index]) is not None}


def compile_pattern(name: str, text: str) -> Pattern:
    """Return the compiled pattern; `name` is a key of `GROUPS`. It has neither look-around nor back references.

    Raises:
        FieldProblem: it is no regular expression, has a group that means nothing, or lacks one it needs.
    """
    if len(text) > LONGEST:
        raise FieldProblem(f"a pattern of {len(text)} characters; at most {LONGEST} are read", (name,))
    try:
        with warnings.catch_warnings():  # of sets that a later Python may read otherwise; RE2 decides what they mean
            warnings.simplefilter("ignore")
            known = re.compile(text).groupindex  # its messages have the position; RE2's have not
    except re.error as reason:
        raise FieldProblem(f"not a regular expression: {reason}", (name,)) from None
    except (RecursionError, OverflowError) as reason:
        raise FieldProblem(f"not a usable regular expression: {reason}", (name,)) from None
    _check_groups(name, tuple(known))
    options = re2.Options()
    options.log_errors, options.max_mem = False, MEMORY
    try:
        pattern = Pattern(re2.compile(text, options))
    except re2.error as reason:
        why = reason.args[0].decode() if reason.args and isinstance(reason.args[0], bytes) else str(reason)
        raise FieldProblem(
            f"{why}: patterns are RE2's, which has no look-around, no back references and no repeats above 1000",
            (name,)) from None
    if pattern.find(b"") is not None:
        raise FieldProblem("the pattern matches an empty line, so it matches every line", (name,))
    return pattern


def _check_groups(name: str, groups: tuple[str, ...]) -> None:
    allowed = GROUPS[name]
    for group in groups:
        if group == "value" and name == "progress":
            raise FieldProblem("group `value` is the quality: a line with it is an evaluation, not progress", (name,))
        if group not in allowed:
            valid = nearest(group, allowed) if allowed else f"; {name} takes no named groups"
            raise FieldProblem(f"group `{group}` means nothing here{valid}", (name,))
    if name == "evaluation" and "value" not in groups:
        raise FieldProblem("no group `value`: write (?P<value>...) around the quality, such as "
                           r"'val_loss:(?P<value>\S+)'", (name,))
    if allowed and not groups:
        raise FieldProblem(f"no named group; it needs one of {', '.join(allowed)}", (name,))
    clocks = [group for group in groups if group in CLOCKS]
    if len(clocks) > 1:
        raise FieldProblem(f"groups {' and '.join(f'`{clock}`' for clock in clocks)} state one clock twice; keep one "
                           "(`train_time` reads a number with its unit)", (name,))


Kind = Literal["patterns", "airbench", "csv"]
SPEEDRUN = r"(?:^|\]: ?)step:(?P<step>\d+)/\d+ "
CLOCK = r"train_time:(?P<train_time>[\d.]+m?s) step_avg:\d"
"""The clock counts where `step_avg` is a number: before that, logs print `step_avg:nanms`, the times hold the
compilation, and the clock starts over after the tenth step."""


@dataclass(frozen=True, slots=True)
class Ready:
    """Patterns of one well-known program."""

    about: str
    metrics: str
    """Regular expression of the names of the qualities that it prints."""
    example: str
    """One such name."""
    kind: Kind = "patterns"
    """patterns: lines by `patterns`; airbench: its table; csv: a file of metrics, not lines."""
    made: Mapping[str, str] = field(default_factory=dict)
    """By their names in `GROUPS`, with METRIC for the name of the quality."""
    start: str = ""
    """What it prints when its training begins, after imports and data; not every version and option of it does. "": its
    table says so."""

    def patterns(self, metric: str) -> dict[str, str]:
        """Return the patterns for a quality, by name.

        Raises:
            FieldProblem: this kind is not read by patterns.
        """
        if not self.made:
            raise FieldProblem(f"{self.about}: it is read by its columns, not by patterns")
        return {**self.made, "evaluation": self.made["evaluation"].replace("METRIC", re.escape(metric))}


EPOCH = r".*'epoch': '?(?P<epoch>[^,'}]+)"
"""In the dictionaries of Hugging Face's Trainer."""
LLM_C_STEP = r"^step +(?P<step>\d+)(?:/\d+ \||: train loss )"
"""On a GPU `step 1/20 | loss ...`, on a processor `step 0: train loss ...`."""
BAR = r": .*\| *0/(?:\d+|\?) \[00:00<"
"""The first state of a progress bar of tqdm, after its title."""
READY: dict[str, Ready] = {
    "nanogpt-speedrun": Ready("modded-nanogpt's speed-run", "val_loss", "val_loss",
                              start=r"(?:^|\]: ?)step:0/\d+ ", made={
        "evaluation": rf"{SPEEDRUN}METRIC:(?P<value>\S+)(?: {CLOCK})?",
        "progress": rf"{SPEEDRUN}(?:train_loss:\S+ )?(?:{CLOCK}|train_time:)"}),
    "nanogpt": Ready("nanoGPT's train.py", "val_loss", "val_loss", start="^using fused AdamW: ", made={
        "evaluation": r"^step (?P<step>\d+): train loss \S+, val loss (?P<value>[^\s,]+)",
        "progress": r"^iter (?P<step>\d+): loss "}),
    "llm.c": Ready("llm.c's train_gpt2", "val_loss", "val_loss",
                   start="^(?:=> setting grad_accum_steps=|val dataset num_batches: )", made={
        "evaluation": r"^val loss (?P<value>\S+)$", "progress": LLM_C_STEP, "context": LLM_C_STEP}),
    "huggingface-trainer": Ready("Hugging Face Trainer's dictionaries", r"eval_\w+", "eval_loss",
                                 start=r"\*{5} Running training \*{5}|^ *0%\|.*\| *0/\d+ \[00:00<",
                                 made={
        "evaluation": rf"'METRIC': '?(?P<value>[^,'}}]+){EPOCH}", "progress": rf"\{{'loss': {EPOCH}",
        "stop": r"\{'train_runtime': "}),
    "keras": Ready("Keras' fit, verbose 1 or 2", r"val_\w+", "val_accuracy", start=r"^Epoch 1/\d+$",
                   made={
        "evaluation": r"^ *\d+/\d+ .* - METRIC: (?P<value>\S+)", "context": r"^Epoch (?P<epoch>\d+)/\d+$"}),
    "airbench": Ready("cifar10-airbench's table", "val_acc|tta_val_acc", "tta_val_acc", kind="airbench"),
    "lightning-csv": Ready("Lightning's metrics.csv", r"[^,\s\"]+", "val_loss", kind="csv",
                           start=f"Total estimated model params size|^(?:Training|Epoch 0){BAR}"),
}


def ready(name: str, metric: str) -> Ready:
    """Return the way to read a well-known program.

    Raises:
        FieldProblem: there is none of this name, or it never prints this quality.
    """
    found = READY.get(name)
    if found is None:
        raise FieldProblem(f"no ready pattern named {name!r}{nearest(name, READY)}", ("pattern",))
    if re.fullmatch(found.metrics, metric) is None:
        raise FieldProblem(f"{name} reads {found.about}, which state no {metric!r}; a name that fits: "
                           f"{found.example!r}", ("metric",))
    return found


PATTERNS = ("pattern", "progress", "context", "start", "stop")


class Evaluation(SuitePart):
    """Reader of a program's stated quality."""

    metric: str = Field(pattern=r"^[A-Za-z_][\w./ -]{0,99}$", description="name of the quality")
    direction: Literal["higher", "lower"] = Field(description="which values are better")
    reader: Literal["pattern", "mllog", "watch", "tensorboard", "none"] = Field(
        "pattern", description="pattern: lines of its output; mllog: MLPerf's log lines; watch: `repro.watch` in its "
                               "code; tensorboard: event files; none: nothing is evaluated (stop.design: end)")
    pattern: str = Field("", max_length=1000, description="regular expression (RE2) with a group `value`, or the name "
                                                          "of a ready one")
    progress: str = Field("", max_length=1000, description="regular expression of lines with steps but no quality")
    context: str = Field("", max_length=1000, description="regular expression of lines whose step holds for the "
                                                          "evaluations after them")
    start: str = Field("", max_length=1000, description="regular expression of the line with which training begins; "
                                                        "empty: that of a ready pattern, else with the start of the "
                                                        "process")
    stop: str = Field("", max_length=1000, description="regular expression of the line with which training ends")
    key: Literal["eval_accuracy", "eval_error"] = Field("eval_accuracy", description="mllog: key of the quality")
    tag: str = Field("", max_length=200, description="tensorboard: the scalar that is the quality")
    axis: Literal["step", "samples", "epoch"] = Field("step", description="tensorboard: what its steps count")
    logs: str = Field("", max_length=1000, description="file of a csv pattern, or folder of the event files, relative "
                                                       "to the working folder; takes placeholders")
    least_own_share: float = Field(0.5, ge=0, le=1, description="least share of the harness's clock that the "
                                   "program's own clock must count; less makes a trial invalid")

    @model_validator(mode="after")
    def _of_its_reader(self) -> Evaluation:
        if self.reader == "pattern" and not self.pattern:
            raise FieldProblem("is missing: it finds the quality in the output; or name another reader", ("pattern",))
        foreign = {"pattern": (), "tensorboard": tuple(name for name in PATTERNS if name != "start"),
                   "none": tuple(name for name in PATTERNS if name not in ("start", "stop"))}
        if name := next((name for name in foreign.get(self.reader, PATTERNS) if getattr(self, name)), None):
            raise FieldProblem(f"reader {self.reader} has none; remove it", (name,))
        if self.known is not None:
            given = PATTERNS[1:] if self.known.kind == "airbench" else PATTERNS[1:3] + PATTERNS[4:]
            if name := next((name for name in given if getattr(self, name)), None):
                raise FieldProblem(f"the ready pattern {self.pattern} has its own; remove it", (name,))
        elif self.reader == "pattern":
            try:
                for name, text in self.patterns().items():
                    compile_pattern(name, text)
            except FieldProblem as error:
                path = "pattern" if error.path == ("evaluation",) else error.path[0]
                raise FieldProblem(str(error), (path,)) from error
        if self.start:
            compile_pattern("start", self.start)
        if bool(self.tag) != (self.reader == "tensorboard"):
            raise FieldProblem("only reader tensorboard has it; remove it" if self.tag else "is missing: the scalar "
                               "that is the quality", ("tag",))
        if bool(self.logs) != self.reads_file:
            raise FieldProblem("nothing reads a file here; remove it" if self.logs else "is missing: where the program "
                               "writes it", ("logs",))
        return self

    @property
    def known(self) -> Ready | None:
        """The ready pattern that it names, which has no group; None: its own, or another reader."""
        return ready(self.pattern, self.metric) if self.reader == "pattern" and "(" not in self.pattern else None

    @property
    def may_state_samples(self) -> bool:
        """The program may say how many samples an evaluation comes after, and not only after how many steps."""
        named = "(?P<samples>" in self.pattern + self.context
        return named or self.reader in ("watch", "mllog") or self.axis == "samples"

    @property
    def may_state_time(self) -> bool:
        """The program may say how long it has trained at an evaluation, by its own clock."""
        if self.reader != "pattern":
            return self.reader == "mllog"
        if self.known is not None and not self.known.made:
            return self.known.kind == "airbench"
        return any(f"(?P<{clock}>" in self.patterns()["evaluation"] for clock in CLOCKS)

    @property
    def begins(self) -> str:
        """Regular expression of the line with which training begins; "": the reader knows, or nothing tells."""
        return self.start or (self.known.start if self.known is not None else "")

    @property
    def reads_file(self) -> bool:
        """The quality comes from a file and not from the output."""
        return self.reader == "tensorboard" or (self.known is not None and self.known.kind == "csv")

    def patterns(self) -> dict[str, str]:
        """Return what the lines of the output mean: patterns by their names in `GROUPS`."""
        if self.known is not None:
            return self.known.patterns(self.metric)
        given = {"evaluation": self.pattern, "progress": self.progress, "context": self.context, "stop": self.stop}
        return {name: text for name, text in given.items() if text}
