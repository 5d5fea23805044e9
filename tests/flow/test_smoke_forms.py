"""The smoke form that the head of a suite states runs, and its record verifies; its time is printed, not judged."""

from __future__ import annotations

import shlex
import time
from importlib.resources import files
from pathlib import Path

import pytest

from repro.bundle.verify import verify
from repro.launchers.netns.probe import ability
from repro.record.folder.store import read_record
from repro.suite.file import bundled
from tests.commands import command

pytest.importorskip("torch")

WITHOUT = {"quickstart": "is short itself", "cifar10": "its data are the user's", "imagenet": "its data are the user's"}
RAN = ("ok", "missed", "diverged")


def smoke_form(name: str) -> list[str]:
    """Return the arguments of the command below `# Smoke form`; empty: the suite states none."""
    lines = files("repro.suites").joinpath(f"{name}.yaml").read_text(encoding="utf-8").splitlines()
    at = next((index for index, line in enumerate(lines) if line.startswith("# Smoke form")), None)
    return [] if at is None else shlex.split(lines[at + 1].removeprefix("#   repro "))


def test_every_suite_states_its_smoke_form() -> None:
    assert {name for name in bundled() if not smoke_form(name)} == set(WITHOUT)
    assert all(smoke_form(name)[:2] == ["run", name] for name in bundled() if name not in WITHOUT)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in bundled() if name not in WITHOUT])
def test_the_smoke_form_runs(tmp_path: Path, name: str) -> None:
    text = files("repro.suites").joinpath(f"{name}.yaml").read_text(encoding="utf-8")
    if "fabric" in text and ability().problem:
        pytest.skip(ability().problem)
    begun = time.monotonic()
    ended = command(tmp_path, *smoke_form(name), "--no-mlflow", "--out", "run")
    print(f"{name}: {time.monotonic() - begun:.0f} s")
    assert ended.code in (0, 3), ended.out + ended.error
    record = read_record(tmp_path / "run")
    assert record.results and all(result.status in RAN for result in record.results), ended.error
    assert verify(record.folder.root).sound
    assert (tmp_path / "run/report/report.html").is_file()
