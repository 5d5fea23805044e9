"""A bundle, a run folder or published results -> the entry of a board."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timezone
from pathlib import Path

from repro.board.entry import Answer, Arm, Entry, Standing, Statement
from repro.bundle.source import is_bundle, open_record
from repro.bundle.verify import verify_opened
from repro.compare import METRICS
from repro.compare.design.calibration import machine_of
from repro.compare.figures import Comparison
from repro.compare.findings import Findings, findings
from repro.compare.runs.together import Part
from repro.core.errors import ReproError
from repro.published.record import PublishedCell
from repro.published.speedrun.claims import judge_claims
from repro.published.store import Published, by_question, read_published
from repro.record.folder.index import file_sha256
from repro.record.folder.store import Record, read_record

DAMAGED = "cannot be read"
IMPOSSIBLE = (ArithmeticError, AssertionError, LookupError, TypeError, ValueError)
"""Errors of a computation with figures that no run writes: expected of a modified record, a defect otherwise."""
Render = Callable[[Record | Published], str]
"""A record -> its page; a function at the top of a module, so that other processes can call it."""


def find_records(folder: Path) -> list[Path]:
    """Return all bundles, run folders and published results below `folder`, in the order of their paths."""
    found = [path for path in folder.rglob("*.zip") if is_bundle(path)]
    for name in ("plan.json", "published.json"):
        for path in filter(Path.is_file, folder.rglob(name)):
            above = (place for place in path.parent.parents if place.is_relative_to(folder))
            if not any((place / "plan.json").is_file() for place in above):  # as there is above the tuning of a run
                found.append(path.parent)
    return sorted(found)


def read_entry(path: Path, top: Path, render: Render) -> tuple[Entry, str]:
    """Return the entry of one record and its page; what cannot be read is an entry that says so, without a page."""
    place = path.relative_to(top).as_posix()
    try:
        with open_record(path) as folder:
            if path.is_dir() and (folder / "published.json").is_file():
                published = read_published(folder)
                return _of_published(published, place), render(published)
            standing, why, identity = _standing(folder, path)
            try:
                record = read_record(folder)
                if standing == "verified" and record.plan.kind == "reproduction":
                    standing, why = "not verified", (f"a reproduction: {len(record.plan.order)} trials that were "
                                                     "chosen, and nothing in it shows that none was left out")
                sha256 = file_sha256(path) if path.is_file() else ""
                return _of_run(record, place, (sha256, identity), standing, why), render(record)
            except IMPOSSIBLE:
                if standing != "modified":
                    raise
                return _unreadable(place, why), ""
    except ReproError as error:
        return _unreadable(place, str(error)), ""


def _unreadable(place: str, why: str) -> Entry:
    return Entry(
        place=place, sha256="", identity="", started_ms=0, kind="run", standing="modified", why=why, suite=DAMAGED,
        title=place, question=DAMAGED, goal="", system="", engines=(), version="", day="", origin="", arms=(),
        answers=())


def _standing(folder: Path, path: Path) -> tuple[Standing, str, str]:
    if path.is_dir():
        return "not verified", "a run folder, which its owner can change: pack it with `repro bundle`", ""
    found = verify_opened(folder, path)
    if found.answer == "sound":
        return "verified", "", found.identity or ""
    if found.answer == "incomplete":
        return "not verified", f"incomplete: {len(found.missing)} trials of its plan have no result", ""
    return "modified", "; ".join(item.text() for item in found.problems[:2]), ""


def _of_run(record: Record, place: str, hashes: tuple[str, str], standing: Standing, why: str) -> Entry:
    plan, environment = record.plan, record.environment
    if record.emulated_devices and standing == "verified":
        standing, why = "not verified", f"{record.emulated_devices[0]} stands for a GPU: nothing was measured on one"
    metric = METRICS[plan.suite.metric]
    timed = metric.timed and metric.to_target
    data = hashlib.sha256(" ".join(sorted(item.sha256 for item in environment.data)).encode()).hexdigest()
    found = findings(record)
    asked = {(cell.choices.task, cell.choices.stop.metric, cell.choices.stop.target) for cell in plan.cells}
    goals = sorted({f"{cell.choices.stop.metric} {cell.choices.stop.target:g}" for cell in plan.cells
                    if cell.choices.stop.target is not None})
    return Entry(
        place=place, sha256=hashes[0], identity=hashes[1], kind="run", standing=standing,
        why=why, suite=plan.suite.suite,
        title=plan.suite.title or plan.suite.suite, started_ms=environment.started_ms,
        question=f"{plan.digest} {data[:16]}",
        goal=f"{metric.noun} ({' or '.join(goals)})" if goals and timed else metric.noun,
        system=machine_of(environment), version=environment.repro_version,
        engines=tuple(sorted({cell.label for cell in plan.cells})),
        day=datetime.fromtimestamp(environment.started_ms / 1e3, timezone.utc).date().isoformat(),
        origin=" and ".join(sorted(set(record.origins.values()))),
        arms=tuple(Arm(label=item.label, median=item.median if timed and len(asked) == 1 else None, reached=item.ok,
                       trials=item.n) for item in found.summaries),
        answers=tuple(_answers(found)), repeated=found.repeated,
        part=Part.of(place, record, found.primary) if found.primary is not None else None,
    )


def _answers(found: Findings) -> Iterator[Answer]:
    """Yield what was declared before the run: its contrast, else its main effects, as its page opens."""
    if found.primary is not None:
        yield _answer(found.primary)
        return
    for effect in found.effects:
        yield _answer(effect.pooled).model_copy(
            update={"candidate": effect.level, "baseline": effect.reference, "scope": effect.scope})


def _answer(found: Comparison) -> Answer:
    return Answer(
        candidate=found.candidate_label, baseline=found.baseline_label, says=METRICS[found.metric].says,
        verdict=found.verdict, ratio=found.ratio, low=found.interval.low if found.interval else None,
        high=found.interval.high if found.interval else None, because=found.because, qualifier=found.qualifier)


def _of_published(found: Published, place: str) -> Entry:
    cells = sorted(found.record.cells, key=lambda cell: (cell.score.minutes is None, cell.score.minutes or 0.0))
    named = sorted({f"{cell.factors.get('round', '')} {cell.factors.get('benchmark', '')}".strip() for cell in cells})
    digest = hashlib.sha256((found.folder / "results.jsonl").read_bytes()).hexdigest()
    return Entry(
        place=place, sha256=digest, identity=digest, started_ms=0, kind="published", standing="not verified",
        why="published by others: their logs were read, nothing was run here", suite=found.record.program,
        title=", ".join(named) or place, question=f"published {digest}", goal="the program's own score",
        system=_systems(cells, contest=found.record.contest is not None), version="",
        day=max((cell.factors.get("date", "") for cell in cells), default=""),
        engines=tuple(sorted({cell.factors["framework"] for cell in cells if "framework" in cell.factors})),
        origin="published", arms=(), answers=(),
        statements=tuple(_scores(cells) if found.record.contest is None else _claims(found)),
    )


def _systems(cells: Sequence[PublishedCell], contest: bool) -> str:
    """Return what ran: the machines of a contest, whose systems are programs; else the number of systems."""
    chips = sorted({f"{cell.factors.get('accelerators', '')} {cell.factors.get('accelerator', '')}".strip()
                    for cell in cells})
    if contest and len(chips) == 1 and chips[0]:
        return chips[0]
    count = len({cell.factors.get("system") for cell in cells})
    return f"{count} {'arm' if contest else 'system'}{'s' if count != 1 else ''}"


def _scores(cells: Sequence[PublishedCell]) -> Iterator[Statement]:
    """Yield the lowest valid score of each benchmark; an open result only where there is no closed one."""
    for (round_name, benchmark), found in by_question(cells).items():
        valid = [cell for cell in found if cell.score.valid and cell.score.minutes is not None]
        closed = [cell for cell in valid if cell.factors.get("division") == "closed"] or valid
        if closed:
            best = min(closed, key=lambda cell: cell.score.minutes or 0.0)
            yield Statement(
                about=", ".join(filter(None, (benchmark, round_name))),
                subject=f"{best.factors.get('org', '')} {best.factors.get('system', '')}".strip(),
                runs=best.score.runs, seconds=60 * (best.score.minutes or 0.0), anchor=f"c-{best.cell_id}")


def _claims(found: Published) -> Iterator[Statement]:
    """Yield the claims that are judged against another arm, the latest first; all arms if there is none."""
    claims = judge_claims(found).arms
    arms = {item.cell_id: item for item in claims}
    chosen = [item for item in claims if item.time.ratio is not None] or claims
    for item, time in ((arm, time) for arm in reversed(chosen) for time in arm.times):
        other = arms.get(time.against)
        low, high = time.interval or (None, None)
        yield Statement(
            about=f"{item.benchmark}, target {item.quality.target:g}", subject=f"{item.record}, {item.arm}",
            runs=item.runs, seconds=item.seconds, anchor=f"c-{item.cell_id}", against_runs=other.runs if other else 0,
            against="" if not other else other.arm if other.record == item.record else f"{other.record}, {other.arm}",
            ratio=time.ratio, low=low, high=high, verdict=time.verdict, target=f"{item.quality.target:g}",
            mean=item.quality.mean, quality=item.quality.verdict, cautions=time.cautions)
