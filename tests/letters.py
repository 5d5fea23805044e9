"""A package of another author with plug-ins for four seams, written to a folder, and a record that uses them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from repro.core import registry
from repro.core.files import write_model
from repro.core.machine import Machine
from repro.record.environment.environment import take
from repro.record.environment.plugin_code import plugin_code
from repro.record.folder.index import seal
from repro.record.folder.store import Record, read_record
from tests.plans import suite
from tests.records import Course, make_record

SOURCE = '''
from typing import Any, ClassVar

from repro.engines.fake import Fake
from repro.engines.torch_engines import Ddp
from repro.optimizers.rules import Sgd
from repro.workloads.synthetic import Synthetic
from repro.comm.algorithms.ring import Ring

from .parts import LAYERS


class Letters(Synthetic):
    """Text."""

    title: ClassVar[str] = "letters of one book"
    unit: ClassVar[str] = "letters"
    layers: int = LAYERS


class Sharded(Ddp):
    """Shards."""

    title: ClassVar[str] = "a sharding engine"
    always_shown: ClassVar[tuple[str, ...]] = ("level",)
    level: float = 1

    def zero_stage(self) -> int | None:
        return int(self.level)


class Lion(Sgd):
    """Signs."""

    title: ClassVar[str] = "Lion"
    beta: float = 0.9


class Star(Ring):
    """A star."""

    title: ClassVar[str] = "star"
'''
ENTRY_POINTS = '''
[repro.workload]
letters = letters:Letters
[repro.engine]
sharded = letters:Sharded
[repro.optimizer]
leo = letters:Lion
[repro.comm]
star = letters:Star
'''
SUITE = suite("letters", """\
matrix:
  engine.level: [1, 2]
baseline: {engine: {level: 1}}
primary:
  candidate: {engine: {level: 2}}
  baseline: {engine: {level: 1}}
""", seeds=5, head="title: Plug-ins of another package\n", workload="letters", engine="{kind: sharded, level: 1}",
    optimizer="{kind: leo, lr: 0.1}", processes=2, comm="star")


def write_package(root: Path, layers: int = 2) -> None:
    """Write package `letters` 1.0 below `root`, as an installation without a list of files."""
    (root / "letters").mkdir(parents=True, exist_ok=True)
    (root / "letters/__init__.py").write_text(SOURCE)
    (root / "letters/parts.py").write_text(f"LAYERS = {layers}\n")
    info = root / "letters-1.0.dist-info"
    info.mkdir(exist_ok=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: letters\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(ENTRY_POINTS)


@contextmanager
def installed(root: Path) -> Iterator[None]:
    """Make the package below `root` importable for as long as the context lasts."""
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.syspath_prepend(str(root))
            registry._third_party.cache_clear()
            yield
    finally:
        registry._third_party.cache_clear()
        for name in [name for name in sys.modules if name.partition(".")[0] == "letters"]:
            del sys.modules[name]


def letters_record(root: Path, packages: Path, step_seconds: float = 0.01) -> Record:
    """Return a complete, sealed record at `root` of a suite that uses the package below `packages`."""
    with installed(packages):
        record = make_record(root, SUITE, lambda trial: Course(step_seconds * (1 + 0.02 * trial.repeat)))
        environment = take(Machine("cpu", 0, 2), record.environment.data, plugin_code(record.plan, record.folder.root))
        write_model(record.folder.environment, environment)
        seal(record.folder)
        return read_record(root)
