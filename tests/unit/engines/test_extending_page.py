"""The page for authors of plug-ins names what an engine's session has to define."""

from __future__ import annotations

import re
from pathlib import Path

from repro.engines.plain.session import TorchSession


def test_the_methods_that_a_torch_session_leaves_to_write_are_listed() -> None:
    page = (Path(__file__).parents[3] / "docs/extending.md").read_text()
    [listed] = re.findall(r"Subclass `TorchSession`.*?: then (.*?) remain", page, re.DOTALL)
    assert sorted(re.findall(r"`(\w+)`", listed)) == sorted(TorchSession.__abstractmethods__)
