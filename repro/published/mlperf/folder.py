"""Import of a results repository of MLPerf, or of any part of one.

Layout: ``ROUND/ORG/results/SYSTEM/BENCHMARK/result_N.txt`` (HPC rounds put `strong/` before the benchmark) and
``ROUND/ORG/systems/SYSTEM.json``. Names above the given folder are used; nothing above it is opened.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from repro.published.cells import CellKey, make_cell, result_id
from repro.published.mlperf import rules
from repro.published.mlperf.log import MlperfLog
from repro.published.mlperf.rules import Version, read_references
from repro.published.mlperf.run import AGREE, STRUCTURE, LogFacts, judge_run, read_facts, why_not_compliant
from repro.published.mlperf.system_description import MAX_BYTES, read_system
from repro.published.record import (
    Imported,
    PublishedCell,
    PublishedReference,
    PublishedResult,
    PublishedSystem,
    Refused,
    Setting,
)
from repro.published.untrusted.files import DamagedInput, Found, number, parse, plain, read_small, walk

LOG_NAME = re.compile(r"result_(.*)\.txt", re.DOTALL)
REFERENCE_NAME = re.compile(r"rcps_(.{1,100})\.json", re.DOTALL)
ROUND_NAME = re.compile(r"(?:(training|hpc)_)?(?:results_)?v?(\d{1,2})\.(\d{1,2})(?:\.\d+)?")
MAX_HELD = 192 << 20
"""Approximate bytes of results in one import; writing needs as much again, and the limit is a gigabyte."""
UNKNOWN = "unknown"
OTHERS = ("not a result log (result_N.txt), system description (systems/NAME.json), scaling.json or "
          "rcps_BENCHMARK.json")


@dataclass(frozen=True, slots=True)
class LogPath:
    """The facts in the path of a log; None: unknown."""

    usage: str
    version: Version | None
    org: str | None
    system: str
    benchmark: str
    home: tuple[str, ...]
    """The folder of the organisation."""

    @classmethod
    def of(cls, parts: Sequence[str]) -> LogPath:
        """Read the path of a log, given as names from the root.

        Raises:
            DamagedInput: a weak-scaling run.
        """
        above = parts[:-1]
        at = max((index for index, name in enumerate(above) if name == "results"), default=-1)
        inner = above[at + 1:]
        if at < 1 or not (len(inner) == 2 or (len(inner) == 3 and inner[1] in ("strong", "weak"))):
            names = ("", "", *above)
            usage, version = _round(above[:-2])
            return cls(usage, version, None, _name(names[-2]), _benchmark(names[-1]), tuple(above[:-2]))
        if len(inner) == 3 and inner[1] == "weak":
            raise DamagedInput("a weak-scaling run: it trains many models at once, which have no individual time to "
                               "target")
        usage, version = _round(above[: at - 1])
        return cls(usage, version, _name(above[at - 1]), _name(inner[0]), _benchmark(inner[-1]), tuple(above[:at]))


def _round(above: Sequence[str]) -> tuple[str, Version | None]:
    """Return (usage, version) from the nearest two names above the organisation."""
    for name in reversed(above[-2:]):
        match = ROUND_NAME.fullmatch(name)
        if match:
            return match[1] or ("hpc" if "hpc" in "".join(above[-2:]).lower() else "training"), (
                int(match[2]), int(match[3]))
    return "training", None


def _round_name(usage: str, version: Version | None) -> str:
    return f"{usage}_v{version[0]}.{version[1]}" if version else UNKNOWN


def _name(text: str) -> str:
    return plain(text) or UNKNOWN


def _benchmark(text: str) -> str:
    return rules.ALIASES.get(text, _name(text))


def import_folder(root: Path) -> Imported:
    """Import every file below `root`; `refused` lists the other files with their reasons.

    Raises:
        UsageError: no such folder or file, or too many files in it.
    """
    reader = _Reader()
    logs: list[Found] = []
    for found in walk(root):
        if LOG_NAME.fullmatch(found.parts[-1]):
            logs.append(found)
        else:
            reader.other(found)
    for found in logs:  # after the system descriptions, which they refer to
        reader.log(found)
    return reader.imported()


class _Reader:
    """Collects the contents of the files of one folder."""

    def __init__(self) -> None:
        self._systems: dict[tuple[tuple[str, ...], str], PublishedSystem] = {}
        self._scaling: dict[str, float] = {}
        """Factor by path of the log folder in the import."""
        self._keys: dict[str, CellKey] = {}
        """Cell by log folder."""
        self._taken: set[CellKey] = set()
        self._results: list[PublishedResult] = []
        self._refused: list[Refused] = []
        self._lost: list[tuple[Found, str]] = []
        """Refused logs with the reason."""
        self._held = 0
        self._references: list[PublishedReference] = []

    def other(self, found: Found) -> None:
        """Read any file other than a log."""
        try:
            if found.refusal:
                raise DamagedInput(found.refusal)
            if found.parts[-1] == "scaling.json":
                self._scaling[_folder(found)] = _scaling_factor(read_small(found.path, MAX_BYTES))
            elif found.parts[-1].endswith(".json") and found.parts[-2:-1] == ("systems",):
                self._system(found)
            elif points := REFERENCE_NAME.fullmatch(found.parts[-1]):
                usage, version = _round(found.parts[:-1])
                self._references += read_references(read_small(found.path, MAX_BYTES), _benchmark(points[1]),
                                                    _round_name(usage, version), version, found.source)
            else:
                raise DamagedInput(OTHERS)
        except DamagedInput as reason:
            self._refused.append(Refused(source=found.source, reason=str(reason)))

    def _system(self, found: Found) -> None:
        home, name = found.parts[:-2], plain(found.parts[-1].removesuffix(".json"))
        org = _name(home[-1]) if home else UNKNOWN
        self._systems[home, name] = read_system(read_small(found.path, MAX_BYTES), org, name, found.source)

    def log(self, found: Found) -> None:
        """Read a result log."""
        try:
            if found.refusal:
                raise DamagedInput(found.refusal)
            result = self._read(found)
            self._held += _weight(result)
            if self._held > MAX_HELD:
                raise DamagedInput(f"this import already has {MAX_HELD >> 20} MiB of results; import parts of the "
                                   "folder")
            self._results.append(result)
        except DamagedInput as reason:
            self._lost.append((found, str(reason)))

    def _read(self, found: Found) -> PublishedResult:
        place = LogPath.of(found.parts)
        log = MlperfLog(found.path)
        facts = read_facts(log)
        system = self._systems.get((place.home, place.system))
        version = place.version or _version(log)
        division = _word(facts, "submission_division") or (system.division if system else None)
        qualities = rules.targets(place.benchmark, version, division)
        train_samples, notes = _train_samples(facts, place.benchmark)
        unit = rules.epoch_unit(place.benchmark, version)
        breach = why_not_compliant(facts, place.usage, version, log.per_second)
        run = judge_run(facts, log.per_second, qualities, unit, train_samples, breach)
        org = place.org or _word(facts, "submission_org") or UNKNOWN
        key = self._key(found, CellKey(_round_name(place.usage, version), org, place.system, place.benchmark))
        notes += _disagreements(facts, log, place, org)
        if system is None:
            notes.append("no readable system description")
        if log.doubled:
            notes.append(f"{log.doubled} lines have several events; the last of each was read, as MLCommons does")
        return PublishedResult(
            program="mlperf", result_id=result_id(key.cell_id, found.source), cell_id=key.cell_id, repeat=0,
            round=key.round, org=key.org, system=key.system, benchmark=key.benchmark, division=division,
            **_of_system(system, facts), **_of_log(facts), **run | {"warnings": (*run["warnings"], *notes)},
            train_samples=train_samples,
            target={quality.metric: quality.target for quality in qualities},
            direction={quality.metric: quality.direction for quality in qualities},
            source=found.source, sha256=log.sha256,
            also={system.source: system.sha256} if system else {},
        )

    def _key(self, found: Found, key: CellKey) -> CellKey:
        """Return the cell of a log folder: each folder is a separate cell."""
        folder = _folder(found)
        if folder not in self._keys:
            if key in self._taken:
                key = key._replace(folder=folder)
            self._taken.add(key)
            self._keys[folder] = key
        return self._keys[folder]

    def imported(self) -> Imported:
        """Return everything, with the scores of the cells."""
        lost: dict[CellKey, int] = {}
        for found, reason in self._lost:
            key = self._lost_key(found)
            lost[key] = lost.get(key, 0) + 1
            self._refused.append(Refused(source=found.source, reason=reason, cell_id=key.cell_id))
        results = _repeats(self._results)
        return Imported(
            cells=self._cells(results, lost), systems=sorted(self._systems.values(), key=lambda item: item.source),
            results=results, refused=sorted(self._refused, key=lambda item: item.source),
            references=self._references,
        )

    def _lost_key(self, found: Found) -> CellKey:
        try:
            place = LogPath.of(found.parts)
        except DamagedInput:  # weak scaling: a separate cell, never a run of the strong one
            place = LogPath.of((*found.parts[:-3], found.parts[-2], found.parts[-1]))
            place = replace(place, benchmark=f"{place.benchmark} weak")
        return self._key(found, CellKey(_round_name(place.usage, place.version), place.org or UNKNOWN, place.system,
                                        place.benchmark))

    def _cells(self, results: Sequence[PublishedResult], lost: dict[CellKey, int]) -> list[PublishedCell]:
        runs: dict[str, list[PublishedResult]] = {}
        for item in results:
            runs.setdefault(item.cell_id, []).append(item)
        cells = []
        for folder, key in self._keys.items():
            own, missing = runs.get(key.cell_id, []), lost.get(key, 0)
            times = [None if item.seconds is None else item.seconds / 60 for item in own] + [None] * missing
            scored = rules.score(key.benchmark, times, self._scaling.get(folder, 1.0))
            cells.append(make_cell(key, own, missing, scored))
        return sorted(cells, key=lambda cell: (cell.factors["round"], cell.factors["benchmark"], cell.label))


def _weight(result: PublishedResult) -> int:
    """Estimate the bytes of a result as text."""
    settings = sum(len(key) + len(str(value)) + 8 for key, value in result.hyperparameters.items())
    return 1_500 + 120 * len(result.curve) + settings


def _folder(found: Found) -> str:
    return found.source.rpartition("/")[0]


def _scaling_factor(content: bytes) -> float:
    data = parse(content)
    factor = number(data.get("scaling_factor")) if isinstance(data, dict) else None
    if factor is None or not 0 < factor < 100:
        raise DamagedInput("has no valid scaling_factor")
    return factor


def _version(log: MlperfLog) -> Version | None:
    """Return the round of the log's form, if it exists in one round only."""
    if log.form == "v0.6":
        return 0, 6
    if log.version:
        major, minor = log.version.split(".")
        return (int(major), int(minor)) if len(major) < 3 and len(minor) < 3 else None
    return None


