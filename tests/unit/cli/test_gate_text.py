"""The failures of the parity gate in words: causes before symptoms."""

from __future__ import annotations

import io
from typing import Any

from repro.cli.terminal import Console
from repro.cli.text.compare import print_gate
from repro.cli.workflows.gate import rows_of
from repro.runner.gate import as_json
from repro.worker.gate.judge import judge
from tests.traces import set_norm, trace


def test_other_options_of_the_optimizer_are_named_before_what_they_cause() -> None:
    def other(data: dict[str, Any]) -> None:
        set_norm("weights", "first.weight", 1, 20.0)(data)
        set_norm("gradients", "first.bias", 2, 3.0)(data)
        data.update(optimizer={"optimizer_options": "decay 0"}, effective={"optimizer_options": "decay 0.3"})

    found = judge(trace(None), [trace(0, other), trace(1, other)])
    checks = {name: item and as_json(item, item.text) for name, item in found.items()}
    rows = [row for candidate in ("mine", "theirs")
            for row in rows_of({"candidate": candidate, "group": "g", "problem": "x", "checks": checks})]
    stream = io.StringIO()
    print_gate(rows, Console(file=stream, width=400))
    failures = stream.getvalue().splitlines()[-6:]
    assert [" ".join(line.split()[:3]) for line in failures] == [
        f"{candidate}: {start}" for candidate in ("mine", "theirs")
        for start in ("optimizer options", "step 1:", "step 2:")]
