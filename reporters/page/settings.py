"""What was run and on what: hyper-parameters, requested against effective, machine, data, how to reproduce."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from repro.record.results import Result
from repro.record.store import Record
from repro.seams.training import Engine, Precision
from repro.suite.cell import Cell
from repro.suite.training import TrainingConfig

from .cells import CellMark, marks
from .text import gibibytes, moment, seconds, visible

Fact = tuple[str, object]


@dataclass(frozen=True, slots=True)
class Settings:
    """Hyper-parameters: those in which cells differ, cell by cell, and those they share."""

    differing: tuple[str, ...]
    rows: tuple[tuple[CellMark, tuple[str, ...]], ...]
    common: tuple[Fact, ...]


@dataclass(frozen=True, slots=True)
class EffectiveSetting:
    """One thing read back from what ran, and the cells in which it was so."""

    name: str
    requested: str
    found: str
    cells: str
    steady: bool
    """False: trials of one cell differ in it."""
    differs: bool = False
    """Whether cells differ in it."""


def settings(record: Record) -> Settings:
    """Every field of every cell, flat, with the derived learning rate and micro-batch."""
    known = marks(record)
    flat = {cell.cell_id: _all_fields(cell.choices) for cell in record.plan.cells}
    keys = list(dict.fromkeys(key for fields in flat.values() for key in fields))
    differing = tuple(key for key in keys if len({fields.get(key) for fields in flat.values()}) > 1)
    first = next(iter(flat.values()), {})
    return Settings(
        differing=differing,
        rows=tuple(
            (known[cell_id], tuple(fields.get(key, "-") for key in differing)) for cell_id, fields in flat.items()
        ),
        common=tuple((key, first[key]) for key in keys if key not in differing),
    )


def _all_fields(choices: TrainingConfig) -> dict[str, str]:
    fields = flatten(choices.model_dump(mode="json", by_alias=True))
    return fields | {"learning rate after scaling (derived)": f"{choices.rate:g}"}


def flatten(data: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Nested fields as dotted paths, the way a suite's matrix names them."""
    found: dict[str, str] = {}
    for key, value in data.items():
        if isinstance(value, Mapping) and value:
            found |= flatten(value, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = plain(value)
    return found


def plain(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else value if isinstance(value, str) else json.dumps(value)


def effective(record: Record) -> list[EffectiveSetting]:
    """What ran, read back by the trials; cells that agree in a line share it, and what differs stands first."""
    return _lines(record, lambda result: result.effective, _requested)


def rank_settings(record: Record) -> list[EffectiveSetting]:
    """Environment variables as the ranks saw them, likewise; empty in records from before they were kept."""
    names = {name for item in record.results for name in item.settings}
    return _lines(record, lambda result: {name: result.settings.get(name, "not set") for name in sorted(names)}
                  if result.settings else {}, lambda _: {})


def _lines(
    record: Record, read: Callable[[Result], Mapping[str, str]], asked: Callable[[Cell], Mapping[str, str]]
) -> list[EffectiveSetting]:
    known = marks(record)
    lines: dict[tuple[str, str, str, bool], list[int]] = {}
    for cell in record.plan.cells:
        wanted = asked(cell)
        seen: dict[str, list[str]] = {}
        for result in record.of_cell(cell.cell_id):
            for name, value in read(result).items():
                seen.setdefault(name, []).append(value)
        for name, values in seen.items():
            kinds = list(dict.fromkeys(values))
            key = (name, wanted.get(name, "-"), " / ".join(kinds), len(kinds) == 1)
            lines.setdefault(key, []).append(known[cell.cell_id].number)
    order = {name: place for place, name in enumerate(dict.fromkeys(key[0] for key in lines))}
    several = {name for name in order if len({key[2] for key in lines if key[0] == name}) > 1}
    found = [
        EffectiveSetting(name, requested, found, spans(cells), steady, name in several)
        for (name, requested, found, steady), cells in sorted(lines.items(), key=lambda item: order[item[0][0]])
    ]
    return sorted(found, key=lambda line: not (line.differs or not line.steady))


def _requested(cell: Cell) -> dict[str, str]:
    """What the suite asked for, under the names that engines use when they read back."""
    choices, precision = cell.choices, cell.choices.precision.get(Precision)
    weights, product = precision.weights, precision.autocast or precision.weights
    stage = choices.engine.get(Engine).zero_stage()
    asked = {
        "comm": choices.comm.label, "optimizer": choices.optimizer.label, "weight_dtype": weights,
        "matmul_dtype": product, "autocast": product, "engine": choices.engine.label,
        "tf32": "on" if precision.tf32 else "off",
    }
    return asked | ({"zero_stage": str(stage)} if stage is not None else {})


def spans(numbers: Sequence[int]) -> str:
    """1, 2, 3, 5 as `1 to 3, 5`."""
    runs: list[list[int]] = []
    for value in sorted(numbers):
        if runs and value == runs[-1][-1] + 1:
            runs[-1].append(value)
        else:
            runs.append([value])
    return ", ".join(f"{run[0]} to {run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs)


def machine(record: Record) -> list[Fact]:
    """Hardware and system; what is unknown says so."""
    environment = record.environment
    dirty = {True: "with uncommitted changes", False: "clean", None: "state unknown"}[environment.dirty]
    return [
        ("Started", moment(environment.started_ms)),
        ("CPU", f"{environment.cpu}, {environment.cores} cores usable"),
        ("Memory", gibibytes(environment.memory_bytes) or "unknown"),
        ("Training device", environment.device),
        ("Devices", "; ".join(environment.devices) or "none beside the CPU"),
        ("Interconnect", environment.interconnect),
        ("Operating system", environment.system),
        ("Python", environment.python),
        ("repro", environment.repro_version),
        ("Commit", f"{environment.commit} ({dirty})" if environment.commit else "not from a checkout"),
        ("Load before the run (1 min)", "unknown" if environment.load_1min is None else f"{environment.load_1min:g}"),
        ("Loading libraries, once a run, on no trial's clock", seconds(record.preload_seconds) or "unknown"),
    ]


def suite_text(record: Record) -> str:
    """The suite as it ran, overrides included, as YAML that `repro run` takes."""
    data = record.plan.suite.model_dump(mode="json", by_alias=True, exclude_defaults=True, exclude={"seeds"})
    data = {"suite": data.pop("suite"), **data, "seeds": record.plan.suite.seeds,
            "master_seed": record.plan.suite.master_seed}
    text = yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=100)
    if visible(text) == text:
        return text
    return yaml.safe_dump(data, sort_keys=False, allow_unicode=False, width=100)  # hidden characters as escapes
