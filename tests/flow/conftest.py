"""MLflow stores, one of each for all files."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.tracking_server import Site, serving


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with serving(tmp_path_factory.mktemp("server")) as site:
        yield site


@pytest.fixture
def server(served: Site) -> str:
    return served.uri


@pytest.fixture(scope="session")
def empty_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh database, made once: the migrations take longer than most tests."""
    from repro.core import registry

    path = tmp_path_factory.mktemp("store") / "mlflow.db"
    registry.load("reporter", "mlflow")(tracking_uri=f"sqlite:///{path}").check()
    return path


@pytest.fixture
def local(empty_store: Path, tmp_path: Path) -> Site:
    shutil.copy(empty_store, tmp_path / "mlflow.db")
    return Site(f"sqlite:///{tmp_path}/mlflow.db", tmp_path / "mlflow.db")


@pytest.fixture
def store(local: Site) -> str:
    return local.uri
