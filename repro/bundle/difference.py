"""Differences between two runs: code, libraries, hardware, settings, experiment, hyper-parameters, data."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import Field

from repro.bundle.contents import scrubber
from repro.bundle.source import open_record
from repro.compare import PAIRED_HASHES
from repro.core.errors import visible
from repro.core.frozen import Frozen
from repro.core.pattern import flat
from repro.record.environment.differences import DifferenceKind, same_memory
from repro.record.environment.environment import NAMED, Environment
from repro.record.folder.store import Record, read_record
from repro.suite.planning.cell import Cell

Area = Literal["code", "libraries", "hardware", "settings", "placement", "experiment", "hyper-parameters", "data"]
AREAS: tuple[Area, ...] = get_args(Area)
ENVIRONMENT: tuple[Area, ...] = ("code", "libraries", "hardware", "settings", "data")
"""Areas whose differences may explain different results of one plan."""
ABSENT = "absent"
WITHIN = "between its own starts"
AREA_OF: dict[DifferenceKind, Area] = {"code": "code", "libraries": "libraries", "hardware": "hardware",
                                       "settings": "settings", "data": "data", "plan": "code", "record": "code"}
"""The area of a difference with which a run was resumed by `--force`."""
PLACE = re.compile(r"_CACHE_DIR\b")
"""Settings that only name a folder; a bundle does not hold such paths."""
FIRST = ("python", *NAMED, "accelerate", "lightning", "pytorch-optimizer", "schedulefree", "transformers", "triton")
"""Packages whose versions are always shown."""
SHOWN = 4
"""Most further packages that have a line each."""
NEAREST = 8
"""Number of cells of each run that are searched for the nearest one."""


@dataclass(frozen=True, slots=True)
class ExecutionDifference:
    """One value that differs between the first and the second run."""

    area: Area
    name: str
    first: str
    second: str
    is_package: bool = False
    """The name is that of an installed package."""

    @property
    def change(self) -> str:
        return visible(f"{self.name}: {self.first} -> {self.second}")


def difference_lines(found: Sequence[ExecutionDifference], *, areas: bool) -> list[str]:
    """Return a line for each difference; packages beyond `FIRST`, if there are more than `SHOWN`, have one together.

    Args:
        areas: begin each line with its area.
    """
    others = [item for item in found if item.is_package and item.name not in FIRST]
    others = others if len(others) > SHOWN else []
    lines = [(item.area, item.change) for item in found if item not in others]
    if others:
        names = visible(", ".join(item.name for item in others))
        lines.append(("libraries", f"{len(others)} other packages, whose versions --json has: {names}"))
    return [f"  {area}: {text}" if areas else f"  {text}" for area, text in lines]


def differences(first: Record, second: Record) -> list[ExecutionDifference]:
    """Return all differences between two records, by area."""
    found = [
        *environment_differences(first.environment, second.environment), *_seen_by_ranks(first, second),
        *_forced(first, second),
        *_experiment(first, second), *_cells(first.plan.cells, second.plan.cells), *_hashes(first, second),
    ]
    clean = scrubber(Path.cwd())  # a bundle holds no paths; the same path in a run must not appear as a difference
    found = [item for item in found if clean.text(item.first) != clean.text(item.second)]
    return sorted(dict.fromkeys(found), key=lambda item: AREAS.index(item.area))


def between_executions(first: Record, second: Record) -> list[ExecutionDifference]:
    """Return the differences of the environment, which could explain different results of one plan."""
    return [item for item in differences(first, second) if item.area in ENVIRONMENT]


def _forced(first: Record, second: Record) -> list[ExecutionDifference]:
    """Differences between the starts of one execution, which was resumed by `--force`."""
    one, other = ({item.text: AREA_OF[item.difference] for item in side.incidents if item.difference}
                  for side in (first, second))
    return [ExecutionDifference(area, WITHIN, text if text in one else ABSENT, text if text in other else ABSENT)
            for text, area in {**one, **other}.items()]


def environment_differences(first: Environment, second: Environment) -> list[ExecutionDifference]:
    """Compare code, libraries, hardware, settings and the identity of the data."""
    code = ("repro_version", "commit", "dirty", "diff_sha256")
    hardware = ("cpu", "cores", "device", "devices", "interconnect", "system", "governor")
    one, other = (_packages(item.packages) | item.libraries for item in (first, second))
    data = [{f"{item.workload}.{name}": str(getattr(item, name)) for item in side.data
             for name in ("name", "version", "sha256", "train_samples", "eval_samples")} for side in (first, second)]
    return [
        *_fields("code", first, second, code),
        *_maps("code", *({f"plug-in {plugin.plugin}": plugin.text() for plugin in item.plugins}
                         for item in (first, second))),
        *_fields("libraries", first, second, ("python",)),
        *(replace(item, is_package=True) for item in _maps("libraries", one, other)),
        *_fields("hardware", first, second, hardware),
        *([] if same_memory(first.memory_bytes, second.memory_bytes)
          else _fields("hardware", first, second, ("memory_bytes",))),
        *_maps("hardware", *({f"limit {name}": value for name, value in item.limits.items()}
                             for item in (first, second))),
        *_maps("settings", first.settings, second.settings),
        *_maps("placement", _placement(first), _placement(second)),
        *([ExecutionDifference("settings", "other variables (hash)", first.others_sha256[:16],
                               second.others_sha256[:16])]
          if first.others_sha256 and second.others_sha256 and first.others_sha256 != second.others_sha256 else []),
        *_maps("data", data[0], data[1]),
    ]


def _placement(environment: Environment) -> dict[str, str]:
    """Return where a run began; of an early version's record nothing is known."""
    found = environment.placement
    return {} if found is None else {
        "host": found.host, "cores": found.cores, "gpus": " ".join(found.gpus), "memory": _shown(found.memory_bytes),
        **found.settings, **{f"limit {name}": value for name, value in found.limits.items()}}


