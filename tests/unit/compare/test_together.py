"""Several records of one suite together: which count, what the estimate is, and what is refused."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import numpy as np
import pytest

from repro.compare import compare
from repro.compare.runs.together import together
from repro.core.errors import UsageError
from repro.core.files import write_model
from repro.record.folder.index import seal
from repro.record.folder.store import Record
from repro.stats.random_effects import random_effects
from tests.in_process import refusal, succeeded
from tests.records import SUITE, Course, default_course, make_record, sample_environment


def record(folder: Path, name: str, seed: int, slow: float = 1.0, suite: str = SUITE, crash: bool = False) -> Record:
    """A record of its own master seed, whose DeepSpeed is `slow` times as slow as elsewhere."""
    generator = np.random.default_rng(seed)

    def course(trial: object) -> Course:
        known = default_course(trial)  # type: ignore[arg-type]
        ours = slow if trial.choices.engine.kind == "deepspeed" else 1.0  # type: ignore[attr-defined]
        return Course(known.step_seconds * ours * math.exp(generator.normal(0, 0.01)),
                      hits_at=None if crash and trial.repeat == 1 else 4, drawn=f"{seed}")  # type: ignore[attr-defined]

    made = make_record(folder / name, re.sub("^seeds: 6", f"seeds: 6\nmaster_seed: {seed}", suite, flags=re.M), course)
    seal(made.folder)
    return made


def test_records_of_their_own_seeds_give_one_mean(tmp_path: Path) -> None:
    found = [record(tmp_path, f"r{seed}", seed, 1 + 0.02 * seed) for seed in range(4)]
    answer = together([item.folder.root for item in found])
    first = answer.contrasts[0]
    logs = [np.log(compare(item.plan, item.results, execution=item.execution)[0].judged_ratios) for item in found]
    expected = random_effects([float(item.mean()) for item in logs],
                              [float(item.var(ddof=1)) / len(item) for item in logs])
    assert first.effects == expected and expected.between > 0
    assert [item.left_out for item in first.parts] == [""] * 4
    assert first.as_json()["together"]["ratio"] == pytest.approx(math.exp(expected.mean))
    assert "on average over 4 independent records" in answer.text() and "no verdict" in answer.text()
    assert not re.search(r"\b(faster|slower|same)\b", answer.text())


def test_runs_that_share_a_master_seed_are_one_record(tmp_path: Path) -> None:
    found = [record(tmp_path, name, seed) for name, seed in (("a", 1), ("b", 2), ("again", 1))]
    first = together([item.folder.root for item in found]).contrasts[0]
    assert first.effects is not None and first.effects.count == 2
    assert first.parts[2].left_out == "it has the master seed of a, so both are one record"
    with pytest.raises(UsageError, match="all 2 runs have the master seed 1, so they are one record"):
        together([found[0].folder.root, found[2].folder.root])


def test_a_record_with_missed_trials_does_not_count(tmp_path: Path) -> None:
    found = [record(tmp_path, f"r{seed}", seed, crash=seed == 2) for seed in range(3)]
    parts = together([item.folder.root for item in found]).contrasts[0].parts
    assert [bool(item.left_out) for item in parts] == [False, False, True]
    assert "missed" in parts[2].left_out


def test_a_metric_that_the_records_cannot_have_is_refused(tmp_path: Path) -> None:
    """The time to the end of a contest has the path of that to the target."""
    found = [record(tmp_path, f"r{seed}", seed).folder.root for seed in range(3)]
    for metric, why in (("end_wall", "only design contest has a time to the end"), ("operation_time", "measurements")):
        with pytest.raises(UsageError, match=f"metric {metric}: {why}"):
            together(found, metric)


def test_the_command(tmp_path: Path) -> None:
    names = [str(record(tmp_path, f"r{seed}", seed).folder.root) for seed in range(3)]
    ended = succeeded("compare", *names, "--json")
    assert json.loads(ended.output)["contrasts"][0]["together"]["count"] == 3
    assert "another record: " in succeeded("compare", *names).output
    refused = refusal("compare", *names, "--fail-if", "slower", kind=UsageError)
    assert "several records together have no verdict" in refused
    other = record(tmp_path, "other", 9, suite=SUITE.replace("lr: 0.1", "lr: 0.2"))
    assert "other: is of another suite or method than r0" in refusal("compare", *names, str(other.folder.root))


def test_records_of_other_data_are_refused_and_those_of_other_machines_say_so(tmp_path: Path) -> None:
    found = [record(tmp_path, f"r{seed}", seed).folder for seed in range(3)]
    roots, environment = [item.root for item in found], sample_environment()
    assert together(roots).warnings == ()
    write_model(found[2].environment, environment.model_copy(update={"cpu": "another", "load_1min": 9.0}))
    seal(found[2])
    differ, busy = together(roots).warnings
    assert differ == "the runs differ in cpu" and busy.startswith("Busy machine: ") and busy.endswith("[r2]")
    data = environment.data[0].model_copy(update={"sha256": "1" * 64})
    write_model(found[2].environment, environment.model_copy(update={"data": (data,)}))
    with pytest.raises(UsageError, match=r"r2: is of other data than r0 .* only records of the same data are combined"):
        together(roots)


def test_a_modified_record_counts_neither_nor_takes_the_place_of_another(tmp_path: Path) -> None:
    found = [record(tmp_path, name, seed) for name, seed in (("wrong", 1), ("one", 1), ("two", 2))]
    with (found[0].folder.root / "suite.yaml").open("a") as file:
        file.write("# mine\n")
    parts = together([item.folder.root for item in found]).contrasts[0].parts
    assert parts[0].left_out.startswith("suite.yaml: modified")
    assert [part.left_out for part in parts[1:]] == ["", ""]
