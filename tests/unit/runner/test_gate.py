"""The parity gate around its judgement: candidates that do not start, small differences, all failures named."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from repro.core.errors import ParityError
from repro.runner.context import RunContext
from repro.runner.gate import ParityGate, require_no_problem
from repro.runner.launching import Launchers
from repro.runner.run import prepare
from repro.suite.model import Trial
from repro.worker.gate.parity import Group
from repro.worker.gate.trace import Trace
from tests.plans import planned
from tests.records import SUITE
from tests.traces import NAMES, STEPS, trace
from tests.watcher import Silent

TEXT = SUITE[:SUITE.index("baseline:")].replace("processes: [1, 2]", "processes: [2]")


class Measured(ParityGate):
    """A gate whose traces are made by hand: engine -> traces by repeat, or why it did not run."""

    def _traces(self, group: Group, member: Trial, disturbance: int = 0) -> list[Trace]:
        kind = member.choices.engine.kind + ("+recomputed" if member.choices.activation_checkpointing else "")
        if kind == "single":
            return [trace(None, steady)]
        found = MADE[kind][min(member.repeat, len(MADE[kind]) - 1)]
        if isinstance(found, str):
            raise ParityError(found)
        return list(found)


MADE: dict[str, Sequence[Sequence[Trace] | str]] = {}


def steady(data: dict[str, Any]) -> None:
    """Updates of 0.1, and 48 steps at rate 0 after the fifth."""
    data["steps"] = [*range(1, 6), *range(54, 59)]
    data["updates"] = {name: [(0.1, 0.03)] * STEPS for name in NAMES}


def off(size: float) -> list[Trace]:
    """Traces whose loss of step 4 is off by a share."""
    def change(data: dict[str, Any]) -> None:
        steady(data)
        data["loss"][3] = 0.5 * (1 + size)
    return [trace(0, change), trace(1, change)]


def moved(size: float) -> list[Trace]:
    """Traces whose update of step 55 is larger by a share; the reference's is 0.1."""
    def change(data: dict[str, Any]) -> None:
        steady(data)
        data["updates"]["first.bias"][6] = (0.1 * (1 + size), 0.03)
    return [trace(0, change), trace(1, change)]


WELL = moved(0)


def gate_of(folder: Path, text: str) -> Measured:
    plan = planned(folder, text)
    context = RunContext(plan, prepare(plan, text, folder / "run"), Silent())
    return Measured(context, cast(Launchers, None))


@pytest.fixture
def gate(tmp_path: Path) -> Measured:
    return gate_of(tmp_path, TEXT)


def findings(gate: Measured, ddp: Sequence[Any], deepspeed: Sequence[Any]) -> list[dict[str, Any]]:
    MADE.update(ddp=ddp, deepspeed=deepspeed)
    return gate.run()


def test_a_candidate_that_does_not_start_keeps_no_other_from_being_judged(gate: Measured) -> None:
    one, two = findings(gate, ["ddp did not run: no such library"], [off(0.5)])
    assert one["problem"] == "ddp did not run: no such library"
    assert two["problem"].startswith("step 4: loss is 0.75")
    assert [name for name, item in two["checks"].items() if item] == ["loss"]


def test_the_message_names_every_candidate_that_failed(gate: Measured) -> None:
    MADE.update(ddp=["ddp did not run: no such library"], deepspeed=[off(0.5)])
    with pytest.raises(ParityError) as caught:
        require_no_problem(gate.run(), resumed=False)
    first, one, two, last = str(caught.value).splitlines()
    assert first == "parity gate: no trial was timed" and last == "  every check: repro gate SUITE"
    assert one.endswith("ddp did not run: no such library")
    assert two.startswith("  deepspeed (stage=1) on 2 processes against")


def test_a_small_difference_with_one_seed_only_is_rounding(gate: Measured) -> None:
    one, two = findings(gate, [off(1e-4), WELL], [WELL])
    assert (one["problem"], one["repeat"]) == ("", 1)
    assert one["cleared"].startswith("step 4: loss")
    assert "cleared" not in two


def test_so_is_a_small_difference_of_an_update(gate: Measured) -> None:
    # A unit that switched at rate 0: updates differ by more than weights do.
    one, two = findings(gate, [moved(0.02), WELL], [moved(0.5), WELL])
    assert one["cleared"].startswith("step 55: update of 'first.bias'")
    assert two["problem"].startswith("step 55: update of 'first.bias'")


@pytest.mark.parametrize("made", [[off(1e-4)], [off(0.5), WELL]], ids=["with every seed", "large"])
def test_a_difference_with_every_seed_and_a_large_one_stay(gate: Measured, made: Sequence[Any]) -> None:
    assert findings(gate, made, [WELL])[0]["problem"].startswith("step 4: loss")


def test_a_cell_is_not_cleared_by_another_of_the_same_engine(tmp_path: Path) -> None:
    text = TEXT.replace("[ddp, {kind: deepspeed, stage: 1}]", "[ddp]")
    text = text.replace("processes: [2]", "processes: [2]\n  activation_checkpointing: [false, true]")
    MADE.update({"ddp": [off(1e-4), WELL], "ddp+recomputed": [off(1e-4)]})
    gate = gate_of(tmp_path, text)
    one, two = gate.run()
    assert (one["problem"], one["repeat"]) == ("", 1)
    assert two["problem"].startswith("step 4: loss")
    assert one["candidate"] != two["candidate"]
    with pytest.raises(ParityError, match="activation checkpointing True"):
        require_no_problem(gate.run(), resumed=False)
