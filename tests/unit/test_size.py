"""`make size` counts by its rules: on a small checkout whose figures are known."""

from __future__ import annotations

from pathlib import Path

from tools.size import Module, modules, report

FILES = {
    "repro/__init__.py": "",
    "repro/suite/contest.py": '"""Doc."""\n\n\ndef claim():\n    """Doc.\n\n    More.\n    """\n    return 1\n',
    "repro/compare/here.py": "from repro.suite.contest import claim\nfrom repro.suite import contest\n",
    "reporters/page/here.py": "def render():\n    from .there import shown\n",
    "reporters/page/there.py": "shown = 1\n",
    "repro/papers/kfac/uses.py": "import repro.suite.contest\nfrom repro.reporters.page import there\n",
    "tests/test_x.py": "x = 1\n\ny = 2\n",
}


def made(folder: Path) -> dict[str, Module]:
    for name, text in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return {item.name: item for item in modules(folder, "repro", "reporters")}


def test_imports_are_found_through_packages_relative_and_in_functions(tmp_path: Path) -> None:
    found = made(tmp_path)
    assert {name: names for name, item in found.items() if (names := sorted(set(item.imports(found))))} == {
        "repro.compare.here": ["repro.suite.contest"], "reporters.page.here": ["reporters.page.there"],
        "repro.papers.kfac.uses": ["reporters.page.there", "repro.suite.contest"]}


def test_a_function_is_measured_with_and_without_its_docstring(tmp_path: Path) -> None:
    claim = made(tmp_path)["repro.suite.contest"]
    assert (claim.lines, claim.statements, len(claim.docstrings)) == (9, 4, 2)
    assert list(claim.function_lengths()) == [(6, 2)]


def test_the_report_tells_core_coupling_and_slivers(tmp_path: Path) -> None:
    made(tmp_path)
    lines = list(report(tmp_path))
    assert [line.split() for line in lines if line.startswith(("production", "core", "tests"))] == [
        ["production", "16", "lines", "11", "statements", "(9", "without", "docstrings)", "6", "files"],
        ["core", "14", "lines", "9", "statements", "(7", "without", "docstrings)", "5", "files"],
        ["tests", "3", "lines", "2", "statements", "(2", "without", "docstrings)", "1", "files"]]
    assert "  contest              2    1     1      9" in lines
    assert "basenames used four times or more: none" in lines
    assert any(line.startswith("modules with one importer: 0") for line in lines)
