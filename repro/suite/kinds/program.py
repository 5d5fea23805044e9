"""The kind of trial that runs a command of the user's and reads its output."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from repro.core.errors import nearest
from repro.core.machine import Machine
from repro.core.redact import SECRET
from repro.core.source_code import PLACE_DIGITS
from repro.seams.training import Direction
from repro.suite.choice import Choice
from repro.suite.field_problem import FieldProblem, SuitePart
from repro.suite.kinds.evaluation import CLOCKS, Evaluation
from repro.suite.kinds.program_files import ProgramFiles
from repro.suite.kinds.stop import ALPHA, Alpha, Bar, ConfirmEvals
from repro.suite.kinds.trial_config import BatchSize, CarriedCode, LogSize, TrialConfig
from repro.suite.quality import Quality

Value = bool | int | float | str
SEED, RUN_DIR = "seed", "run_dir"
GIVEN = (SEED, "processes", "batch.global", RUN_DIR)
"""Placeholders that need no declaration."""
PLACEHOLDER = re.compile(r"\{\{([A-Za-z_][\w.-]*)\}\}|\{([A-Za-z_][\w.-]*)\}")
"""`{name}`, and `{{name}}` for the text `{name}` itself; any other brace stands for itself."""
RESERVED = ("REPRO_TRIAL", "REPRO_OWNER", "REPRO_WATCH", "REPRO_TRACE")
"""Variables by which the harness finds a program's processes and hears from it."""
UNFILLED = {SEED: f"{{{SEED}}}", RUN_DIR: f"{{{RUN_DIR}}}"}
ALL_PYTHON = ("**/*.py",)
NAME = r"^[A-Za-z_][A-Za-z0-9_]{0,99}$"
UNVERIFIED = ("self-reported: the programs state their quality and their training clock themselves; not gated: "
              "their data, its order, their initial weights and their arithmetic were not compared")
ONLY_TIMES = "only times are compared: that both do the same work was not checked"
SAME_PROGRAM = ("all run one command with the same arguments: they differ only in what the suite declares of it "
                "(batch, processes, epoch_samples), which the command does not take")
GATED = ("self-reported: the programs state their quality and their training clock themselves; gated: with these files "
         "the first steps of both train alike (watch.trace), later ones were not compared")
OF_SAMPLES = ("samples", "throughput")
OF_OWN_CLOCK = ("tta_train", "end_train")
FIGURES = ("tta_wall", "tta_train", "tta_cold", "end_wall", "end_train", "end_cold", "run_time", "accuracy", "energy",
           "gpu_energy", *OF_SAMPLES)
"""Metrics that a program can have; those of samples, if they can be counted."""
WRAPPERS = ("none", "ddp", "fsdp", "fsdp2", "deepspeed", *(f"deepspeed-{stage}" for stage in range(4)))
REQUESTS = {"--deepspeed": "deepspeed", "--use_deepspeed": "deepspeed", "ACCELERATE_USE_DEEPSPEED": "deepspeed",
            "--fsdp": "fsdp", "--use_fsdp": "fsdp", "ACCELERATE_USE_FSDP": "fsdp"}
"""Arguments and variables of Accelerate, the Hugging Face Trainer and DeepSpeed that request a wrapper."""


class Program(SuitePart):
    """A command, and the files that make it up."""

    kind: Literal["program"]
    run: tuple[str, ...] = Field(min_length=1, max_length=1000, description="the command as a list of arguments, never "
                                 "through a shell; {seed}, {processes}, {batch.global}, {run_dir} and parameters in "
                                 "braces are filled in")
    folder: str = Field(".", min_length=1, max_length=1000, description="working folder, relative to the suite's file")
    files: tuple[str, ...] = Field(ALL_PYTHON, max_length=100, description="patterns of the files below it that are "
                                   "the program; none: [], for a command that is installed")
    commit: str = Field("", pattern=r"^([\w@][\w./~^@-]{0,199})?$", description="commit, tag or branch of the folder's "
                        "git repository to run, in a separate folder; empty: the files as they are")
    environment: dict[str, str] = Field(default_factory=dict, max_length=100, description="variables to set")
    passes: tuple[str, ...] = Field((), max_length=100, description="variables of this environment that it may see, "
                                    "in addition to those that any program needs")
    terminal: bool = Field(False, description="run it under a pseudo-terminal, for programs that hold back what "
                                              "they print into a pipe")
    sha256: str = Field("", pattern="^([0-9a-f]{64})?$", description="hash of its files, filled in when a plan is "
                        "made; given: the files must have it")

    @property
    def name(self) -> str:
        """The script or module that the command runs, for people: `train.py`."""
        scripts = [part for part in self.run if part.endswith((".py", ".sh"))]
        return PurePosixPath((scripts or self.run)[0]).name[:60]