def _packages(listed: Iterable[str]) -> dict[str, str]:
    found = (item.partition("==") for item in listed)
    return {name: version for name, _, version in found}


def _fields(area: Area, first: Environment, second: Environment, names: Sequence[str]) -> list[ExecutionDifference]:
    return _maps(area, *({name: _shown(getattr(item, name)) for name in names} for item in (first, second)))


def _maps(area: Area, first: Mapping[str, str], second: Mapping[str, str]) -> list[ExecutionDifference]:
    return [ExecutionDifference(area, name, first.get(name, ABSENT), second.get(name, ABSENT))
            for name in sorted({*first, *second})
            if not _same(first.get(name, ABSENT), second.get(name, ABSENT)) and not PLACE.search(name)]


def _same(one: str, other: str) -> bool:
    """Compare two values; of paths that a bundle has shortened, only the last part."""
    if one.startswith("<") != other.startswith("<") and "/" in one and "/" in other:
        return one.rpartition("/")[2] == other.rpartition("/")[2]
    return one == other


def _shown(value: Any) -> str:
    if value is None:
        return "unknown"
    if isinstance(value, str):
        return value
    return json.dumps(list(value) if isinstance(value, tuple) else value)


def _seen_by_ranks(first: Record, second: Record) -> Iterator[ExecutionDifference]:
    """Compare the settings and library builds that the ranks recorded, as far as the trials of a cell agree."""
    areas: tuple[tuple[Area, str], ...] = (("settings", "settings"), ("libraries", "build"), ("settings", "effective"))
    for area, name in areas:
        ours, theirs = _agreed(first, name), _agreed(second, name)
        for key in sorted(ours.keys() & theirs.keys()):
            if ours[key] != theirs[key] and not PLACE.search(key):
                yield ExecutionDifference(area, key, _short(ours[key]), _short(theirs[key]))


def _agreed(record: Record, name: str) -> dict[str, str]:
    """Return key -> value if all cells have one value, else one entry per cell."""
    values: dict[str, dict[str, set[str]]] = {}
    for result in record.results:
        for key, value in getattr(result, name).items():
            values.setdefault(key, {}).setdefault(result.cell_id, set()).add(value)
    found: dict[str, str] = {}
    for key, by_cell in values.items():
        everywhere = set().union(*by_cell.values())
        if len(everywhere) == 1:
            found[f"{key} (in the ranks)"] = everywhere.pop()
        else:
            found |= {f"{key} (in the ranks of {cell})": " or ".join(sorted(seen)) for cell, seen in by_cell.items()}
    return found


def _short(text: str) -> str:
    return text if len(text) <= 100 else f"{text[:97]}..."


def _experiment(first: Record, second: Record) -> list[ExecutionDifference]:
    one, other = first.plan, second.plan
    pairs = [
        ("suite", one.suite.suite, other.suite.suite), ("digest", one.digest[:16], other.digest[:16]),
        ("method", one.method, other.method), ("master seed", str(one.suite.master_seed), str(other.suite.master_seed)),
        ("seeds", str(one.suite.seeds), str(other.suite.seeds)), ("margin", f"{one.suite.margin:g}",
                                                                  f"{other.suite.margin:g}"),
        ("sequential", _design(one), _design(other)), ("horizon", str(one.suite.horizon), str(other.suite.horizon)),
        ("trials that ran", str(len(first.results)), str(len(second.results))),
    ]
    pairs += [(f"{what} contrast", _contrast(one, what), _contrast(other, what)) for what in ("primary", "baseline")]
    return [ExecutionDifference("experiment", name, ours, theirs) for name, ours, theirs in pairs if ours != theirs]


