"""A record is the same under every version of Python: its results and its page do not depend on how `sum` rounds."""

from __future__ import annotations

import builtins
import math
from collections.abc import Callable, Iterable
from functools import reduce
from operator import add
from pathlib import Path
from typing import Any

import pytest

from repro.bundle.verify import verify
from tests.in_process import succeeded

GALLERY = Path(__file__).parents[3] / "docs/gallery/records"
RECORDS = ("settled", "scaling", "missed", "factorial", "resumed")
Sum = Callable[..., Any]


def compensated(values: Iterable[Any], start: Any = 0) -> Any:
    """`sum` as since Python 3.12, or more exact: floats are added without rounding in between."""
    known = [start, *values]
    return math.fsum(known) if any(type(value) is float for value in known) and all(
        type(value) in (int, float) for value in known) else reduce(add, known)


def from_the_left(values: Iterable[Any], start: Any = 0) -> Any:
    """`sum` before Python 3.12."""
    return reduce(add, values, start)


@pytest.mark.parametrize("name", RECORDS)
@pytest.mark.parametrize("added", [compensated, from_the_left])
def test_a_record_is_sound_whatever_sum_does(name: str, added: Sum, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builtins, "sum", added)
    found = verify(GALLERY / f"{name}.zip")
    assert not found.problems, found.text()


@pytest.mark.slow
def test_its_page_has_the_same_bytes_whatever_sum_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pages = []
    for added in (compensated, from_the_left):
        monkeypatch.setattr(builtins, "sum", added)
        out = tmp_path / added.__name__
        words = ["report", str(GALLERY / "scaling.zip"), "--out", str(out), "--to", "html,csv,latex"]
        succeeded(*words)
        pages.append({path.relative_to(out): path.read_bytes() for path in sorted(out.rglob("*")) if path.is_file()})
    assert pages[0] == pages[1]
    assert len(pages[0]) > 3
