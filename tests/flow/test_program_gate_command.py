"""`repro gate` and `repro run` of traced programs: answers, exit codes, stored traces, verdicts that say gated."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest

from repro.record.folder.index import seal
from repro.record.folder.store import RunFolder
from tests.commands import Ended, command
from tests.traced_programs import PROGRAMS

SUITE = """\
suite: gated
seeds: 2
master_seed: 5
trial:
  engine: {{kind: program, run: [python, loop.py, --seed, "{{seed}}", --micro, "{{micro}}", --mistake, "{{mistake}}"]}}
  parameters: {{micro: 1, mistake: none}}
  evaluation: {{reader: watch, metric: loss, direction: lower}}
  stop: {{target: 100}}
  gate: {{steps: 2}}
matrix: {{parameters.{factor}: {levels}}}
"""


def repro(folder: Path, *arguments: str, code: int = 0, factor: str = "micro", levels: str = "[1, 2]") -> Ended:
    shutil.copy(PROGRAMS / "loop.py", folder)
    (folder / "suite.yaml").write_text(SUITE.format(factor=factor, levels=levels))
    done = command(folder, *arguments)
    assert done.code == code, done.out + done.error
    return done


@pytest.mark.slow
def test_a_verdict_on_programs_that_passed_says_gated(tmp_path: Path) -> None:
    repro(tmp_path, "run", "suite.yaml", "--no-mlflow", "--out", "run")
    (item,) = json.loads(command(tmp_path, "compare", "run", "--json").out)["comparisons"]
    said = [text for text in item["cautions"] if "self-reported" in text]
    assert len(said) == 1 and "gated: with these files" in said[0] and "not gated" not in said[0]
    verdict = json.loads((tmp_path / "run" / "parity.json").read_text())
    assert [found["problem"] for found in verdict["findings"]] == ["", ""]
    assert command(tmp_path, "verify", "run").code == 0
    verdict["findings"][1]["problem"] = "step 1: another gradient"
    (tmp_path / "run" / "parity.json").write_text(json.dumps(verdict))
    seal(RunFolder(tmp_path / "run"))
    done = command(tmp_path, "verify", "run")
    assert done.code == 3 and "which parity.json does not" in done.out + done.error


@pytest.mark.slow
def test_a_run_whose_variants_train_differently_times_nothing(tmp_path: Path) -> None:
    different = {"factor": "mistake", "levels": '[none, "lost moments"]'}
    done = repro(tmp_path, "run", "suite.yaml", "--no-mlflow", "--out", "run", code=1, **different)
    assert "no trial was timed" in done.error and "lost or rounded" in done.error
    assert not list((tmp_path / "run" / "trials").glob("*"))
    rows = json.loads(repro(tmp_path, "gate", "suite.yaml", "--json", code=1, **different).out)["rows"]
    (row,) = (row for row in rows if not row["passed"])
    assert (row["check"], row["step"], row["candidate"]) == ("update", 2, "mistake=lost moments")
    assert row["size"] > 0.1 > row["tolerance"]


@pytest.mark.slow
def test_a_stored_trace_is_compared_with_later_ones(tmp_path: Path) -> None:
    repro(tmp_path, "gate", "suite.yaml", "--only", "micro=1", "--save", "trace.zip")
    same = repro(tmp_path, "gate", "suite.yaml", "--against", "trace.zip").out
    assert "all checks passed" in same and "steps 1, 2 were compared, no others" in " ".join(same.split())
    found = repro(tmp_path, "gate", "suite.yaml", "--against", "trace.zip", code=1, factor="mistake", levels="[decay]")
    assert "weight_decay is 0.2, the reference's 0.1" in found.out
    longer = repro(tmp_path, "gate", "suite.yaml", "--against", "trace.zip", "-o", "gate.steps=3", code=1)
    assert "does not have step 3" in longer.out
    alone = repro(tmp_path, "gate", "suite.yaml", "--only", "micro=1", code=2)
    assert "one program has nothing to be compared with" in alone.error
    (tmp_path / "trace.zip").write_bytes(b"PK\x03\x04")
    assert "no readable trace" in repro(tmp_path, "gate", "suite.yaml", "--against", "trace.zip", code=2).error


@pytest.mark.slow
def test_a_program_without_a_trace_and_one_that_crashes_are_named(tmp_path: Path) -> None:
    repro(tmp_path, "show", "suite.yaml")
    code = (tmp_path / "loop.py").read_text()
    line = "    watch.trace(model, optimizer)\n"
    for other, words in (("", "left no trace"), ("    raise OSError('no data')\n", "OSError: no data")):
        assert line in code
        (tmp_path / "loop.py").write_text(code.replace(line, other))
        done = command(tmp_path, "gate", "suite.yaml")
        assert done.code == 1 and words in done.out, done.out + done.error


@pytest.mark.slow
@pytest.mark.skipif(find_spec("accelerate") is None, reason="accelerate is not installed")
@pytest.mark.parametrize(("script", "code", "answer"), [
    (lambda text: text, 0, "all checks passed"),
    (lambda text: text.replace("generator=torch", "generator=None and torch"), 1,
     "another order or seed of shuffling"),
])
def test_the_example_of_the_page_gives_the_answers_of_the_page(
    script: Callable[[str], str], code: int, answer: str, tmp_path: Path
) -> None:
    shutil.copytree(PROGRAMS.parents[1] / "examples" / "accelerate", tmp_path / "own")
    path = tmp_path / "own" / "train.py"
    path.write_text(script(path.read_text()))
    done = command(tmp_path / "own", "gate", "gate.yaml")
    assert done.code == code and answer in " ".join(done.out.split()), done.out + done.error
