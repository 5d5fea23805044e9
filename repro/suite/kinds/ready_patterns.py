"""Ready patterns for the output of well-known programs, by name."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from repro.core.errors import nearest
from repro.suite.field_problem import FieldProblem
from repro.suite.kinds.output_patterns import OutputPatterns

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
    make: Callable[[str], OutputPatterns] | None = None

    def patterns(self, metric: str) -> OutputPatterns:
        """Return the patterns for a quality.

        Raises:
            FieldProblem: this kind is not read by patterns.
        """
        if self.make is None:
            raise FieldProblem(f"{self.about}: it is read by its columns, not by patterns")
        return self.make(re.escape(metric))


def _speedrun(metric: str) -> OutputPatterns:
    return OutputPatterns(
        evaluation=rf"{SPEEDRUN}{metric}:(?P<value>\S+)(?: {CLOCK})?",
        progress=rf"{SPEEDRUN}(?:train_loss:\S+ )?(?:{CLOCK}|train_time:)",
    )


def _nanogpt(metric: str) -> OutputPatterns:
    return OutputPatterns(
        evaluation=r"^step (?P<step>\d+): train loss \S+, val loss (?P<value>[^\s,]+)",
        progress=r"^iter (?P<step>\d+): loss ",
    )


def _llm_c(metric: str) -> OutputPatterns:
    step = r"^step +(?P<step>\d+)/\d+ \|"
    return OutputPatterns(evaluation=r"^val loss (?P<value>\S+)$", progress=step, context=step)


def _trainer(metric: str) -> OutputPatterns:
    epoch = r".*'epoch': '?(?P<epoch>[^,'}]+)"
    return OutputPatterns(evaluation=rf"'{metric}': '?(?P<value>[^,'}}]+){epoch}", progress=rf"\{{'loss': {epoch}",
                          stop=r"\{'train_runtime': ")


def _keras(metric: str) -> OutputPatterns:
    return OutputPatterns(evaluation=rf"^ *\d+/\d+ .* - {metric}: (?P<value>\S+)",
                          context=r"^Epoch (?P<epoch>\d+)/\d+$")


READY: dict[str, Ready] = {
    "nanogpt-speedrun": Ready("modded-nanogpt's speed-run", "val_loss", "val_loss", make=_speedrun),
    "nanogpt": Ready("nanoGPT's train.py", "val_loss", "val_loss", make=_nanogpt),
    "llm.c": Ready("llm.c's train_gpt2", "val_loss", "val_loss", make=_llm_c),
    "huggingface-trainer": Ready("Hugging Face Trainer's dictionaries", r"eval_\w+", "eval_loss", make=_trainer),
    "keras": Ready("Keras' fit, verbose 1 or 2", r"val_\w+", "val_accuracy", make=_keras),
    "airbench": Ready("cifar10-airbench's table", "val_acc|tta_val_acc", "tta_val_acc", kind="airbench"),
    "lightning-csv": Ready("Lightning's metrics.csv", r"[^,\s\"]+", "val_loss", kind="csv"),
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


def is_name(pattern: str) -> bool:
    """Tell whether a declared pattern is meant as the name of a ready one: it has no group."""
    return "(" not in pattern
