"""The file of a plug-in's own module is always among the hashed ones, however its package is laid out and installed."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from repro.record.environment import plugin_code
from repro.record.environment.plugin_code import SourceFile, own_file, source_files

INSTALL = """
import json, os, site, sys, zipfile
from importlib.metadata import entry_points
from pathlib import Path
from setuptools.build_meta import build_editable
from repro.record.environment.plugin_code import own_file, source_files
found = {}
for place in sys.argv[1:]:
    os.chdir(place)
    target = Path(place, ".venv/lib/site-packages")
    target.mkdir(parents=True)
    Path(place, ".venv/pyvenv.cfg").write_text("")
    sys.stdout, out = sys.stderr, sys.stdout
    wheel = build_editable(str(target.parent))
    sys.stdout = out
    zipfile.ZipFile(target.parent / wheel).extractall(target)
    os.chdir("/")
    site.addsitedir(str(target))
    [point] = entry_points(group="repro.engine", name=Path(place).name)
    files = source_files(point)
    own = own_file(point) in [item.path.resolve() for item in files]
    found[Path(place).name] = [sorted(item.name for item in files), own]
print(json.dumps(found))
"""
LAYOUTS = {
    "flat": ("acme_flat.engine", ["acme_flat/__init__.py", "acme_flat/engine.py", "acme_flat/words.txt"]),
    "src": ("acme_src.engine", ["src/acme_src/__init__.py", "src/acme_src/engine.py"]),
    "single": ("acme_single", ["acme_single.py"]),
    "namespace": ("acme_spread.engine", ["acme_spread/engine.py", "acme_spread/other.py"]),
    "mapped": ("acme_mapped.engine", ["__init__.py", "engine.py"]),
    "several": ("acme_first.engine", ["acme_first/__init__.py", "acme_first/engine.py", "acme_shared/__init__.py"]),
}
"""Layout -> (module of the entry point, files of the project)."""
SETTINGS = {
    "single": 'py-modules = ["acme_single"]', "namespace": 'packages = ["acme_spread"]',
    "mapped": 'packages = ["acme_mapped"]\npackage-dir = {acme_mapped = "."}',
    "several": 'packages = ["acme_first", "acme_shared"]',
}
NAMES = {
    "flat": ["acme_flat/__init__.py", "acme_flat/engine.py", "acme_flat/words.txt"],
    "src": ["acme_src/__init__.py", "acme_src/engine.py"], "single": ["acme_single.py"],
    "namespace": ["acme_spread/engine.py", "acme_spread/other.py"],
    "mapped": ["acme_mapped/__init__.py", "acme_mapped/engine.py", "acme_mapped/pyproject.toml"],
    "several": ["acme_first/__init__.py", "acme_first/engine.py", "acme_shared/__init__.py"],
}


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[list[str], bool]]:
    """Layout -> (hashed files, the own module's file is among them), after an editable installation by setuptools.

    The virtual environment lies in the project's folder.
    """
    root = tmp_path_factory.mktemp("projects")
    for layout, (module, files) in LAYOUTS.items():
        for name in files:
            write(root / layout / name, "import acme_shared\n" if name == "acme_first/engine.py" else "")
        (root / layout / "pyproject.toml").write_text(
            f'[build-system]\nrequires = ["setuptools"]\nbuild-backend = "setuptools.build_meta"\n'
            f'[project]\nname = "{layout}-plugin"\nversion = "1.0"\n'
            f'[project.entry-points."repro.engine"]\n{layout} = "{module}:Engine"\n[tool.setuptools]\n'
            f"{SETTINGS.get(layout, '')}\n")
    done = subprocess.run([sys.executable, "-c", INSTALL, *(str(root / layout) for layout in LAYOUTS)], cwd=root,
                          capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return {layout: (names, own) for layout, (names, own) in json.loads(done.stdout).items()}


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
def test_an_editable_installation_is_hashed_by_its_sources(
    layout: str, installed: dict[str, tuple[list[str], bool]]
) -> None:
    assert installed[layout] == (NAMES[layout], True)


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


Point = Callable[[str], EntryPoint]


@pytest.fixture
def point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Point:
    """Makes the entry point of a module; folders `one` and `two` are on the path."""
    monkeypatch.syspath_prepend(str(tmp_path / "two"))
    monkeypatch.syspath_prepend(str(tmp_path / "one"))
    return lambda module: EntryPoint("acme", f"{module}:Engine", "repro.engine")


def names(found: list[SourceFile]) -> list[str]:
    return [item.name for item in found]


def test_all_folders_of_a_namespace_package_count(point: Point, tmp_path: Path) -> None:
    write(tmp_path / "one/acme_wide/other.py", "")
    write(tmp_path / "two/acme_wide/plug.py", "import beside\n")
    write(tmp_path / "two/beside.py", "")
    assert names(source_files(point("acme_wide.plug"))) == ["acme_wide/other.py", "acme_wide/plug.py", "beside.py"]
    assert own_file(point("acme_wide.plug")) == (tmp_path / "two/acme_wide/plug.py").resolve()


def test_a_package_that_is_linked_into_the_path_counts(point: Point, tmp_path: Path) -> None:
    write(tmp_path / "project/acme_linked/__init__.py", "")
    (tmp_path / "one").mkdir()
    (tmp_path / "one/acme_linked").symlink_to(tmp_path / "project/acme_linked")
    assert names(source_files(point("acme_linked"))) == ["acme_linked/__init__.py"]
    assert own_file(point("acme_linked")) == (tmp_path / "project/acme_linked/__init__.py").resolve()


@pytest.mark.slow
def test_data_of_a_package_count_and_what_a_run_writes_there_does_not(point: Point, tmp_path: Path) -> None:
    package = tmp_path / "one/acme_data"
    for name in ("__init__.py", "words.txt", "prompt.j2", "table.csv", "weights.pth", "deep/start.npz"):
        write(package / name, "x")
    before = names(source_files(point("acme_data")))
    assert before == [f"acme_data/{name}" for name in
                      ("__init__.py", "deep/start.npz", "prompt.j2", "table.csv", "weights.pth", "words.txt")]
    for name in ("__pycache__/a.pyc", ".git/x", "mlruns/0/meta.yaml", "mlflow.db", "runs/a/ledger.jsonl",
                 "runs/a/plan.json", "runs/a/report/report.html", "env/pyvenv.cfg", "env/lib/x.py", "x.egg-info/y"):
        write(package / name, "")
    assert names(source_files(point("acme_data"))) == before


def test_a_large_file_counts_by_its_size_unless_it_is_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugin_code, "LARGEST", 4)
    digests = {}
    for name in ("words.txt", "engine.so"):
        found = SourceFile(name, tmp_path / name)
        for text in ("aaaa", "bbbb", "aaaaa", "bbbbb"):
            found.path.write_text(text)
            digests[name, text] = found.digest()
    assert digests["words.txt", "aaaa"] != digests["words.txt", "bbbb"]
    assert digests["words.txt", "aaaaa"] == digests["words.txt", "bbbbb"] == "5 bytes"
    assert digests["engine.so", "aaaaa"] != digests["engine.so", "bbbbb"]