class ProgramBatch(BatchSize):
    """Samples of one optimizer step, as the user declares them."""

    global_: int = Field(alias="global", ge=1, le=1 << 40, description="samples per optimizer step over all processes")


class ProgramGate(SuitePart):
    """The parity gate of programs that call `watch.trace`."""

    steps: int = Field(5, ge=1, le=100, description="first optimizer steps that are compared")
    later: tuple[Annotated[int, Field(ge=1, le=100_000)], ...] = Field(
        (), max_length=20, description="further steps that are compared")
    wrapper: str = Field("", max_length=100, description="what must distribute the training: none, ddp, fsdp, fsdp2, "
                         "deepspeed, deepspeed-0 to deepspeed-3; may hold parameters in braces; empty: what "
                         "well-known arguments request")

    @property
    def traced(self) -> list[int]:
        """Return the steps that are compared, ascending."""
        return sorted({*range(1, self.steps + 1), *self.later})


class ProgramStop(Bar):
    """Criterion of success, declared beforehand; the program itself decides when it ends."""

    target: float | None = Field(None, description="the quality to reach; of every design but end")
    confirm_evals: ConfirmEvals = 1
    design: Literal["fixed_budget", "stop_at_target", "contest", "end"] = Field(
        "fixed_budget", description="fixed_budget: it runs to its end; stop_at_target: it is ended (SIGTERM, then "
                                    "SIGKILL) when the target is established; contest: it runs to its end, and "
                                    "the target judges the mean over all trials; end: it runs to its end, nothing is "
                                    "evaluated, and only its time counts")
    alpha: Alpha = ALPHA
    metric: str = Field("", description="filled in from evaluation")
    direction: Direction | None = Field(None, description="filled in from evaluation")
    warmup: ClassVar[int] = 0
    steps: ClassVar[int | None] = None


NOTHING = Evaluation(metric="time", direction="lower", reader="none")
"""Of a program of which only the time counts."""


