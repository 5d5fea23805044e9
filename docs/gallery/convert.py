"""Convert the gallery's records to the record format of this version: `python docs/gallery/convert.py [NAME ...]`.

Every bundle (or those named) is unpacked, changed by `STEPS` in their order, each result is derived from its log again,
and the run is sealed and packed. Prints for each bundle which files the steps changed, the fields of results that their
logs now give otherwise, and every figure and verdict of `repro compare` that is not as in records/figures.json, which
holds those of the last conversion; then writes that file anew. A step that was applied has no effect when it is applied
again, so a record of any earlier state converts: after a merge conflict take either file and run this again.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import click
from click.testing import CliRunner

from repro.bundle.contents import write_bundle
from repro.bundle.source import open_record
from repro.bundle.verify_trials import rederived
from repro.cli.main import cli
from repro.core.files import read_model, write_json, write_model
from repro.core.frozen import FORMAT
from repro.core.machine import Machine
from repro.record.derive.derive import with_energy
from repro.record.folder import index
from repro.record.folder.store import RunFolder, read_plan
from repro.record.result.results import Result
from repro.record.result.status import meaning
from repro.suite.planning.plan import Plan, expand_again

RECORDS = Path(__file__).parent / "records"
FIGURES = RECORDS / "figures.json"
LEFT_OUT = {"schema", "candidate", "baseline", "cell_id", "because", "cautions", "advice", "settles", "differs",
            "pairs", "outliers"}
"""Parts of `repro compare --json` that are sentences or names, or follow from other parts."""
Step = Callable[[Path], None]
"""Changes files of an unpacked run, in place."""


# ---- tools for steps

def change_json(path: Path, change: Callable[[Any], None]) -> None:
    """Apply `change` to the content of a JSON file."""
    data = json.loads(path.read_text(encoding="utf-8"))
    change(data)
    path.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")


def change_lines(path: Path, change: Callable[[Any], None], mark: str = "") -> None:
    """Apply `change` to every line of a JSONL file or, with the mark `:::MLLOG `, to every event of a log."""
    lines = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith(mark):
            data = json.loads(line.removeprefix(mark))
            change(data)
            line = mark + json.dumps(data)
        lines.append(line)
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


# ---- steps, the earliest first

def number_in_the_plan(root: Path) -> None:
    """State the format in plan.json alone."""
    for path in (root / "environment.json", *root.glob("trials/*/result.json")):
        change_json(path, lambda data: data.pop("schema", None))
    plan = json.loads((root / "plan.json").read_text(encoding="utf-8"))
    plan.pop("schema", None)
    write_json(root / "plan.json", {"format": FORMAT, **plan})


def rename(root: Path) -> None:
    """Give cells, trials and the suite the names that follow from all of their fields."""
    path = root / "plan.json"
    plan = read_model(path, Plan)
    again = expand_again(plan, Machine(plan.device, plan.device_count, plan.cores, plan.cpp_compiler))
    names = {plan.digest: again.digest}
    cells = tuple(cell.model_copy(update={"cell_id": cell.choices.cell_id}) for cell in plan.cells)
    now = plan.model_copy(update={"digest": again.digest, "cells": cells})
    names |= {old.cell_id: new.cell_id for old, new in zip(plan.cells, cells, strict=True)}
    stored = {_key(json.loads(file.read_text(encoding="utf-8"))): file.parent
              for file in root.glob("trials/*/trial.json")}
    for trial in now.trials():
        if (folder := stored.get(_key(trial.model_dump(mode="json", by_alias=True)))) is not None:
            names[folder.name] = trial.trial_id
            folder.rename(folder.with_name(trial.trial_id))
    for file in root.rglob("*"):
        if file.is_file() and file.name != "suite.yaml":
            text = before = file.read_text(encoding="utf-8")
            for old, new in names.items():
                text = text.replace(old, new)
            if text != before:
                file.write_text(text, encoding="utf-8")


def _key(trial: dict[str, Any]) -> str:
    return json.dumps([trial["choices"], trial["repeat"]], sort_keys=True)


def type_reasons(root: Path) -> None:
    """Put reasons of results and of the ledger into kinds; those of logged ends are derived from their logs again."""
    def change(data: Any) -> None:
        if "reasons" not in data:
            text = data.pop("reason", "")
            data["reasons"] = [{"kind": "stated", "text": text}] if text else []

    change_lines(root / "ledger.jsonl", change)
    for path in root.glob("trials/*/result.json"):
        change_json(path, change)


def number_of_an_import(root: Path) -> None:
    """The same of an import of published results, in published.json."""
    record = json.loads((root / "published.json").read_text(encoding="utf-8"))
    record.pop("schema", None)
    change_lines(root / "results.jsonl", lambda data: data.pop("schema", None))
    record["results_sha256"] = index.file_sha256(root / "results.jsonl")
    write_json(root / "published.json", {"format": FORMAT, **record})


def drop_peak_bytes(root: Path) -> None:
    """Leave out the event of the largest memory as one number, which x_memory states by phase."""
    for path in root.glob("trials/*/result_*.txt"):
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        path.write_text("".join(line for line in lines if '"key": "x_peak_bytes"' not in line), encoding="utf-8")


STEPS: dict[str, Step] = {"the format in plan.json": number_in_the_plan, "names": rename,
                          "kinds of reasons": type_reasons, "memory by phase": drop_peak_bytes}
"""What a step does -> the step, for runs."""
STEPS_OF_IMPORTS: dict[str, Step] = {"the format in published.json": number_of_an_import}
"""The same for imports of published results, which are folders."""


# ---- conversion

def convert(path: Path, known: dict[str, Any]) -> None:
    """Convert one bundle in place, print what changed, and put its figures into `known`."""
    click.echo(path.name)
    with open_record(path) as root:
        for name, step in STEPS.items():
            before = _contents(root)
            step(root)
            changed = [file for file, content in _contents(root).items() if before.get(file) != content]
            if changed:
                click.echo(f"  {name}: {len(changed)} files")
        derive_results(RunFolder(root))
        index.seal(RunFolder(root))
        write_bundle(root, path, "Apache-2.0")
    found = figures(path)
    for line in differences(known.get(path.stem, {}), found):
        click.echo(f"  {line}")
    known[path.stem] = found


def _contents(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def derive_results(folder: RunFolder) -> None:
    """Write every result as its log gives it; what the end of the processes gave stays as stored."""
    for trial in read_plan(folder.plan).trials():
        path = folder.result(trial.trial_id)
        if not path.is_file():
            continue
        stored = json.loads(path.read_text(encoding="utf-8"))
        outside = {name: stored[name] for name in ("attempt", "status", "reasons", "network", "energy")}
        ended = Result.model_validate(
            {"trial_id": trial.trial_id, "cell_id": trial.cell_id, "repeat": trial.repeat, **outside})
        found = rederived(trial, ended, folder.log(trial.trial_id, ended.attempt))
        if not meaning(ended.status).logged:
            found = found.model_copy(update={"reasons": ended.reasons})
        result = with_energy(found, ended.energy) if ended.energy else found
        now = result.model_dump(mode="json", by_alias=True)
        names = [name for name in {**stored, **now} if stored.get(name) != now.get(name)]
        if names:
            click.echo(f"  {trial.trial_id}: result has other {', '.join(names)}")
        write_model(path, result)


def figures(path: Path) -> dict[str, Any]:
    """Return verdicts and figures of a record: place -> value."""
    data = json.loads(CliRunner().invoke(cli, ["compare", str(path), "--json"]).stdout)
    parts = ("cells", "training", "comparisons", "claims", "effects", "convergence")
    return {place: value for name in parts for place, value in _leaves(data[name], name)}


def _leaves(value: Any, place: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for name, inner in value.items():
            if name not in LEFT_OUT:
                yield from _leaves(inner, f"{place}.{name}")
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from _leaves(inner, f"{place}.{number}")
    elif value is not None:
        yield place, value


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Return one line for each figure that is new, gone or changed beyond rounding."""
    return [f"{place}: was {before.get(place)}, is {after.get(place)}" for place in {**before, **after}
            if not _same(before.get(place), after.get(place))]


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return abs(one - other) <= 1e-9 * max(abs(one), abs(other))
    return type(one) is type(other) and one == other


def main(names: list[str]) -> None:
    known = json.loads(FIGURES.read_text(encoding="utf-8")) if FIGURES.exists() else {}
    for path in sorted(RECORDS.glob("*.zip")):
        if not names or path.stem in names:
            convert(path, known)
    for path in sorted(RECORDS.glob("*/published.json")):
        for step in STEPS_OF_IMPORTS.values():
            step(path.parent)
    write_json(FIGURES, known)


if __name__ == "__main__":
    main(sys.argv[1:])