def order_seeds(first: Record, second: Record) -> OrderSeeds | None:
    """Return the seeds that the orders of execution were drawn from; None if they are equal.

    Every run draws its own, so that they differ is no difference between two experiments.
    """
    one, other = ("none" if plan.order_seed is None else str(plan.order_seed) for plan in (first.plan, second.plan))
    return None if one == other else OrderSeeds(first=one, second=other)


def _design(plan: Any) -> str:
    design = plan.suite.sequential
    return "none" if design is None else json.dumps(design.model_dump(mode="json", exclude_defaults=True))


def _contrast(plan: Any, what: str) -> str:
    value = getattr(plan.suite, what)
    return "none" if not value else json.dumps(value.model_dump(mode="json") if what == "primary" else value)


def _cells(first: Sequence[Cell], second: Sequence[Cell]) -> Iterator[ExecutionDifference]:
    """Compare the fields of the cells. Equal cells are dropped; each of the others is compared with the nearest."""
    known = {cell.cell_id for cell in first} & {cell.cell_id for cell in second}
    ours = [cell for cell in first if cell.cell_id not in known]
    theirs = [cell for cell in second if cell.cell_id not in known]
    while ours and theirs:
        # The search is quadratic, so it is limited to the first cells, in the order of the suites.
        near = [(a, b) for a in ours[:NEAREST] for b in theirs[:NEAREST]]
        one, other = min(near, key=lambda pair: len(_choices(*pair)))
        ours.remove(one)
        theirs.remove(other)
        for name, before, after in _choices(one, other):
            yield ExecutionDifference("hyper-parameters", f"{name} ({one.label})", before, after)
    for cell in ours:
        yield ExecutionDifference("hyper-parameters", "cell", cell.label, ABSENT)
    for cell in theirs:
        yield ExecutionDifference("hyper-parameters", "cell", ABSENT, cell.label)


def _choices(one: Cell, other: Cell) -> list[tuple[str, str, str]]:
    before, after = ({name: json.dumps(value) for name, value in flat(cell.choices.model_dump(
        mode="json", by_alias=True)).items() if value != {}} for cell in (one, other))
    return [(name, before.get(name, ABSENT), after.get(name, ABSENT)) for name in sorted({*before, *after})
            if before.get(name, ABSENT) != after.get(name, ABSENT)]


def _hashes(first: Record, second: Record) -> list[ExecutionDifference]:
    """Compare the hashes that each seed gave; return the first different one of each cell."""
    theirs = {item.trial_id: item for item in second.results}
    found: dict[tuple[str, str], ExecutionDifference] = {}
    for item in first.results:
        if (mate := theirs.get(item.trial_id)) is None:
            continue
        for name in PAIRED_HASHES:
            ours, other = item.hashes.get(name), mate.hashes.get(name)
            if ours and other and ours != other:
                found.setdefault((item.cell_id, name), ExecutionDifference(
                    "data", f"{name.replace('_', ' ')} of {item.trial_id}", ours[:16], other[:16]))
    return list(found.values())


class OrderSeeds(Frozen):
    """Origins of the orders of execution of two runs."""

    first: str
    second: str


class RecordDiff(Frozen):
    """The differences between two named records, as `repro diff --json` prints them."""

    schema_: Literal[1] = Field(alias="schema")
    first: str
    second: str
    differences: tuple[ExecutionDifference, ...]
    order_seeds: OrderSeeds | None
    """For information; None if both have one."""

    def text(self) -> str:
        """Return the differences by area, the areas without any, and what differs between any two runs."""
        lines = [f"{self.first} -> {self.second}" if self.differences else
                 f"{self.first} and {self.second}: no difference in {', '.join(AREAS)}"]
        for area in AREAS if self.differences else ():
            here = [item for item in self.differences if item.area == area]
            lines += [f"{area}: {len(here)} differ" if here else f"{area}: no difference"]
            lines += difference_lines(here, areas=False)
        if seeds := self.order_seeds:
            lines.append(f"for information: order seed: {seeds.first} -> {seeds.second} (every run draws its own)")
        return "\n".join(lines)


def diff_records(first: Path, second: Path) -> RecordDiff:
    """Compare two run folders or bundles.

    Raises:
        OutputError: one of them is neither.
    """
    with open_record(first) as one, open_record(second) as other:
        records = read_record(one), read_record(other)
        return RecordDiff(schema_=1, first=str(first), second=str(second), differences=tuple(differences(*records)),
                          order_seeds=order_seeds(*records))
