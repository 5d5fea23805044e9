"""The browser that all tests here share."""

from __future__ import annotations

import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from typing import Any

import pytest

AXE = "axe-core@4.10.3"
NAMES = ("chromium", "chromium-browser", "google-chrome")


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """A headless Chromium; tests that need it are skipped if it or its driver is missing."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    found = next((path for name in NAMES if (path := shutil.which(name))), None)
    if found is None:
        pytest.skip("no chromium on PATH to open the page in")
    with sync_api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=found, args=["--no-sandbox", "--disable-gpu"])
        yield started
        started.close()


@pytest.fixture(scope="session")
def axe(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The script of axe-core, from npm's registry; it is no part of this project."""
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("no npm on PATH to get axe-core with")
    folder = tmp_path_factory.mktemp("axe")
    try:
        made = subprocess.run([npm, "pack", AXE, "--silent"], cwd=folder, capture_output=True, text=True, timeout=60)
    except subprocess.TimeoutExpired:
        pytest.skip("npm did not bring axe-core within a minute")
    archives = list(folder.glob("*.tgz"))
    if made.returncode or not archives:
        pytest.skip(f"npm could not bring {AXE}: {made.stderr.strip()[:200]}")
    with tarfile.open(archives[0]) as archive:
        member = archive.extractfile("package/axe.min.js")
        assert member is not None
        return member.read().decode("utf-8")
