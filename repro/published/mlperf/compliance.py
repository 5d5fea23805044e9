"""The compliance check of rounds v5.0 and v5.1, as far as it concerns the structure of a log.

MLCommons' score counts a log that fails the check as not converged. Here are the rules of
`compliance_checker/training_5.0.0/common.yaml` and `closed_common.yaml` (and 5.1.0) on which lines must be there; rules
on the hyper-parameters of a benchmark are not checked. A key with one value that is repeated passes, as there.
"""

from __future__ import annotations

from repro.published.mlperf.rules import Version
from repro.published.mlperf.run import LogFacts
from repro.published.untrusted.text import number

SINCE, UNTIL = (5, 0), (5, 1)
EXACTLY_ONE = ("submission_division", "submission_benchmark", "init_stop", "train_samples", "eval_samples")
CLOSED = ("gradient_accumulation_steps",)
"""The same, in the closed division."""
AT_LEAST_ONE = ("cache_clear", "init_start")
ONE_OF = (("block_start", "epoch_start"), ("block_stop", "epoch_stop"), ("eval_start", "block_start"),
          ("eval_stop", "block_stop"))
INIT_SECONDS = {"closed": 30 * 60.0, "open": 240 * 60.0}
"""Longest time from init_start to init_stop, by division."""


def why_not_compliant(facts: LogFacts, usage: str, version: Version | None, per_second: float) -> str:
    """Return the first rule that the log breaks; "" if there is none, or if no rules of its round are here."""
    if usage != "training" or version is None or not SINCE <= version <= UNTIL:
        return ""
    division = facts.first.get("submission_division")
    for key in (*EXACTLY_ONE, *(CLOSED if division == "closed" else ())):
        if key not in facts.first:
            return f"it has no {key}"
        if key in facts.differ:
            return f"{key} is logged with different values"
    missing = next((key for key in AT_LEAST_ONE if key not in facts.first), "")
    missing = missing or next((" or ".join(keys) for keys in ONE_OF if not any(key in facts.first for key in keys)), "")
    if missing:
        return f"it has no {missing}"
    if not all({"epoch_num", "samples_count"} & event.metadata.keys() for event in facts.evaluations
               if event.key == "eval_accuracy"):
        return "an evaluation has neither epoch_num nor samples_count"
    return _values(facts) or _init(facts, str(division), per_second)


def _values(facts: LogFacts) -> str:
    steps = number(facts.first.get("gradient_accumulation_steps"))
    if steps is not None and steps <= 0:
        return "gradient_accumulation_steps is not positive"
    if facts.first["submission_division"] not in INIT_SECONDS:
        return "submission_division is neither closed nor open"
    return ""


def _init(facts: LogFacts, division: str, per_second: float) -> str:
    """Return the breach of the order of initialisation and run."""
    start, stop = facts.init_start, facts.init_stop
    if start is None or stop is None or not facts.starts:
        return ""
    limit = INIT_SECONDS[division]
    if (stop - start) / per_second >= limit:
        return f"its initialisation took {(stop - start) / per_second:.0f} s, {limit:.0f} s or more"
    return ""
