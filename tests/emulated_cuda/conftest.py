"""The emulated environment is built before the first test of this folder, or all are skipped with the reason."""

from __future__ import annotations

import pytest

from tests.emulated_cuda import environment


@pytest.fixture(scope="session", autouse=True)
def emulated() -> None:
    try:
        environment.python()
    except environment.Unfit as reason:
        pytest.skip(str(reason))