def _word(facts: LogFacts, key: str) -> str | None:
    value = facts.first.get(key)
    return value if isinstance(value, str) and value else None


def _whole(facts: LogFacts, key: str) -> int | None:
    value = number(facts.first.get(key))
    return int(value) if value is not None and value.is_integer() and 0 <= value <= 1 << 62 else None


def _train_samples(facts: LogFacts, benchmark: str) -> tuple[int | None, list[str]]:
    """Return (samples of one epoch, notes)."""
    found = _whole(facts, "train_samples")
    if found or benchmark != "resnet":
        return found or None, []
    return rules.IMAGENET_TRAIN, [
        f"samples are counted with the benchmark's {rules.IMAGENET_TRAIN:,} images, because the log does not say"]


def _disagreements(facts: LogFacts, log: MlperfLog, place: LogPath, org: str) -> list[str]:
    """Return notes on disagreements between the log and its folders."""
    named = _word(facts, "submission_benchmark") or log.benchmark
    found = []
    if named and rules.ALIASES.get(named, named) != place.benchmark:
        found.append(f"the log names the benchmark {plain(named, 60)!r}, its folder {plain(place.benchmark, 60)!r}; "
                     "the rules of the folder are used")
    owner = _word(facts, "submission_org")
    if owner and owner.casefold() != org.casefold():
        found.append(f"the log names the organisation {plain(owner, 60)!r}, its folder {plain(org, 60)!r}")
    return found


