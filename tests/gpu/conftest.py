"""The order of the tests for GPUs, the most important first, and lines that survive a run that is cut off."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

ORDER = ("test_quickstart_runs_on_the_gpu[fp32]", "Fp32-1-", "Fp32-2-", "test_input_workers", "test_a_killed_trial",
         "test_quickstart", "test_algorithm", "test_engine_and_precision", "test_overlap", "test_no_code",
         "test_compression")
"""Parts of names, the most important first; all others come after, and what compiles, for minutes, at the end."""


def importance(name: str) -> int:
    """Return the place of a test by its name."""
    if "compile" in name or "Compilation" in name:
        return len(ORDER) + 1
    return next((place for place, part in enumerate(ORDER) if part in name), len(ORDER))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--lines", type=Path, help="write a JSON line here as each test ends")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    mine = sorted((item for item in items if here in item.path.parents), key=lambda item: importance(item.name))
    items[:] = [item for item in items if here not in item.path.parents] + mine


def pytest_configure(config: pytest.Config) -> None:
    if lines := config.getoption("lines", None):
        lines.unlink(missing_ok=True)
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # pytest then ends with its summary
        config.pluginmanager.register(Lines(lines))


class Lines:
    """Writes how each test ended, as it ends."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.when == "call" or report.outcome != "passed":
            crash = getattr(report.longrepr, "reprcrash", None)
            said = crash.message if crash else report.longrepr[2] if isinstance(report.longrepr, tuple) else ""
            line = {"test": report.nodeid, "status": report.outcome, "seconds": round(report.duration, 1),
                    "said": said[:300]}
            with self.path.open("a") as handle:
                handle.write(json.dumps(line) + "\n")
