"""The snippets of docs/python.md are at most twelve lines and run, where the packages that they name are installed."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/python.md").read_text(encoding="utf-8")
FENCES = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
PACKAGE = re.compile(r"^(?:import|from) (duckdb|polars|torch|wandb)", re.MULTILINE)
SNIPPETS = {found[1]: text for text in FENCES if (found := PACKAGE.search(text))}
NEEDED = {"torch": "tensorboard"}


def test_every_package_has_a_snippet_of_twelve_lines() -> None:
    assert set(SNIPPETS) == {"duckdb", "polars", "torch", "wandb"}
    assert {name: text.count("\n") for name, text in SNIPPETS.items() if text.count("\n") > 12} == {}


@pytest.mark.parametrize("name", sorted(SNIPPETS))
def test_a_snippet_runs(name: str, tmp_path: Path) -> None:
    if find_spec(NEEDED.get(name, name)) is None:
        pytest.skip(f"{NEEDED.get(name, name)} is not installed")
    shutil.copy(ROOT / "docs/gallery/records/settled.zip", tmp_path / "quickstart.zip")
    environment = os.environ | {"WANDB_MODE": "offline", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    ended = subprocess.run([sys.executable, "-c", SNIPPETS[name]], cwd=tmp_path, env=environment, capture_output=True,
                           text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert {"torch": any((tmp_path / "tensorboard").glob("*/events*")), "wandb": (tmp_path / "wandb").is_dir()}.get(
        name, "ddp, 1 process" in ended.stdout)


def test_the_snippets_on_a_record_run_and_every_recipe_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copy(ROOT / "docs/gallery/records/settled.zip", tmp_path / "quickstart.zip")
    monkeypatch.chdir(tmp_path)
    first, recipes, comparison = FENCES[:3]
    names: dict[str, object] = {}
    exec(compile(first + comparison.replace("found.plot()", ""), "docs/python.md", "exec"), names)
    assert "slower" in repr(names["found"])
    answers = []
    for statement in ast.parse(recipes).body:
        text = ast.unparse(statement)
        if isinstance(statement, ast.Expr):
            answers.append(eval(text, names))
        else:
            exec(text, names)
    assert len(answers) == 10 and answers[0].empty, "nothing failed in this record"
    assert all(isinstance(item, float) or (len(item) and not item.isna().all(axis=None)) for item in answers[1:])
    assert answers[8].index.tolist() == [1, 2]
