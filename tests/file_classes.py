"""A suite with a class from a file, run by the fake engine; the file says when it is imported."""

from __future__ import annotations

from pathlib import Path

from tests.plans import suite

LOUD = """\
import os
from pathlib import Path
from typing import ClassVar
from pace import SECONDS
from repro.engines.fake import Fake

with Path({log!r}).open("a") as log:
    print(os.getpid(), file=log)


class Paced(Fake):
    \"\"\"The fake engine at a pace of its own.\"\"\"

    title: ClassVar[str] = "paced"
    step_seconds: float = SECONDS
"""
SUITE = suite("paced", """\
matrix:
  engine.step_seconds: [0.01, 0.014]
baseline: {engine: "own/paced.py:Paced", engine.step_seconds: 0.01}
""", seeds=2, engine="own/paced.py:Paced", stop="{metric: top1, target: 0.2, max_epochs: 2}", launcher="inline")


def write_suite(root: Path, seconds: float = 0.01) -> Path:
    """Write the suite and its class below `root`; every import of the class adds a line to `root`/imports.txt."""
    (root / "own").mkdir(parents=True, exist_ok=True)
    (root / "own/paced.py").write_text(LOUD.format(log=str(root / "imports.txt")))
    (root / "own/pace.py").write_text(f"SECONDS = {seconds}\n")
    (root / "paced.yaml").write_text(SUITE)
    return root / "paced.yaml"


def imports(root: Path) -> int:
    """Return how often the class was imported."""
    log = root / "imports.txt"
    return len(log.read_text().splitlines()) if log.exists() else 0
