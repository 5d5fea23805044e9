"""The package as a user installs it: the wheel and nothing else."""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import repro

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out, copy = tmp_path_factory.mktemp("wheel"), tmp_path_factory.mktemp("source") / "copy"
    # From a copy: setuptools would put what an earlier build left in build/ into the wheel.
    shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(".*", "build", "*.egg-info", "__pycache__"))
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(copy)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return next(out.glob("*.whl"))


@pytest.fixture(scope="module")
def site(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel installed alone; what it needs comes from the interpreter that runs the tests."""
    target = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(target), str(wheel)]
    subprocess.run(command, check=True, timeout=300)
    return target


def run_installed(site: Path, cwd: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(site), "PYTHONSAFEPATH": "1"}
    return subprocess.run([sys.executable, *arguments], cwd=cwd, env=environment, capture_output=True, text=True,
                          timeout=120, check=False)


def test_the_wheel_holds_one_top_level_name(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {name.split("/")[0] for name in archive.namelist()}
    assert {name for name in names if not name.endswith(".dist-info")} == {"repro"}


def test_the_wheel_names_the_licences_of_what_it_carries(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (place,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        stated = archive.read(place).decode().splitlines()
        notice = archive.read(place.replace("METADATA", "licenses/NOTICE")).decode()
        script = gzip.decompress(archive.read("repro/templates/plotly-basic.min.js.gz"))[:400].decode()
    assert {"License-File: LICENSE", "License-File: NOTICE"} <= set(stated)
    (version,), (owner,) = re.findall(r"plotly.js .* v(\S+)", script), re.findall(r"Copyright .*?, Inc\.", script)
    assert f"plotly.js {version}, " in notice and owner in notice and "Licensed under the MIT license" in script
    for carried in ("repro/templates/plotly-basic.min.js.gz", "repro/workloads/prose/persuasion.txt"):
        assert f"({carried})" in notice


def test_the_wheel_holds_everything_the_checkout_has(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        shipped = {name for name in archive.namelist() if not name.split("/")[0].endswith(".dist-info")}
    folders = {"repro": "repro", "reporters": "repro/reporters", "suites": "repro/suites",
               "templates": "repro/templates"}
    kept = (".py", ".pyi", ".yaml", ".j2", ".css", ".js", ".gz", ".c", ".txt", ".typed")
    wanted = {
        f"{target}/{path.relative_to(ROOT / folder).as_posix()}"
        for folder, target in folders.items()
        for path in (ROOT / folder).rglob("*") if path.suffix in kept or path.name == "py.typed"
    }
    assert wanted - shipped == set()
    assert shipped - wanted == set()


def test_the_installed_package_runs_from_anywhere(site: Path, tmp_path: Path) -> None:
    code = ("import json, repro, repro.reporters.html_page as page; from importlib.resources import files;"
            "places = [repro.__file__, page.__file__, files('repro.suites'), files('repro.templates')];"
            "print(json.dumps([str(place) for place in places]))")
    done = run_installed(site, tmp_path, "-c", code)
    assert done.returncode == 0, done.stderr
    assert all(Path(place).is_relative_to(site) for place in json.loads(done.stdout))


def test_the_installed_command_plans_a_suite(site: Path, tmp_path: Path) -> None:
    done = run_installed(site, tmp_path, "-m", "repro", "plan", "quickstart", "--json")
    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout)["order"]) == 2 * 7 + 2 * 20


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 has no PYTHONSAFEPATH")
def test_a_stranger_s_repro_folder_is_not_imported_by_workers(site: Path, tmp_path: Path) -> None:
    (tmp_path / "repro").mkdir()
    (tmp_path / "repro" / "__init__.py").write_text("raise SystemExit('a stranger')")
    done = run_installed(site, tmp_path, "-m", "repro", "--version")
    assert done.returncode == 0, done.stderr
    assert repro.__version__ in done.stdout


def test_the_version_is_in_one_place() -> None:
    citation = (ROOT / "CITATION.cff").read_text()
    assert f"\nversion: {repro.__version__}\n" in citation
    assert f"## [{repro.__version__}]" in (ROOT / "CHANGELOG.md").read_text()
