"""The measures of the house: few and small rooms, few namesakes, short constructors, imports where they belong."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
CODE = sorted(path for folder in ("repro", "reporters", "benchmarks") for path in (ROOT / folder).rglob("*.py"))
MOST_ENTRIES = 31
MOST_PARAMETERS = 6
MOST_FILES = 15
ROOMS = ("repro/suite", "repro/compare", "repro/record", "repro/worker", "reporters/page")
"""Folders whose rooms, themselves included, hold at most `MOST_FILES` files."""
MOST_NAMESAKES = 3
STILL_LARGER: dict[str, int] = {}
STILL_NAMED_ALIKE = {"figures.py": 6, "scores.py": 5, "tuning.py": 5, "contest.py": 5, "training.py": 4, "run.py": 4,
                     "session.py": 4}
"""Those that are still to be divided or renamed; no number here may grow."""
HEAVY = {"torch", "deepspeed", "sklearn"}


def named(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def imported(nodes: Iterator[ast.AST] | list[ast.stmt]) -> set[str]:
    """The top-level names of what these statements import."""
    found: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.partition(".")[0])
    return found


def anywhere(path: Path) -> set[str]:
    """Return the imports of a file, inside functions too."""
    return imported(ast.walk(ast.parse(path.read_text())))


def test_the_package_has_few_entries() -> None:
    entries = sorted(path.name for path in (ROOT / "repro").iterdir() if path.name != "__pycache__")
    assert len(entries) <= MOST_ENTRIES, entries


def long_constructors(text: str) -> Iterator[int]:
    """Yield the line of each `__init__` that takes too much and gives no reason in a comment on or above its line."""
    lines = text.splitlines()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef) and node.name == "__init__":
            count = len([*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]) - 1
            near = lines[max(0, node.lineno - 2):node.lineno]
            if count > MOST_PARAMETERS and not any("# " in line for line in near):
                yield node.lineno


@pytest.mark.parametrize(("text", "found"), [
    ("class A:\n    def __init__(self, a, b, c, d, e, f): ...\n", []),
    ("class A:\n    def __init__(self, a, b, c, d, e, *, f, g): ...\n", [2]),
    ("class A:\n    # One for each column.\n    def __init__(self, a, b, c, d, e, f, g): ...\n", []),
])
def test_a_long_constructor_is_found(text: str, found: list[int]) -> None:
    assert list(long_constructors(text)) == found


def test_only_the_command_line_imports_click() -> None:
    room = ROOT / "repro" / "cli"
    commands = [named(path) for path in CODE if "click" in anywhere(path) and room not in path.parents]
    luggage = re.compile(r"repro/(papers/\w+/cli|(board|published|scores)/commands)\.py")
    assert [name for name in commands if not luggage.fullmatch(name)] == []


def test_reporters_import_nothing_that_trains_and_mlflow_in_functions_only() -> None:
    reporters = [path for path in CODE if path.is_relative_to(ROOT / "reporters")]
    assert len(reporters) > 40
    assert [named(path) for path in reporters if anywhere(path) & HEAVY] == []
    assert [named(path) for path in reporters if "mlflow" in imported(ast.parse(path.read_text()).body)] == []


def test_no_import_is_exempt_from_the_layers() -> None:
    """An import for type checkers that points up would be an exemption or an exclusion here."""
    tomllib: Any = pytest.importorskip("tomllib", reason="reading pyproject.toml takes Python 3.11")
    linter = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    assert not linter.get("exclude_type_checking_imports", False)
    layers = [contract for contract in linter["contracts"] if contract["type"] == "layers"]
    assert layers and all("ignore_imports" not in contract for contract in layers)


def test_rooms_hold_few_files() -> None:
    rooms = Counter(named(path.parent) for path in CODE if path.name != "__init__.py")
    large = {name: count for name, count in rooms.items() if count > STILL_LARGER.get(name, MOST_FILES)}
    assert {name for name in large if name.startswith(ROOMS)} == set()


def test_few_files_have_the_same_name() -> None:
    names = Counter(path.name for path in CODE if not path.name.startswith("__"))
    assert {name for name, count in names.items() if count > STILL_NAMED_ALIKE.get(name, MOST_NAMESAKES)} == set()


def test_no_constructor_is_long_without_a_reason() -> None:
    assert [f"{named(path)}:{line}" for path in CODE for line in long_constructors(path.read_text())] == []


def test_the_package_list_names_every_folder_with_code() -> None:
    tomllib = pytest.importorskip("tomllib", reason="reading pyproject.toml takes Python 3.11")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    listed = set(project["tool"]["setuptools"]["packages"])
    inside = {".".join(path.parent.relative_to(ROOT).parts) for path in (ROOT / "repro").rglob("__init__.py")}
    reporters = {".".join(("repro", *path.parent.relative_to(ROOT).parts))
                 for path in (ROOT / "reporters").rglob("__init__.py")}
    found = inside | reporters | {"repro.suites", "repro.templates"}
    assert listed == found
