"""A workload of one's own in one file, as docs/extending.md shows it: run on two ranks, bundled, reproduced."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from tests.commands import ROOT, command

pytestmark = pytest.mark.slow

EXAMPLE = ROOT / "examples/spirals"
NET = """\
import torch
from shapes import bend
from torch import nn


class Net(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.first, self.last = nn.Linear(2, width), nn.Linear(width, 2)

    def forward(self, places):
        return self.last(bend(self.first(places)))
"""


def test_the_example_in_the_docs_is_the_file_that_is_tested() -> None:
    text = (EXAMPLE / "spirals.py").read_text()
    assert text in (ROOT / "docs/extending.md").read_text()
    assert len(text.splitlines()) < 60


def run_example(folder: Path, name: str, *words: str) -> str:
    """Run the example with one seed and one cell; return what it said."""
    code, _, error = command(folder, "run", "own/suite.yaml", "--seeds", "1", "-o", "workload.width=16", *words,
                             "--no-mlflow", "--out", name)
    assert code == 0, error
    return error


def test_two_ranks_train_a_class_from_a_file(tmp_path: Path) -> None:
    shutil.copytree(EXAMPLE, tmp_path / "own")
    said = run_example(tmp_path, "one")
    assert "parity gate: spirals.py:Spirals (width=16), batch 64, 2 processes" in said
    run = tmp_path / "one"
    plan, environment = (json.loads((run / name).read_text()) for name in ("plan.json", "environment.json"))
    chosen = plan["cells"][0]["choices"]["workload"]
    assert chosen["kind"] == "spirals.py:Spirals"
    assert next(item for item in environment["plugins"] if item["sha256"] == chosen["code"])["distribution"] == "a file"
    assert (run / "code" / chosen["code"][:16] / "spirals.py").read_text() == (EXAMPLE / "spirals.py").read_text()
    kept = [path for path in run.rglob("*") if path.is_file() and not path.match("rank*.log")]
    assert not [path for path in kept if str(tmp_path) in path.read_text(errors="replace")], "no path of the machine"


def test_the_network_of_the_readme_is_trained_by_every_engine_of_its_suite(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "examples/digits", tmp_path / "own")
    code, _, error = command(tmp_path, "run", "own/mine.yaml", "--seeds", "1", "--no-mlflow", "--out", "one")
    assert code == 0, error
    results = [json.loads(path.read_text()) for path in (tmp_path / "one").glob("trials/*/result.json")]
    assert [item["status"] for item in results] == ["ok"] * 3


def test_its_bundle_is_reproduced_without_the_file(tmp_path: Path) -> None:
    shutil.copytree(EXAMPLE, tmp_path / "own")
    run_example(tmp_path, "one", "-o", "determinism=bitwise")
    shutil.rmtree(tmp_path / "own")
    assert command(tmp_path, "bundle", "one", "-o", "one.zip")[0] == 0
    code, _, error = command(tmp_path, "reproduce", "one.zip", "--out", "two")
    assert code == 2 and "workload spirals.py:Spirals (code/" in error, error
    consent = re.findall("--allow-code ([0-9a-f]{64})", error)[0]
    code, out, error = command(tmp_path, "reproduce", "one.zip", "--out", "two", "--allow-code", consent)
    assert code == 0 and "results reproduced" in out, (out, error)
    assert command(tmp_path, "verify", "two")[0] == 0


def test_a_compiled_model_beside_the_class_imports_its_own_modules(tmp_path: Path) -> None:
    """torch.compile traces functions of modules whose imports find the modules beside them."""
    shutil.copytree(EXAMPLE, tmp_path / "own")
    (tmp_path / "own/net.py").write_text(NET)
    (tmp_path / "own/shapes.py").write_text("from torch.nn.functional import relu as bend\n")
    file = tmp_path / "own/spirals.py"
    text, count = re.subn(r"lambda: nn\.Sequential\(.*self\.width, 2\)\)", "lambda: Net(self.width)", file.read_text(),
                          flags=re.DOTALL)
    assert count == 1
    file.write_text(text.replace("from repro.workloads", "from net import Net\n        from repro.workloads"))
    run_example(tmp_path, "one", "-o", "compile=false,true", "-o", "stop.target=0.6")
    assert sorted(path.name for path in (tmp_path / "one/code").glob("*/*")) == ["net.py", "shapes.py", "spirals.py"]


def test_runs_of_changed_code_are_named_as_such(tmp_path: Path) -> None:
    shutil.copytree(EXAMPLE, tmp_path / "own")
    for name, text in (("one", ""), ("two", "# changed\n")):
        with (tmp_path / "own/spirals.py").open("a") as file:
            file.write(text)
        run_example(tmp_path, name, "--master-seed", "7")
    _, out, error = command(tmp_path, "compare", "one", "two")
    assert "other code of plug-in workload spirals.py:Spirals (a file, source sha256" in out + error, out + error
    _, out, _ = command(tmp_path, "diff", "one", "two")
    assert "plug-in workload spirals.py:Spirals: a file, source sha256" in out
    assert "workload.code" in out
