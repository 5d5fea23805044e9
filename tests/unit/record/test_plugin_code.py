"""The code of plug-ins is part of a run's identity: a change without a new version is named where runs are compared."""

from __future__ import annotations

from pathlib import Path

import pytest

from repro.bundle.difference import diff_records
from repro.cli.commands.suites import rows
from repro.compare.runs.merge import sections
from repro.core import registry
from repro.core.errors import UsageError
from repro.record.environment.differences import differences
from repro.record.environment.plugin_code import PluginCode, plugin_code
from repro.record.folder.resume import require_same
from repro.record.folder.store import Record
from repro.suite.planning.plan import Plan
from tests.commands import git
from tests.letters import installed, letters_record, write_package


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    place = tmp_path_factory.mktemp("letters")
    write_package(place / "packages")
    return letters_record(place / "run", place / "packages").plan


def code_of(plan: Plan, packages: Path) -> PluginCode:
    with installed(packages):
        return next(item for item in plugin_code(plan, packages) if item.plugin == "workload letters")


@pytest.fixture
def runs(tmp_path: Path) -> tuple[Record, Record]:
    """Two runs of one suite; the package was edited between them without a new version."""
    write_package(tmp_path / "packages")
    first = letters_record(tmp_path / "first", tmp_path / "packages")
    helper = tmp_path / "packages/letters/parts.py"
    helper.write_text(helper.read_text() + "STEPS = 3\n")
    return first, letters_record(tmp_path / "second", tmp_path / "packages", 0.02)


def test_a_changed_plug_in_is_named_by_diff_resume_and_merge(runs: tuple[Record, Record], tmp_path: Path) -> None:
    first, second = runs
    named = [f"{item.area}: {item.change}" for item in diff_records(first.folder.root, second.folder.root).differences
             if item.area == "code"]
    assert any("plug-in workload letters: letters 1.0, source sha256" in text for text in named), named
    found = differences(first.environment, second.environment)
    assert [item.kind for item in found if "plug-in" in item.text] == ["code"] * 4
    with pytest.raises(UsageError, match=r"plug-in .* letters 1\.0, source sha256 .*, now letters 1\.0"):
        require_same(first.folder, [item for item in found if item.kind == "code"], force=False)  # type: ignore[arg-type]
    parts = sections([first.folder.root, second.folder.root], tmp_path / "merged")
    assert len(parts) == 2 and "other code of plug-in comm star (letters 1.0, source sha256" in parts[1].why


@pytest.mark.slow
def test_the_same_code_in_another_place_is_the_same(plan: Plan, tmp_path: Path) -> None:
    for name in ("one", "other"):
        write_package(tmp_path / name)
    assert code_of(plan, tmp_path / "one") == code_of(plan, tmp_path / "other")
    (tmp_path / "other/unrelated.py").write_text("")
    assert code_of(plan, tmp_path / "one") == code_of(plan, tmp_path / "other")


@pytest.mark.slow
def test_a_listed_installation_is_hashed_by_its_list(plan: Plan, tmp_path: Path) -> None:
    write_package(tmp_path / "one")
    (tmp_path / "one/letters/words.txt").write_text("a b c")
    (tmp_path / "one/letters.pth").write_text(str(tmp_path))
    listed = ("letters/__init__.py,,\nletters/parts.py,,\nletters/words.txt,,\nletters.pth,,\n"
              "../../../bin/letters,,\nletters-1.0.dist-info/METADATA,,\n")
    (tmp_path / "one/letters-1.0.dist-info/RECORD").write_text(listed)
    assert code_of(plan, tmp_path / "one").files == 3
    before = code_of(plan, tmp_path / "one").sha256
    (tmp_path / "one/letters/parts.py").write_text("LAYERS = 3\n")
    assert code_of(plan, tmp_path / "one").sha256 != before


def test_modules_next_to_a_single_module_count_if_it_imports_them(plan: Plan, tmp_path: Path) -> None:
    """As in tests/plugins: an entry point to a module, and a second module that it imports later."""
    write_package(tmp_path / "one")
    entry = tmp_path / "one/letters/__init__.py"
    entry.write_text(entry.read_text() + "def later():\n    import alphabet\n")
    (tmp_path / "one/alphabet.py").write_text("import unknown_module\n")
    assert code_of(plan, tmp_path / "one").files == 3


@pytest.mark.slow
def test_the_commit_of_a_checkout_is_recorded(plan: Plan, tmp_path: Path) -> None:
    write_package(tmp_path / "one")
    assert code_of(plan, tmp_path / "one").commit is None
    for arguments in (["init", "-q"], ["add", "letters"], ["commit", "-qm", "first"]):
        git(tmp_path / "one", *arguments)
    clean = code_of(plan, tmp_path / "one")
    assert clean.commit and clean.dirty is False
    (tmp_path / "one/letters/parts.py").write_text("LAYERS = 4\n")
    dirty = code_of(plan, tmp_path / "one")
    assert dirty.commit == clean.commit and dirty.dirty is True and "with uncommitted changes" in dirty.text()


ALIASED = """
from pydantic import BaseModel, Field
from repro.workloads.synthetic import Synthetic
from tests.commands import git

class Inner(BaseModel):
    asked: str = Field("", alias="request")

class Letters(Synthetic):
    {option}
"""


@pytest.mark.parametrize(("text", "said"), [
    ("def broken(:\n", "SyntaxError"), ("raise SystemExit(3)\n", "SystemExit"), ("import no_such\n", "no_such"),
    ("class Letters:\n    pass\n", "is no class of a plug-in"), ("1 / 0\n", "ZeroDivisionError"),
    (ALIASED.format(option="asked: str | None = Field(None, alias='request')"), "option 'asked' has an alias"),
    (ALIASED.format(option="inner: list[Inner] | None = None"), r"option 'inner\.asked' has an alias"),
])
def test_a_broken_plug_in_is_named_with_its_package(text: str, said: str, tmp_path: Path) -> None:
    write_package(tmp_path)
    (tmp_path / "letters/__init__.py").write_text(text)
    with installed(tmp_path):
        with pytest.raises(UsageError, match=rf"workload 'letters' \(letters:Letters\) of package letters 1\..*{said}"):
            registry.load("workload", "letters")
        title = next(row["title"] for row in rows("workloads") if row["name"] == "letters")
    assert title.startswith("(not usable: workload 'letters'") and "\n" not in title
