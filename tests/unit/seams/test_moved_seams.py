"""Plug-ins written for version 0.1 get the new place of a class."""

from __future__ import annotations

import importlib

import pytest

from repro import seams


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
