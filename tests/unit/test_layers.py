"""Reporters lie outside `repro/`, where import-linter does not look: their row of the layers is held here."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ALLOWED = {
    "calibration", "checklist", "compare", "energy", "errors", "events", "files", "fingerprint", "machine",
    "pattern", "plan", "registry", "reporters", "results", "schedule", "scrub", "seams", "spec", "stats", "store",
    "streams", "uri",
}
OF_A_BENCHMARK = {"comm_page", "comm_runs"}
"""These two show the outcome of `repro bench comm`, not a record, and know its type."""
FORMATS = {"csv_tables", "html_page", "json_lines", "latex_paper", "markdown_page", "paper_figures", "parquet_tables"}
OF_PUBLISHED = FORMATS | {path.stem for path in (ROOT / "reporters").glob("published_*.py")}
"""These show what others published, which stands above the store; the formats hand it on."""
OF_SEVERAL = {"html_page", "markdown_page", "several_page"}
"""These are given sections of several runs and know their type."""
HEAVY = {"torch", "deepspeed", "sklearn"}


def imports(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= inner if node.module == "repro" else {node.module}
    return found


@pytest.mark.parametrize("path", sorted((ROOT / "reporters").glob("*.py")), ids=lambda path: path.stem)
def test_reporters_import_from_the_record_downwards_only(path: Path) -> None:
    parts = {name.split(".")[1] for name in imports(path) if name.startswith("repro.")}
    allowed = ALLOWED | ({"bench"} if path.stem in OF_A_BENCHMARK else set())
    allowed |= {"published"} if path.stem in OF_PUBLISHED else set()
    allowed |= {"several"} if path.stem in OF_SEVERAL else set()
    assert parts - allowed == set()
    assert {name.split(".")[0] for name in imports(path)} & HEAVY == set()


@pytest.mark.parametrize("path", sorted((ROOT / "reporters").glob("*.py")), ids=lambda path: path.stem)
def test_reporters_load_mlflow_when_used_only(path: Path) -> None:
    top = ast.parse(path.read_text()).body
    names = {alias.name for node in top if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module or "" for node in top if isinstance(node, ast.ImportFrom)}
    assert not {name for name in names if name.split(".")[0] == "mlflow"}
