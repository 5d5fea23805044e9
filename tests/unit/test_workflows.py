"""The workflows of CI: their schema, actions that are pinned by hash, targets that exist."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
ACTIONS = sorted((ROOT / ".github/actions").glob("*/action.yml"))


@pytest.mark.parametrize(("schema", "files"), [("workflows", WORKFLOWS), ("actions", ACTIONS)])
def test_they_fit_their_schema(schema: str, files: list[Path]) -> None:
    pytest.importorskip("check_jsonschema")
    ended = subprocess.run([sys.executable, "-m", "check_jsonschema", "--builtin-schema", f"vendor.github-{schema}",
                            *map(str, files)], capture_output=True, text=True, check=False, timeout=120)
    assert files and ended.returncode == 0, ended.stdout


@pytest.mark.parametrize("path", WORKFLOWS + ACTIONS, ids=lambda path: path.parent.name + "/" + path.name)
def test_an_action_of_others_is_pinned_by_its_commit_and_names_its_version(path: Path) -> None:
    used = re.findall(r"uses: (\S+)(.*)", path.read_text())
    pinned = re.compile(r"[\w-]+/[\w-]+@[0-9a-f]{40}")
    wrong = [name for name, rest in used
             if not name.startswith("./") and not (pinned.fullmatch(name) and re.fullmatch(r"  # v\d[\d.]*", rest))]
    assert wrong == []


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_every_target_of_make_exists(path: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    for job in yaml.safe_load(path.read_text())["jobs"].values():
        lines = [step["run"] for step in job["steps"] if "run" in step]
        words = [word for line in lines for word in re.findall(r"\bmake ([a-z -]+)$", line) for word in word.split()]
        words += job.get("strategy", {}).get("matrix", {}).get("what", [])
        assert set(words) <= targets
