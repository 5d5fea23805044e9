"""No text of a record steers the terminal of its reader: control characters are printed as escapes."""

from __future__ import annotations

import shutil
import subprocess
import sys
import unicodedata
from pathlib import Path
from typing import Any

import pytest

from tests.hostile_records import VERBS, Place, edit, make_run
from tests.in_process import called

STEERING = "\x1b[2K\x1b]0;title\x07\u202e\nrun: sound\x1b[1A"
PRINTING = ("verify", "compare", "diff", "audit", "resume by force", "reproduce by force")


FREE = {"label", "title", "description", "source", "expected", "text", "reason", "notes", "smoke_note", "python",
        "platform", "hostname", "cpu", "cpu_model", "command", "commit", "branch", "warnings"}
"""Keys whose values are free text, or are read as such."""


def steer(value: Any, free: bool = False) -> Any:
    """Return the same JSON with the steering text behind every free text."""
    if isinstance(value, dict):
        return {key: steer(item, free or key in FREE) for key, item in value.items()}
    if isinstance(value, list):
        return [steer(item, free) for item in value]
    return value + STEERING if free and isinstance(value, str) else value


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    root = tmp_path_factory.mktemp("steering")
    make_run(root)
    found = Place(root)
    for name in ("plan.json", "environment.json", "TRIAL/result.json"):
        edit(found, name, lambda data: data.update(steer(data)))
    return found


@pytest.mark.parametrize("verb", PRINTING)
def test_what_a_record_says_cannot_steer_the_terminal(place: Place, verb: str, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(place.root / "run", run)
    words = {"RUN": run, "GOOD": place.root / "good"}
    arguments = [str(words.get(item, item)).replace("OUT/", f"{tmp_path}/") for item in VERBS[verb]]
    ended = called(*arguments)
    text = ended.output + str(ended.exception or "")
    assert not [sign for sign in text if unicodedata.category(sign)[0] == "C" and sign not in "\n\t"]
    assert "\nrun: sound" not in text


def test_the_texts_are_printed_at_all(place: Place) -> None:
    ended = called("diff", place.root / "good", place.root / "run")
    assert "\\x1b[2K" in ended.output and "\\u202e" in ended.output


@pytest.mark.parametrize("to", ["&-", "/dev/full"])
def test_an_output_that_cannot_be_written_ends_in_one_line(to: str) -> None:
    code = f"exec {sys.executable} -m repro verify --help >{to}"
    ended = subprocess.run(["bash", "-c", code], capture_output=True, text=True)
    assert len(ended.stderr.splitlines()) <= 1 and "internal" not in ended.stderr, ended.stderr
    assert ended.returncode in (0, 2)