class ProgramConfig(TrialConfig):
    """Everything that defines a cell whose trials run a program."""

    plugin_fields: ClassVar[tuple[str, ...]] = ("launcher",)
    ranks: ClassVar[int] = 1
    gated: ClassVar[str] = GATED

    kind: Literal["program"] = Field("program", description="what a trial is; program: your own command")
    engine: Program
    parameters: dict[str, Value] = Field(default_factory=dict, max_length=1000,
                                         description="values that the command takes in braces; factors of the suite")
    evaluation: Evaluation = Field(NOTHING, description="how the quality is read; of every design but end")
    stop: ProgramStop
    processes: int = Field(1, ge=1, le=65536, description="ranks that the command starts; {processes} passes it")
    batch: ProgramBatch | None = Field(None, description="declared, so that steps can be counted as samples")
    epoch_samples: int | None = Field(None, ge=1, le=1 << 53, description="samples of one pass, so that they can be "
                                                                          "counted as epochs")
    launcher: Choice = Field("inline", validate_default=True)
    timeout_seconds: float = Field(3600.0, gt=0, le=1e7, description="longest a trial may take, start to end")
    stall_seconds: float | None = Field(None, ge=3, le=1e7, description="a trial is ended as hung after this long "
                                                                        "without output; null: only timeout_seconds")
    device: Literal["auto", "cpu", "cuda"] = "auto"
    # Left out of a dump if it is not stated: cells are named by what they state.
    gate: ProgramGate | None = Field(None, exclude_if=lambda gate: gate is None, description=(
        "a run first compares the first steps of all cells; null: only `repro gate` does"))

    @model_validator(mode="after")
    def _consistent(self) -> ProgramConfig:
        if bad := next((name for name in self.parameters if not re.match(NAME, name) or name in GIVEN), None):
            raise FieldProblem("a parameter's name is a word of letters, digits and underscores, and none of "
                               f"{', '.join(GIVEN)}", ("parameters", bad))
        names = self.engine.environment
        if bad := next((name for name in names if not re.match(NAME, name) or name in RESERVED), None):
            raise FieldProblem("is no name of a variable that a suite may set", ("engine", "environment", bad))
        texts = (*self.engine.run, *names.values())
        if not self.engine.run[0] or any("\0" in text for text in texts):
            raise FieldProblem("a command has a name, and no text in it a zero byte", ("engine", "run"))
        if secret := next((name for name in names if SECRET.search(name)), None):
            raise FieldProblem("looks like a credential, and a suite is stored with every run; set it outside and name "
                               "it in engine.passes", ("engine", "environment", secret))
        for path, text in self._templates():
            for name in placeholders(text):
                self._check_placeholder(name, path)
        used = {name for _, text in self._templates() for name in placeholders(text)}
        if idle := next((name for name in self.parameters if name not in used), None):
            raise FieldProblem(f"the command does not use it; write {{{idle}}} in engine.run, or remove it",
                               ("parameters", idle))
        self._check_end()
        if self.gate is not None:
            for name in placeholders(self.gate.wrapper):
                self._check_placeholder(name, ("gate", "wrapper"))
            if (word := self.filled(self.gate.wrapper, UNFILLED)) and word not in WRAPPERS:
                raise FieldProblem(f"{word!r} is none of {', '.join(WRAPPERS)}", ("gate", "wrapper"))
        for field, value in (("metric", self.evaluation.metric), ("direction", self.evaluation.direction)):
            if getattr(self.stop, field) not in ("", None, value):
                raise FieldProblem(f"evaluation.{field} says {value}; remove it here", ("stop", field))
        object.__setattr__(self, "stop", self.stop.model_copy(
            update={"metric": self.evaluation.metric, "direction": self.evaluation.direction}))
        if self.launcher.kind != "inline":
            raise FieldProblem("a program is started by the harness itself; remove it (the command may be torchrun)",
                               ("launcher",))
        return self

    def _check_end(self) -> None:
        if self.stop.has_target and self.evaluation.reader == "none":
            raise FieldProblem("is missing: how the quality is read; or compare times only, by stop: {design: end}",
                               ("evaluation",))
        if self.stop.has_target != (self.stop.target is not None):
            raise FieldProblem("design end asks for no quality; remove it" if self.stop.target is not None
                               else "is missing", ("stop", "target"))
        if not self.stop.has_target and self.evaluation.reader != "none":
            raise FieldProblem("design end evaluates nothing; remove it (start and stop may stay, with reader: none)",
                               ("evaluation", "reader"))

    def _templates(self) -> Iterator[tuple[tuple[str | int, ...], str]]:
        yield from ((("engine", "run", index), part) for index, part in enumerate(self.engine.run))
        yield from ((("engine", "environment", name), text) for name, text in self.engine.environment.items())
        yield ("evaluation", "logs"), self.evaluation.logs

    def _check_placeholder(self, name: str, path: tuple[str | int, ...]) -> None:
        if name == "batch.global" and self.batch is None:
            raise FieldProblem("uses {batch.global}, and the suite declares no batch", path)
        if name not in GIVEN and name not in self.parameters:
            known = [*GIVEN, *self.parameters]
            raise FieldProblem(f"no parameter named {name!r}{nearest(name, known)}; {{{{{name}}}}} stands for the text "
                               f"{{{name}}} itself", path)

    def located(self, files: ProgramFiles) -> ProgramConfig:
        found = files.sha256(self.engine.folder, self.engine.files, self.engine.commit)
        if self.engine.sha256 not in ("", found):
            raise FieldProblem(f"the files have the hash {found}; remove it to run them as they are",
                               ("engine", "sha256"))
        return self.model_copy(update={"engine": self.engine.model_copy(update={"sha256": found})})

    def carried_code(self) -> tuple[CarriedCode, ...]:
        engine = self.engine
        sets = {name: self._as_written(text) for name, text in engine.environment.items()}
        more = f" with {json.dumps(sets, sort_keys=True)}" if sets else ""
        more += f" seeing {json.dumps(sorted(engine.passes))}" if engine.passes else ""
        more += f" reading {json.dumps(self._as_written(self.evaluation.logs))}" if self.evaluation.logs else ""
        more += " under a terminal" if engine.terminal else ""
        more += f" of the files {json.dumps(engine.files)}" if engine.files != ALL_PYTHON else ""
        return (CarriedCode(f"command `{shlex.join(map(self._as_written, engine.run))}`{more}", engine.sha256,
                            f"code/{engine.sha256[:PLACE_DIGITS]}"),)

    # ---- filling in

    def filled(self, text: str, given: dict[str, str]) -> str:
        """Return a template with every placeholder replaced.

        Args:
            given: seed and run_dir.
        """
        values = self._values() | given
        return PLACEHOLDER.sub(lambda found: f"{{{found[1]}}}" if found[1] else values[found[2]], text)

    def _as_written(self, text: str) -> str:
        """Return a template with its values, but with seed, run_dir and doubled braces as the suite has them."""
        values = self._values()
        return PLACEHOLDER.sub(lambda found: values.get(found[2], found[0]), text)

    def _values(self) -> dict[str, str]:
        values = {name: plain(value) for name, value in self.parameters.items()} | {"processes": str(self.processes)}
        return values if self.batch is None else values | {"batch.global": str(self.batch.global_)}

    @property
    def wrapper(self) -> str:
        """Return what is to distribute the training; "" if the suite does not tell."""
        if self.gate is not None and self.gate.wrapper:
            return self.filled(self.gate.wrapper, UNFILLED)
        said = [self.filled(part, UNFILLED).partition("=")[0] for part in self.engine.run]
        said += [name for name, text in self.engine.environment.items()
                 if self.filled(text, UNFILLED).lower() in ("1", "true", "yes")]
        return next((REQUESTS[word] for word in said if word in REQUESTS), "")

    # ---- as a kind of trial

    @property
    def slug(self) -> str:
        return f"{self.engine.name}-p{self.processes}"

    @property
    def title(self) -> str:
        return self.engine.name

    @classmethod
    def phrase(cls, field: str, value: str) -> str:
        if field == "engine":
            return _short_engine(value)
        if field.startswith(("parameters.", "engine.")):
            return f"{field.partition('.')[2]}={value}"
        return f"batch {value}" if field == "batch.global" else super().phrase(field, value)

    @property
    def quality(self) -> Quality:
        unit = "samples" if self.batch is not None else "steps"
        return Quality(self.evaluation.metric, "quality", self.evaluation.direction, unit, None, None)

    def lacks(self, metric: str) -> str:
        if metric not in FIGURES:
            return (f"{metric} is measured inside a training of the harness's own; a program has "
                    f"{', '.join(FIGURES)}")
        if metric in OF_SAMPLES and self.batch is None and not self.evaluation.may_state_samples:
            return (f"{metric} counts samples, and only steps are known of this program: declare batch: {{global: N}} "
                    "for each variant, the samples per optimizer step")
        if metric in OF_OWN_CLOCK and not self.evaluation.may_state_time:
            return (f"{metric} is the program's own clock at an evaluation, and nothing reads one: use "
                    f"{metric.replace('train', 'wall')}, or a pattern with a group of {', '.join(CLOCKS)}")
        return ""

    @property
    def global_batch(self) -> int | None:
        return self.batch.global_ if self.batch is not None else None

    @property
    def train_samples(self) -> int | None:
        return self.epoch_samples

    @property
    def unverified(self) -> str:
        return UNVERIFIED if self.stop.has_target else ONLY_TIMES

    @property
    def takes_seed(self) -> bool:
        """The command, or a variable that is set for it, has the seed of the trial."""
        return any(SEED in placeholders(text) for text in (*self.engine.run, *self.engine.environment.values()))

    @property
    def given(self) -> str:
        """All but the numbers that the suite declares of the program: cells with the same run the same, unless `run` or
        a variable takes these numbers."""
        texts = (*self.engine.run, *self.engine.environment.values(), self.evaluation.logs)
        return json.dumps([self.model_dump(mode="json", exclude={"batch", "processes", "epoch_samples"}),
                           [self.filled(text, UNFILLED) for text in texts]])

    def why_no_checkpoints(self) -> str:
        return "a program keeps its own checkpoints, which this harness does not know"

    def notes(self, machine: Machine) -> list[str]:
        without = "" if self.takes_seed or not self.stop.has_target else (
            f"{self.title}: the command takes no {{seed}}, so nothing makes its trials differ: if the program fixes "
            "its seed, they are one training repeated, which says nothing about other seeds")
        place = next((part for part in self.engine.run if part.startswith("/")), "")
        bound = f"{self.title}: engine.run names a place of this machine ({place}), so no other can run it and its " \
                "record cannot be bundled; name what is on PATH, or a path below engine.folder" if place else ""
        scripts = [part for part in self.engine.run if part.endswith((".py", ".sh"))]
        outside = next((part for part in scripts if ".." in part.split("/")), "")
        unhashed = f"{self.title}: {outside} lies outside engine.folder, so its changes are not seen" if outside else ""
        return [*(text for text in (without, bound, unhashed) if text), *super().notes(machine)]

    def full_budget_seconds(self, cores: int) -> float | None:
        return None

    @property
    def work(self) -> str:
        return shlex.join(self.filled(part, UNFILLED) for part in self.engine.run)

    def log_size(self) -> LogSize:
        return LogSize(budget="its own end", steps=0, evaluations=0, fewer_steps="", fewer_evaluations="")


def placeholders(text: str) -> list[str]:
    """Return the names in braces in a template."""
    return [found[2] for found in PLACEHOLDER.finditer(text) if found[2]]


def plain(value: Value) -> str:
    """Return a parameter as the command gets it: true and false in small letters, numbers as Python writes them."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _short_engine(text: str) -> str:
    """Return a label for one of several whole programs: where they lie, or what they run."""
    try:
        data = Program.model_validate(json.loads(text))
    except ValueError:
        return text
    parts = [data.folder if data.folder != "." else "", f"@{data.commit}" if data.commit else ""]
    place = "".join(parts) or shlex.join(data.run)
    return f"{place} with {json.dumps(data.environment, sort_keys=True)}" if data.environment else place