def _of_system(system: PublishedSystem | None, facts: LogFacts) -> dict[str, Any]:
    if system is None:
        return {"availability": _word(facts, "submission_status")}
    return {
        "availability": system.availability, "accelerator": system.accelerator, "accelerators": system.accelerators,
        "nodes": system.nodes, "framework": system.framework,
    }


def _of_log(facts: LogFacts) -> dict[str, Any]:
    settings: dict[str, Setting] = {
        key: value for key, value in sorted(facts.first.items())
        if value is not None and key not in STRUCTURE and key not in AGREE and key not in facts.differ
        and not key.startswith(("submission_", "eval_"))
    }
    return {"global_batch_size": _whole(facts, "global_batch_size") or None, "seed": _whole(facts, "seed"),
            "hyperparameters": settings}


def _repeats(results: Iterable[PublishedResult]) -> list[PublishedResult]:
    """Number the runs of each cell from 0, in the order of their files (result_2 before result_10)."""
    counts: dict[str, int] = {}
    found = []
    for item in sorted(results, key=lambda item: (item.source.rpartition("/")[0], _file_number(item.source),
                                                  item.source)):
        found.append(item.model_copy(update={"repeat": counts.get(item.cell_id, 0)}))
        counts[item.cell_id] = counts.get(item.cell_id, 0) + 1
    return found


def _file_number(source: str) -> int:
    match = LOG_NAME.fullmatch(source.rpartition("/")[2])
    digits = match[1] if match else ""
    return int(digits) if digits.isascii() and digits.isdigit() and len(digits) <= 9 else 1 << 40
