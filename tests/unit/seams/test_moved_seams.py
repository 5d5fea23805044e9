"""Plug-ins written for version 0.1 get the new place of a class."""

from __future__ import annotations

import importlib
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from repro import seams
from repro.core import registry
from repro.core.errors import UsageError


@pytest.mark.parametrize("name", sorted(seams.MOVED))
def test_an_old_import_fails_with_the_line_to_write(name: str) -> None:
    with pytest.raises(ImportError, match=f"`repro.seams.{name}` has moved: write `from") as caught:
        exec(f"from repro.seams import {name}")  # what the author of a plug-in wrote
    line = str(caught.value).split("`")[3]
    exec(line)
    page, _, now = seams.MOVED[name].rpartition(".")
    assert hasattr(importlib.import_module(f"repro.{page}"), now)


def test_an_unknown_name_is_an_ordinary_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        exec("seams.Nothing")


def test_an_old_module_in_a_plug_in_is_answered_with_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "old_plugin.py").write_text("from repro.streams import Streams\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    old = EntryPoint("old", "old_plugin:Old", "repro.workload")
    monkeypatch.setattr(registry, "_third_party", lambda seam: {"old": old})
    with pytest.raises(UsageError, match=r"it has moved: write `repro\.core\.random_streams`"):
        registry.load("workload", "old")


@pytest.mark.parametrize("module", sorted(set(registry.MOVED.values())))
def test_the_new_module_is_there(module: str) -> None:
    importlib.import_module(module)
