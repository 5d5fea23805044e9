"""A board of damaged records and of builds that were killed."""

from __future__ import annotations

import re
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from repro.board.read import read_entry
from repro.core.errors import ReproError
from tests.in_process import called
from tests.unit.board.test_board import built, row, tampered
from tests.waiting import LONG_SECONDS

RECORDS = Path(__file__).parents[3] / "docs/gallery/records"


def rewritten(out: Path, ending: str, change: tuple[str, str]) -> Path:
    """Copy a bundle with a pattern replaced in the files whose names end so."""
    with zipfile.ZipFile(RECORDS / "several-1.zip") as old, zipfile.ZipFile(out, "w") as new:
        for name in old.namelist():
            text = old.read(name)
            new.writestr(name, re.sub(change[0].encode(), change[1].encode(), text) if name.endswith(ending) else text)
    return out


ABSURD = {
    "far": ("environment.json", (r'"started_ms":\s*\d+', f'"started_ms": {10**18}')),
    "early": ("environment.json", (r'"started_ms":\s*\d+', f'"started_ms": {-10**18}')),
    "ledger": ("ledger.jsonl", (r'"started_ms":\s*[\d.]+', '"started_ms": 1e18')),
    "tiny": ("/result.json", (r'"tta_wall":\s*[\d.]+', '"tta_wall": 5e-324')),
    "small": ("/result.json", (r'"tta_wall":\s*[\d.]+', '"tta_wall": 1e-307')),
}


@pytest.mark.parametrize("name", ABSURD)
def test_absurd_times_are_refused_in_one_line_by_every_verb(name: str, tmp_path: Path) -> None:
    bundle = rewritten(tmp_path / f"{name}.zip", *ABSURD[name])
    for words in (("report", str(bundle), "--out", str(tmp_path / "out")), ("compare", str(bundle))):
        done = called(*words)
        assert isinstance(done.exception, ReproError), (words, done.exception)
        assert "\n" not in str(done.exception)
    done = called("verify", bundle)
    assert done.exit_code == 3 or isinstance(done.exception, ReproError), done.exception


def test_a_damaged_bundle_is_a_row_and_the_others_are_built(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for name, change in ABSURD.items():
        rewritten(tmp_path / f"in/{name}.zip", *change)
    page, said = built(tmp_path, "several-2")
    assert "6 records, 1 verified" in said
    assert all("b-modified" in row(page, f"{name}.zip") for name in ABSURD)


def test_any_failure_of_a_modified_bundle_is_its_row_and_that_of_another_is_not_hidden(tmp_path: Path) -> None:
    def broken(_: object) -> str:
        raise ZeroDivisionError

    tampered(RECORDS / "several-1.zip", tmp_path / "wrong.zip")
    found, text = read_entry(tmp_path / "wrong.zip", tmp_path, broken)
    assert (found.standing, text, found.origin) == ("modified", "", "") and "was modified" in found.why
    with pytest.raises(ZeroDivisionError):
        read_entry(RECORDS / "several-1.zip", RECORDS, broken)


STOPPED = """
import os, sys, time
from pathlib import Path
from repro.board import build

def wait(path, top, render):
    (Path(sys.argv[1]) / f"worker-{os.getpid()}").touch()
    time.sleep(600)

build.read_entry = wait
top = Path(sys.argv[2])
build.read_records(sorted(top.glob("several-*.zip")), top, Path(sys.argv[1]), None)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="prctl")
def test_the_workers_of_a_killed_build_end(tmp_path: Path) -> None:
    def until(done: Callable[[], bool]) -> None:
        late = time.monotonic() + LONG_SECONDS
        while not done() and time.monotonic() < late:
            time.sleep(0.05)
        assert done()

    with subprocess.Popen([sys.executable, "-c", STOPPED, str(tmp_path), str(RECORDS)]) as build:
        until(lambda: bool(list(tmp_path.glob("worker-*"))))
        build.kill()
    workers = [int(path.name.partition("-")[2]) for path in tmp_path.glob("worker-*")]
    until(lambda: not any(psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
                          for pid in workers))
