"""Several runs -> sections: runs of one experiment on one machine become one record, others a section with a reason.

Every section is a run folder, so that everything that reads a run can read it. No seed counts twice: all trials of a
seed are taken from one run, the earliest that has them all. Which run counts does not depend on its results. Trials
that do not count stay in the ledger, with the name of their run.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

from repro.compare.design.calibration import FILE, machine_of, read_kept_calibration
from repro.compare.runs.run_warnings import alterations
from repro.compare.runs.runs import refuse_copies
from repro.core.errors import OutputError, UsageError
from repro.core.files import write_json, write_model
from repro.core.numbers import spans
from repro.record.environment.differences import changed_data, changed_plugins
from repro.record.folder.index import MERGED, seal
from repro.record.folder.ledger import Attempt, Incident, append_line, read_lines
from repro.record.folder.shards import Shard
from repro.record.folder.store import Record, RunFolder, read_record
from repro.record.folder.stored_code import copy_code
from repro.record.result.remarks import stated
from repro.suite.planning.plan import Plan

LATER = ("seeds were added by a later run: this may have been decided after seeing the earlier results, and p does not "
         "account for that")


@dataclass(frozen=True, slots=True)
class Section:
    """Runs that form one record."""

    name: str
    sources: tuple[str, ...]
    """Names of the runs, the earliest first."""
    why: str
    """Reason for its separation from the first section; "" for the first."""
    notes: tuple[str, ...]
    """Notes about the merge for readers; () for a single run."""
    record: Record


@dataclass(frozen=True, slots=True)
class Source:
    """One run and the name that the report uses for it."""

    name: str
    record: Record


def sections(roots: Sequence[Path], out: Path) -> list[Section]:
    """Read the runs, group them, write each group as a run folder below `out`.

    Raises:
        UsageError: a run is named twice, or beside a copy of it.
        OutputError: not a run folder, a damaged one, or `out` is not empty or cannot be written.
    """
    places = [root.resolve() for root in roots]
    twice = next((root for index, root in enumerate(roots) if places[index] in places[:index]), None)
    if twice is not None:
        raise UsageError(f"{twice}: named twice; a run counts once")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise OutputError(f"{out}: exists and is not an empty folder; give another --out")
    found = [Source(name, read_record(root)) for name, root in zip(names_of(places), roots, strict=True)]
    groups, made = _grouped(found), list[Section]()
    for one, other in (pair for group in groups for pair in combinations(group, 2)):
        refuse_copies(one.record, other.record, (one.name, other.name))
    for number, group in enumerate(groups, 1):
        name = f"{number}-{group[0].record.plan.suite.suite}" if len(groups) > 1 else ""
        why = unlike(groups[0][0].record, group[0].record) if number > 1 else ""
        notes = _notes(group) if len(group) > 1 else ()
        made.append(Section(name, tuple(item.name for item in group), why, notes, merge(group, out / name, notes)))
    return made


def names_of(places: Sequence[Path]) -> list[str]:
    """Return folder names, numbered if several are equal. Not paths, because a report is given to others."""
    short = [place.name or "run" for place in places]
    return [name if short.count(name) == 1 else f"{name} ({short[:index + 1].count(name)})"
            for index, name in enumerate(short)]


def _grouped(found: Sequence[Source]) -> list[list[Source]]:
    """Return groups in the order in which their first run was given; in a group the earliest run comes first."""
    groups: list[list[Source]] = []
    for source in found:
        mates = next((group for group in groups if not unlike(group[0].record, source.record)), None)
        if mates is None:
            groups.append([source])
        else:
            mates.append(source)
    return [sorted(group, key=lambda item: (item.record.environment.started_ms, item.name)) for group in groups]


def unlike(first: Record, second: Record) -> str:
    """Return why trials of two runs cannot be in one record; "" if they can."""
    one, other = first.plan, second.plan
    if one.digest != other.digest:
        changed = changed_plugins(first.environment, second.environment)
        return (f"another suite or version of it: {other.suite.suite!r}, digest {other.digest[:16]} against "
                f"{one.digest[:16]}{'; other code of ' if changed else ''}{', '.join(changed)}")
    if one.suite.sequential:
        return "a sequential run: pairs of another run would come after its looks"
    if one.design.is_contest:
        return "a contest: the runs of another contest were not declared with its runs"
    if one.master_seed != other.master_seed:
        return (f"another master seed: {other.master_seed} against {one.master_seed}, so that seed 0 of one is not "
                "seed 0 of the other")
    machines = [machine_of(item.environment) for item in (first, second)]
    if machines[0] != machines[1]:
        return f"another machine: {machines[1]} against {machines[0]}"
    if changed := changed_plugins(first.environment, second.environment):
        return f"other code of {', '.join(changed)}"
    if changed := changed_data(first.environment, second.environment):
        return f"other {', '.join(changed)}"
    if {cell.cell_id for cell in one.cells} != {cell.cell_id for cell in other.cells}:
        return "other cells of the suite ran"
    return ""


def counted(group: Sequence[Source]) -> dict[int, Source]:
    """Return seed -> the run it is taken from: the earliest with a result in every cell, else the one with most."""
    cells = len(group[0].record.plan.cells)
    seeds = sorted({item.repeat for source in group for item in source.record.results})
    found = {}
    for seed in seeds:
        have = [sum(item.repeat == seed for item in source.record.results) for source in group]
        full = next((source for source, count in zip(group, have, strict=True) if count == cells), None)
        found[seed] = full or group[have.index(max(have))]
    return found


def _notes(group: Sequence[Source]) -> tuple[str, ...]:
    chosen = counted(group)
    parts = []
    for source in group:
        mine = [seed for seed, item in chosen.items() if item is source]
        parts.append(f"{source.name} ({f'seeds {spans(mine)}' if mine else 'none of its seeds counted'})")
    twice = [seed for seed in chosen
             if sum(any(item.repeat == seed for item in source.record.results) for source in group) > 1]
    notes = [f"one record of {len(group)} runs, the earliest first: {'; '.join(parts)}"]
    if twice:
        notes.append(f"seeds {spans(twice)} were run more than once: each counts once, from the earliest run that has "
                     "it in every cell; the other trials are in the ledger")
    if len({source.name for source in chosen.values()}) > 1:
        notes.append(LATER)
    return (*notes, *_differing(group))


def _differing(group: Sequence[Source]) -> Iterator[str]:
    first = group[0].record.environment
    for source in group[1:]:
        other = source.record.environment
        found = sorted({name for name, _ in first.libraries.items() ^ other.libraries.items()})
        found += [name for name in ("python", "system", "commit", "settings")
                  if getattr(first, name) != getattr(other, name)]
        if found:
            yield f"{source.name} differs from {group[0].name} in {', '.join(found)}"


def merge(group: Sequence[Source], root: Path, notes: Sequence[str] = ()) -> Record:
    """Write the runs, the earliest first, as one run folder with its own index.

    Raises:
        OutputError: `root` is not empty or cannot be written, or a run cannot be read.
    """
    folder = RunFolder.create(root)
    base = max(group, key=lambda item: len(item.record.plan.order)).record
    plan = base.plan.model_copy(update={"notes": (*base.plan.notes, *notes), "solo": ()})
    write_model(folder.plan, plan)
    write_model(folder.environment, group[0].record.environment)
    write_json(root / MERGED, {"schema": 1, "runs": [
        {"name": item.name, "started_ms": item.record.environment.started_ms,
         "seeds": sorted({result.repeat for result in item.record.results})} for item in group]})
    parity = _parity(group)
    if parity is not None:
        write_json(folder.parity_verdict, parity)
    try:
        _copy_file(base.folder.suite, folder.suite)
        moments = (moment for item in group for moment in item.record.node_history)
        for moment in sorted(moments, key=lambda moment: moment.at_ms):
            append_line(folder.nodes, moment)
        _copy_file(base.folder.looks, folder.looks)
        calibrated = next((item.record for item in group if read_kept_calibration(item.record) is not None), None)
        if calibrated is not None:
            _copy_file(calibrated.folder.root / FILE, root / FILE)
        copy_code(base.folder.code, folder.code, plan)
        shards = _shards(group)
        if lines := [line.model_copy(update={"shard": new}) for mine in shards for line, new in mine]:
            append_line(folder.lanes, *lines)
        _copy_trials(group, folder, plan, [{line.shard: new for line, new in mine} for mine in shards])
        _copy_incidents(group, folder)
    except OSError as error:
        raise OutputError(f"{error.filename or root}: cannot be copied: {error.strerror}") from error
    seal(folder)
    return read_record(root)


def _parity(group: Sequence[Source]) -> Mapping[str, object] | None:
    """Return the worst outcome of the gates: one failure means not passed, one missing verdict means unknown."""
    found = [item.record.parity for item in group]
    failed = [data for data in found if data and any(item.get("problem") for item in data.get("findings", ()))]
    if failed:
        return failed[0]
    return None if any(data is None for data in found) else max(
        (data for data in found if data is not None), key=lambda data: bool(data.get("needed")))


def _shards(group: Sequence[Source]) -> list[list[tuple[Shard, str]]]:
    """Return, of each run, its shards, each with a name that no shard of another run has."""
    found, taken = list[list[tuple[Shard, str]]](), 0
    for item in group:
        lines = [(line, line.shard.partition("/")) for line in read_lines(item.record.folder.lanes, Shard)]
        found.append([(line, f"{taken + int(number)}/{run}") for line, (number, _, run) in lines])
        taken += max((int(number) for _, (number, _, _) in lines), default=0)
    return found


def _copy_trials(
    group: Sequence[Source], folder: RunFolder, plan: Plan, shards: Sequence[Mapping[str, str]],
) -> None:
    """Copy trials that count unchanged; of the others copy the logs, under further attempt numbers."""
    chosen, ledger = counted(group), list[tuple[float, Attempt]]()
    renamed = {item.name: mine for item, mine in zip(group, shards, strict=True)}
    moments = [{(entry.trial_id, entry.attempt): moved.started_ms for entry, moved in zip(
        item.record.starts, item.record.execution.attempts, strict=True)} for item in group]
    for trial in plan.trials():
        source = chosen.get(trial.repeat, group[0])
        number = 0
        for item, at in sorted(zip(group, moments, strict=True), key=lambda pair: pair[0] is not source):
            starts = [entry for entry in item.record.attempts if entry.trial_id == trial.trial_id]
            if item is source:
                ledger += [(at[trial.trial_id, entry.attempt], entry.model_copy(update={
                    "shard": renamed[item.name].get(entry.shard, entry.shard)}))
                    for entry in item.record.starts if entry.trial_id == trial.trial_id]
                for path in item.record.folder.trial(trial.trial_id).glob("*"):  # `read_record` has refused links
                    _copy_file(path, folder.trial(trial.trial_id) / path.name)
                number = max((entry.attempt for entry in starts), default=1)
                continue
            for entry in starts:
                number += 1
                _copy_file(item.record.folder.log(trial.trial_id, entry.attempt), folder.log(trial.trial_id, number))
                said = f"of {item.name}, not counted: seed {trial.repeat} counts from {source.name}"
                ledger.append((at[trial.trial_id, entry.attempt], entry.model_copy(update={
                    "attempt": number, "reasons": (*stated(said), *entry.reasons), "source": item.name,
                    "shard": renamed[item.name].get(entry.shard, entry.shard)})))
    for _, entry in sorted(ledger, key=lambda item: (item[0], item[1].trial_id, item[1].attempt)):
        folder.append_attempt(entry)


def _copy_incidents(group: Sequence[Source], folder: RunFolder) -> None:
    """Copy the incidents of all runs in order of time; if there are several runs, with the name of the run. That a run
    was modified is one: the index of the merged record is of what it was by then."""
    incidents = list[tuple[Incident, Source]]()
    for source in group:
        if text := alterations(source.record):
            altered = Incident(at_ms=source.record.environment.started_ms, kind="altered", text=text)
            incidents.append((altered, source))
        incidents += [(item, source) for item in source.record.incidents]
    for item, source in sorted(incidents, key=lambda pair: pair[0].at_ms):
        text = f"{source.name}: {item.text}" if len(group) > 1 else item.text
        append_line(folder.incidents, item.model_copy(update={"text": text}))


def _copy_file(source: Path, target: Path) -> None:
    if source.is_file():
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
