"""Import of the records of a speed-run: one log, one arm, one record, or the folder of all records."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from repro.core.errors import UsageError
from repro.published.cells import CellKey, make_cell, result_id
from repro.published.contest_rules import MOST, Contest, StatedMean
from repro.published.record import Imported, PublishedResult, PublishedStatus, Refused, Score
from repro.published.speedrun.claims import judge_quality
from repro.published.speedrun.log import SpeedrunLog, read_log
from repro.published.speedrun.place import Place, stated_means
from repro.published.untrusted.files import DamagedInput, Found, plain, read_small, walk

TARGETS = {"short": 3.28, "medium": 2.92}
"""Validation loss on FineWeb by track: GPT-2 small and GPT-2 medium (the contest's own rules)."""


@dataclass(frozen=True, slots=True)
class Track:
    """The track of a record and its target."""

    name: str
    target: float
    guessed: bool = False
    """The target was concluded from the losses: no folder names the track."""


MAX_TEXT = 1 << 20
MAX_HELD = 192 << 20
"""Approximate bytes of results in one import."""
METRIC = "val_loss"
ORDER = ("benchmark", "date", "round", "system")
"""Factors that order the arms."""
OTHERS = "not a log (.txt or .log) and not a text (.md)"
RUN_NAME = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
NO_LOG = "it has no line step:S/T: not a log of a run"

Variant = tuple[int, int | None, str]
"""Common to all runs of an arm: (GPUs; 0: not stated, steps; None: unknown, hash of the program)."""


@dataclass(slots=True)
class _Run:
    """One log that belongs to an arm."""

    found: Found
    log: SpeedrunLog | None
    """None: it could not be read."""
    lost: str = ""
    """Reason why it is refused; it counts as a run."""
    copy_of: str = ""
    """The log that it is a copy of; it counts nowhere."""

    @property
    def variant(self) -> Variant | None:
        if self.log is None or self.log.steps is None:
            return None
        return len(self.log.machine.gpus), self.log.steps, self.log.program


@dataclass(slots=True)
class _Record:
    """One record: its arms by name, each with its logs, and the texts next to them."""

    place: Place
    arms: dict[str, list[_Run]] = field(default_factory=dict)
    texts: list[tuple[Found, str]] = field(default_factory=list)


def import_records(root: Path, rules: Contest | None = None) -> Imported:
    """Import every log below `root`; `refused` lists the other files with their reasons.

    Raises:
        UsageError: no such folder or file, or too many files or results in it.
    """
    imported = Imported()
    records = _collect(root, imported)
    _mark_copies(records)
    rules = rules or Contest()
    notes: list[str] = []
    guessed: dict[float, list[str]] = {}
    stated: list[StatedMean] = []
    for record in records:
        track = _track(record, rules.target)
        if track.guessed:
            guessed.setdefault(track.target, []).append(record.place.record)
        notes += _import_record(record, track, rules, imported)
        stated += _import_texts(record, track, imported)
    notes += [f"no folder names a track with a known target for {_join(names)}: {target:g} is the nearer target to the "
              "losses; --target declares another" for target, names in guessed.items()]
    imported.cells.sort(key=lambda cell: [cell.factors.get(name, "") for name in ORDER])
    imported.refused.sort(key=lambda item: item.source)
    imported.contest = rules.model_copy(update={"notes": tuple(notes), "stated": tuple(stated)})
    return imported


def _join(names: Sequence[str]) -> str:
    """Return a few names and the number of the others."""
    rest = f" and {len(names) - 6} more" if len(names) > 6 else ""
    return ", ".join(names[:6]) + rest


def _collect(root: Path, imported: Imported) -> list[_Record]:
    """Read every log; return the records by date and name."""
    records: dict[tuple[str, ...], _Record] = {}
    texts: list[tuple[Found, Place]] = []
    held = 0
    for found in walk(root):
        kind = found.parts[-1].lower().rpartition(".")[2]
        if found.refusal or kind not in ("txt", "log", "md"):
            imported.refused.append(Refused(source=found.source, reason=found.refusal or OTHERS))
            continue
        place = Place.of(found.parts, found.source.count("/") + 1)
        if kind == "md":
            texts.append((found, place))
            continue
        run = _read(found)
        if run is None:
            imported.refused.append(Refused(source=found.source, reason=NO_LOG))
            continue
        held += 3000 + 130 * len(run.log.curve if run.log else ())
        if held > MAX_HELD:
            raise UsageError(f"{root}: more logs than one import holds; import a part of it")
        record = records.setdefault(place.home, _Record(place))
        record.arms.setdefault(place.arm, []).append(run)
    for found, place in texts:
        _attach(found, place, records, imported)
    return sorted(records.values(), key=lambda item: (item.place.date or "", item.place.home))


def _read(found: Found) -> _Run | None:
    """Read one log; None if it is none."""
    try:
        log = read_log(found.path)
    except DamagedInput as reason:
        return _Run(found, None, str(reason))
    if log.steps is None and not log.lost:
        # The contest's script names each log by a random number: one that is empty was a run.
        return _Run(found, None, NO_LOG) if RUN_NAME.search(found.parts[-1]) else None
    return _Run(found, log, log.lost)


def _attach(found: Found, place: Place, records: Mapping[tuple[str, ...], _Record], imported: Imported) -> None:
    record = records.get(place.home)
    try:
        if record is None:
            raise DamagedInput("a text without logs next to it")
        record.texts.append((found, read_small(found.path, MAX_TEXT).decode("utf-8", "replace")))
    except DamagedInput as reason:
        imported.refused.append(Refused(source=found.source, reason=str(reason)))


def _mark_copies(records: Sequence[_Record]) -> None:
    """Mark each log that an earlier record, or the same one, already holds: it counts where it stood first."""
    files: dict[str, str] = {}
    runs: dict[str, str] = {}
    for run in (run for record in records for arm in record.arms.values() for run in arm):
        if run.log is None:
            continue
        if run.log.sha256 in files:
            run.copy_of = f"a byte copy of {files[run.log.sha256]}"
        elif run.log.lines_sha256 in runs:
            run.copy_of = f"the same run as {runs[run.log.lines_sha256]}: every step line is equal"
        files.setdefault(run.log.sha256, run.found.source)
        if not run.lost:  # the first lines of two cut logs may well be equal
            runs.setdefault(run.log.lines_sha256, run.found.source)


def _track(record: _Record, target: float | None) -> Track:
    """Return the track that a folder names, else that of the target nearest to the losses.

    Args:
        target: the declared target of all records; None: that of the track.
    """
    stated = record.place.track
    if target is not None:
        return Track(stated or "declared", target)
    if stated in TARGETS:
        return Track(stated, TARGETS[stated])
    losses = [run.log.final for arm in record.arms.values() for run in arm
              if run.log and not run.lost and run.log.final is not None and math.isfinite(run.log.final)]
    if not losses:
        return Track(stated or "short", TARGETS["short"])
    middle = median(losses)
    name, nearest = min(TARGETS.items(), key=lambda item: abs(item[1] - middle))
    return Track(stated or name, nearest, guessed=True)


def _import_record(record: _Record, track: Track, rules: Contest, imported: Imported) -> list[str]:
    """Import the arms of a record; return what a reader must know of its folders."""
    name, notes = record.place.record, list[str]()
    for folder, runs in record.arms.items():
        variants = _variants(runs)
        if len(variants) > 1:
            notes.append(f"{name}, {folder}: one folder holds {_mixture(variants)}; they are "
                         f"{len(variants)} arms here, because they are not runs of one thing")
        copies = [run for run in runs if run.copy_of]
        if copies:
            notes.append(f"{name}, {folder}: {len(copies)} of {len(runs)} logs are copies, the first "
                         f"{copies[0].copy_of}; copies count once")
        for variant, members in variants.items():
            suffix = _suffix(variant, variants)
            key = CellKey(name, "speed-run", plain(folder + suffix), f"nanoGPT {track.name}",
                          "/".join(record.place.home[-2:]))
            _import_arm(key, record.place.date, track.target, members, rules, imported)
    return notes


def _import_texts(record: _Record, track: Track, imported: Imported) -> Iterator[StatedMean]:
    for found, text in record.texts:
        means = list(stated_means(text, track.target, record.place.record, found.source))
        yield from means
        if not means:
            imported.refused.append(Refused(source=found.source, reason="a text that states no mean of the losses"))


def _variants(runs: Sequence[_Run]) -> dict[Variant, list[_Run]]:
    """Group logs by what an arm shares, most runs first; a log that does not say belongs to the largest group."""
    counts = Counter(run.variant for run in runs if run.variant is not None)
    order = [variant for variant, _ in counts.most_common()] or [(0, None, "")]
    groups: dict[Variant, list[_Run]] = {variant: [] for variant in order}
    for run in runs:
        groups[run.variant or order[0]].append(run)
    return groups


def _suffix(variant: Variant, variants: Mapping[Variant, object]) -> str:
    """Return what distinguishes an arm from the others of its folder."""
    words = [f"{number:,} {noun}{'' if number == 1 else 's'}" if number else f"{noun}s not stated"
             for number, noun, place in ((variant[0], "GPU", 0), (variant[1], "step", 1))
             if len({other[place] for other in variants}) > 1]
    if len({other[2] for other in variants}) > 1:
        words.append(f"program {variant[2][:8] or 'not stated'}")
    return f" [{', '.join(words)}]" if words else ""


def _mixture(variants: Mapping[Variant, Sequence[_Run]]) -> str:
    return "; ".join(f"{len(runs)} log{'' if len(runs) == 1 else 's'} of {_suffix(variant, variants)[2:-1]}"
                     for variant, runs in list(variants.items())[:6]) + (
                         f"; {len(variants) - 6} more kinds" if len(variants) > 6 else "")


def _import_arm(
    key: CellKey, date: str | None, target: float, runs: Sequence[_Run], rules: Contest, imported: Imported
) -> None:
    complete = [(run.found, run.log) for run in runs if run.log and not run.copy_of and not run.lost]
    results = [_result(key, date, target, found, log, number) for number, (found, log) in enumerate(complete)]
    lost = [run for run in runs if run.lost and not run.copy_of]
    imported.refused += [Refused(source=run.found.source, reason=run.lost, cell_id=key.cell_id) for run in lost]
    imported.refused += [Refused(source=run.found.source, reason=run.copy_of) for run in runs if run.copy_of]
    imported.results += results
    quality = judge_quality(results, len(lost), target, rules.alpha)
    times = [item.seconds for item in results if item.seconds is not None]
    copies = sum(bool(run.copy_of) for run in runs)
    reason = f"all its {copies} logs are copies of others" if copies == len(runs) else quality.because
    score = Score(
        minutes=math.fsum(times) / len(times) / 60 if times else None, valid=quality.verdict == "supported",
        reason="" if quality.verdict == "supported" else reason, runs=len(results) + len(lost), required=None,
        failed=len(results) + len(lost) - len(times),
    )
    cell = make_cell(key, results, len(lost), score)
    imported.cells.append(cell.model_copy(update={
        "label": plain(f"{key.round}: {key.system}", 300),
        "factors": cell.factors | {"target": f"{target:g}"} | ({"date": date} if date else {}),
    }))


def _result(
    key: CellKey, date: str | None, target: float, found: Found, log: SpeedrunLog, number: int
) -> PublishedResult:
    status: PublishedStatus = "ok"
    reason = ""
    if log.fault:
        status, reason = "invalid", log.fault
    elif log.final is None or not abs(log.final) <= MOST:  # also NaN
        status, reason = "missed", f"its loss at the end is {log.final}"
    gpus = log.machine.gpus
    versions = log.machine.versions
    return PublishedResult(
        program="speedrun", result_id=result_id(key.cell_id, found.source), cell_id=key.cell_id, repeat=number,
        round=key.round, org=key.org, system=key.system, benchmark=key.benchmark,
        accelerator=", ".join(dict.fromkeys(name for name, _ in gpus)) or None, accelerators=len(gpus) or None,
        nodes=1 if gpus else None, framework=f"PyTorch {versions['pytorch']}" if "pytorch" in versions else None,
        date=date, target={METRIC: target}, direction={METRIC: "lower"}, status=status, reason=reason,
        hyperparameters={**log.machine.settings(), "steps": log.steps or 0,
                         **({"program_sha256": log.program} if log.program else {})},
        seconds=log.seconds if status == "ok" else None, run_seconds=log.seconds if status != "invalid" else None,
        curve=tuple(point.model_copy(update={"metric": METRIC}) for point in log.curve), source=found.source,
        sha256=log.sha256,
    )
