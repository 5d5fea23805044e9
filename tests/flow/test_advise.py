"""`repro advise`: a real pilot and its check, the advice read again from the pilot, and what is refused."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from tests.commands import command
from tests.plans import suite

pytestmark = pytest.mark.slow

SUITE = suite("own", seeds=2, workload="{kind: digits-mlp, hidden: 32, depth: 1}", batch="{global: 16}",
              optimizer="{kind: sgd, lr: 0.05}", stop="{metric: top1, target: 0.9, max_epochs: 1}",
              evaluate_every=2000, comm="ring", processes=2)
BYTES = 4 * (64 * 32 + 32 + 32 * 10 + 10)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("advise")
    (folder / "own.yaml").write_text(SUITE)
    code, said, error = command(folder, "advise", "own.yaml", "--workers", "2", "--steps", "3", "--out", "pilot",
                                "--memory", "4096", "--json")
    assert code == 0, error
    (folder / "said.json").write_text(said)
    return folder


def test_the_pilot_measures_what_the_advice_needs(folder: Path) -> None:
    said = json.loads((folder / "said.json").read_text())
    (family,) = said["advice"]["families"]
    assert (family["samples"], family["gradient_bytes"], family["all_reduces"]) == (8, BYTES, 1)
    assert [row["batch"] for row in family["batches"]] == [8, 16, 32]
    (row,) = family["workers"]
    assert row["step_seconds"] == pytest.approx(2 * family["step_seconds"] / row["speed_up"]["value"])
    assert [(row["batch"], row["gain"]["value"] > 0) for row in family["doublings"]] == [(8, True), (16, True)]
    assert family["train_samples"] == 1437
    assert family["worth"] == (2 if row["speed_up"]["value"] >= 1 else 1)
    code, said, error = command(folder, "verify", "pilot")
    assert code == 0, said + error


def test_the_check_measures_what_was_predicted(folder: Path) -> None:
    code, said, error = command(folder, "advise", "own.yaml", "--pilot", "pilot", "--workers", "2", "--steps", "3",
                                "--check", "--out", "again", "--json")
    assert code == 0, error
    (checked,) = json.loads(said)["checked"]
    assert checked["ratio"] == pytest.approx(checked["predicted"]["value"] / checked["measured"]["value"])
    assert command(folder, "verify", "again-check")[0] == 0


def test_the_pilot_gives_the_advice_again(folder: Path) -> None:
    code, said, error = command(folder, "advise", "own.yaml", "--pilot", "pilot", "--workers", "2", "--steps", "3",
                                "--memory", "4096", "--json")  # what is free differs from one moment to the next
    assert code == 0, error
    first, again = (json.loads(text)["advice"]["families"][0]
                    for text in ((folder / "said.json").read_text(), said))
    assert first == again
    code, said, error = command(folder, "advise", "own.yaml", "--pilot", "pilot", "--steps", "3")
    assert "worth it:" in said and "nothing hidden" in said, error
    assert "caution: up to 3 workers of the pilot shared 2 cores" in said or len(os.sched_getaffinity(0)) > 2


def test_a_pilot_without_a_complete_seed_is_told_in_a_line(folder: Path) -> None:
    shutil.copytree(folder / "pilot", folder / "cut")
    for path in (folder / "cut/trials").iterdir():
        trial = json.loads((path / "trial.json").read_text())
        if (trial["choices"]["processes"] == 1) == (trial["repeat"] == 0):
            shutil.rmtree(path)
    code, said, error = command(folder, "advise", "own.yaml", "--pilot", "cut", "--steps", "3")
    assert code == 2, error
    assert "no seed ended well with all of 1, 2, 3 workers" in error and "Error:" not in error + said


@pytest.mark.parametrize(("arguments", "words"), [
    (("own.yaml", "--pilot", "nowhere"), "no such run folder or bundle"),
    (("throughput", "--pilot", "pilot", "--steps", "3"), "is a run of 'own-pilot', not of 'throughput-pilot'"),
    (("own.yaml", "--pilot", "pilot", "--steps", "3", "-o", "workload.hidden=64"), "with another trial (workload: "),
    (("own.yaml", "--pilot", "pilot", "--steps", "4"), "another trial (stop: {'design': 'fixed_steps', 'steps': 3,"),
    (("own.yaml", "-o", "engine={kind: deepspeed, stage: 2}"), "does not send gradients by all-reduce alone"),
    (("own.yaml", "-o", "workload.hidden=8,9,10,11,12,13,14,15,16"), "would have 45 cells; 40 are the most"),
    (("tensor3d",), "is of kind measurement"),
    (("own.yaml", "-o", "engine=fake"), "simulates a training"),
    (("own.yaml", "--workers", "1,2"), "are not numbers of workers"),
    (("own.yaml", "--efficiency", "0"), "--efficiency"),
])
def test_what_is_refused_is_told_in_a_line(folder: Path, arguments: tuple[str, ...], words: str) -> None:
    code, said, error = command(folder, "advise", *arguments)
    assert code == 2
    assert words in error and "Traceback" not in error + said
