"""Replays a record to MLflow: one run per cell, one per attempt of a trial below it.

The run folder is the truth and MLflow a reader of it: a replay sends what the tracking store does not have yet and
changes nothing else, as often as it is asked, while the run goes on and afterwards. How far it came stands in
tracking.json, advanced only after the store has answered; without that file, and after every failure, the runs are
found again by their tags and their metric histories are looked at, so that no point is ever there twice. A store that
fails is asked again after growing pauses for as long as it still takes something; what it does not take stays in the
folder for the next replay. Files that it does not take hold nothing else up.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import ClassVar

from pydantic import Field, PrivateAttr

from repro.compare import Comparison, compare, summarize
from repro.core.errors import OutputError, TrackingError
from repro.core.events import read_events
from repro.core.redact import redacted
from repro.record.store import Record
from repro.reporting import Reporter
from repro.stats import paired_ratio
from repro.suite.cell import Cell

from .address import experiment_place
from .figures import digest as figure_digest
from .metric_points import (
    MetricPoint,
    cell_metrics,
    cell_points,
    result_points,
    settled,
    system_points,
    training_points,
)
from .retries import Backoff, Tally, TransientError
from .run_view import AttemptRun, RunView, attempt_runs, cell_view, is_alive, trial_view
from .server import Server, StoredRun, each_once, translated
from .state import Cursor, Sent, State, Store, identity, read_state, remember


class MlflowRuns(Reporter):
    """Replays a record to an MLflow tracking store, idempotently and in parts."""

    title: ClassVar[str] = "MLflow runs: a parent per cell with its figures and verdict, a child per trial"

    tracking_uri: str | None = Field(None, description="tracking store; MLFLOW_TRACKING_URI, else MLflow's default")
    timeout_seconds: float = Field(10.0, gt=0, description="longest wait for one answer of a server")
    patience_seconds: float = Field(20.0, ge=0, description="how long a failing server is asked again in vain")
    ended: bool = Field(False, description="the run is over: a trial without a result was killed")

    _servers: dict[str, Server] = PrivateAttr(default_factory=dict)
    _images: dict[str, dict[str, StoredRun]] = PrivateAttr(default_factory=dict)
    _tally: Tally = PrivateAttr(default_factory=Tally)

    def check(self, experiment: str = "Default") -> None:
        """Do all that is slow before there is anything to send: import MLflow, create or open the store.

        Raises:
            TrackingError: it cannot work: nobody there, not allowed, not installed.
        """
        self._server(experiment)
        paired_ratio([1.0, 2.0], [1.0, 1.5])  # loads scipy, another second, now

    def write(self, record: Record, out: Path) -> list[str]:
        """Send what the store does not have yet; where to look at it.

        Raises:
            TrackingError: the store did not take it, or another process is sending this record.
        """
        patience = Backoff(self.patience_seconds, self._tally)
        while True:
            try:
                return self._write(record)
            except TrackingError as error:
                # What was taken before the failure is not known: ask anew. A server may also be another one by then.
                self._images.clear()
                self._servers.clear()
                pause = patience.pause(error)
                if pause is None:
                    raise
            time.sleep(pause)

    def _write(self, record: Record) -> list[str]:
        server = self._server(record.plan.suite.suite)
        with _alone(record, self.timeout_seconds), translated(server.uri), each_once():
            self._replay(record, server)
        return [experiment_place(server.uri, server.experiment_id)]

    def follow(self, told: Callable[[int], None]) -> None:
        """Let `told` know, by a growing number, of everything that the store confirms."""
        self._tally.told = told

    def left(self, record: Record) -> str:
        """What of a record no store is known to have, in words; "" when nothing is missing. Asks no server."""
        state = read_state(record.folder.tracking)
        place = redacted(self.tracking_uri or os.environ.get("MLFLOW_TRACKING_URI", ""))
        store = state.stores.get(place) or (next(iter(state.stores.values()), Store()) if not place else Store())
        members = [course for cell in attempt_runs(record).values() for course in cell]
        behind = sum(not _whole(course, store.runs.get(course.key)) for course in members)
        if behind:
            return f"{behind} of {len(members)} trials"
        return "" if store.whole else "the cells' last figures and files"

    def rebuild(self, experiment: str, out: Path) -> tuple[Path, int]:
        """The newest record of an experiment as a run folder at `out`, from its artifacts; how many are older.

        Raises:
            UsageError: no such experiment, or nothing of this tool in it.
            OutputError: `out` is not empty or cannot be written.
            TrackingError: the store cannot be reached, or holds too little.
        """
        from .rebuild import rebuild

        return rebuild(self.tracking_uri, experiment, out, self.timeout_seconds)

    def _server(self, experiment: str) -> Server:
        if experiment not in self._servers:
            self._servers[experiment] = Server(
                self.tracking_uri, experiment, self.timeout_seconds, self._tally
            )
        return self._servers[experiment]

    def _replay(self, record: Record, server: Server) -> None:
        state = read_state(record.folder.tracking)
        run = state.run = state.run or identity(record)
        store = state.stores.setdefault(redacted(server.uri), Store())
        if store.experiment != server.experiment_id:
            store.experiment, store.runs = server.experiment_id, {}
        if run not in self._images:
            self._images[run] = self._look(server, run, store)
        images = self._images[run]
        known = {key: image.run_id for key, image in images.items()}
        store.runs = {key: sent for key, sent in store.runs.items() if known.get(key) == sent.run_id}
        store.whole = False
        replay = _Replay(record, server, state, store, images, run, not self.ended and is_alive(record))
        try:
            replay.all()
            if self._tally.doubt:  # a run may be there twice
                self._look(server, run, store)
                self._tally.doubt = False
            store.whole = not replay.refused
        finally:
            remember(record.folder.tracking, state)
        if replay.refused:
            raise replay.refused

    def _look(self, server: Server, run: str, store: Store) -> dict[str, StoredRun]:
        return server.images(run, {key: sent.run_id for key, sent in store.runs.items()})


@dataclass(slots=True)
class _Replay:
    """One pass over a record."""

    record: Record
    server: Server
    state: State
    store: Store
    images: dict[str, StoredRun]
    run: str
    alive: bool
    comparisons: dict[str, list[Comparison]] = field(default_factory=dict)
    refused: TrackingError | None = None
    """Why the first file was not taken that the store refused; no further one is tried."""

    def all(self) -> None:
        begun = attempt_runs(self.record)
        for comparison in compare(self.record.plan, self.record.results, started_ms=self.record.started_ms):
            self.comparisons.setdefault(comparison.candidate, []).append(comparison)
        for cell in self.record.plan.cells:
            if cell.cell_id in begun:
                self._cell(cell, begun[cell.cell_id], report=cell is self.record.plan.cells[0])

    def _cell(self, cell: Cell, members: Sequence[AttemptRun], report: bool) -> None:
        timed = [(course, span) for course in members if (span := self._span(course))]
        if not timed:
            return
        view = cell_view(self.record, self.run, cell, [span for _, span in timed],
                         self.comparisons.get(cell.cell_id, []), self.alive, report)
        parent, sent = self._opened(view, None)
        for course, span in timed:
            self._trial(cell, course, span, parent.run_id)
        results = self.record.of_cell(cell.cell_id)
        figures = cell_points(
            [summarize(cell, results, metric) for metric in cell_metrics(self.record)],
            self.comparisons.get(cell.cell_id, []),
            *settled(self.record, max(end for _, (_, end) in timed)),
        ) if results else []
        self.server.send(parent, view, (), figures)
        self._settle(parent, sent, view)

    def _span(self, course: AttemptRun) -> tuple[int, int] | None:
        """Start and end of an attempt, without reading its log again once all of it was sent."""
        sent = self.store.runs.get(course.key)
        return (sent.done if sent and course.ended else None) or course.span_ms()

    def _trial(self, cell: Cell, course: AttemptRun, span: tuple[int, int], parent: str) -> None:
        image, sent = self.images.get(course.key), self.store.runs.get(course.key)
        if image and sent and sent.done and course.ended:
            return
        view = trial_view(self.record, self.run, cell, course, span, self.alive)
        image, sent = self._opened(view, parent)
        batch = cell.choices.batch.global_
        training, cursor = _training(course.log, sent.logs.get(course.log.name, Cursor()), batch)
        system, system_cursor = _system(course.system_log, sent.logs.get(course.system_log.name, Cursor()))
        figures = result_points(course.result, span[1]) if course.result else []
        self.server.send(image, view, [*training, *system], figures)
        sent.logs = {course.log.name: cursor, course.system_log.name: system_cursor}
        self._settle(image, sent, view)
        sent.done = span if course.ended and not self.refused else None
        remember(self.record.folder.tracking, self.state)

    def _opened(self, view: RunView, parent: str | None) -> tuple[StoredRun, Sent]:
        """The run of a view, created where the store has none."""
        image = self.images.get(view.key)
        if image is None:
            image = self.images[view.key] = self.server.create(view, parent)
        sent = self.store.runs.setdefault(view.key, Sent(run_id=image.run_id))
        return image, sent

    def _settle(self, image: StoredRun, sent: Sent, view: RunView) -> None:
        """Data, artifacts and status."""
        self.server.send_data(image, view.data)
        for name, path in view.files.items():
            digest = _sha256(path)
            if digest and sent.files.get(name) != digest:
                self._file(sent, name, digest, partial(self.server.upload, image, path))
        for name, text in view.texts.items():
            digest = hashlib.sha256(text.encode()).hexdigest()
            if sent.files.get(name) != digest:
                self._file(sent, name, digest, partial(self.server.upload_text, image, name, text))
        for name, figure in view.figures.items():
            digest = figure_digest(figure)
            if sent.files.get(name) != digest:
                self._file(sent, name, digest, partial(self.server.log_figure, image, name, figure))
        self.server.set_status(image, view)

    def _file(self, sent: Sent, name: str, digest: str, send: Callable[[], None]) -> None:
        """Send a file; a store of files that cannot be written does not keep figures from being taken.

        Raises:
            TrackingError: there is nobody at all to take it.
        """
        if self.refused:
            return
        try:
            with translated(self.server.uri):
                send()
        except TrackingError as error:
            if isinstance(error, TransientError) and error.nobody:
                raise
            kind = type(error)
            self.refused = kind(f"{error} (the file {name})")
        else:
            sent.files[name] = digest


def _whole(course: AttemptRun, sent: Sent | None) -> bool:
    """Whether all of an attempt is known to have been taken; of one that was cut short, all of its logs."""
    if sent is None or course.ended:
        return sent is not None and sent.done is not None
    return all(path.stat().st_size <= sent.logs.get(path.name, Cursor()).offset
               for path in (course.log, course.system_log) if path.exists())


def _training(path: Path, cursor: Cursor, batch: int) -> tuple[list[MetricPoint], Cursor]:
    events, offset = read_events(path, cursor.offset)
    with _of_strangers(path):
        points = list(training_points(events, batch))
    return points, Cursor(offset=offset, count=cursor.count + len(events))


def _system(path: Path, cursor: Cursor) -> tuple[list[MetricPoint], Cursor]:
    events, offset = read_events(path, cursor.offset)
    with _of_strangers(path):
        points = list(system_points(events, cursor.count))
    return points, Cursor(offset=offset, count=cursor.count + len(events))


@contextmanager
def _of_strangers(log: Path) -> Iterator[None]:
    """A log that is none of ours may hold anything: whatever does not fit is one thing to the reader.

    Raises:
        OutputError: an event does not hold what its key promises.
    """
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        detail = " ".join(str(error).split())[:120]
        what = f"a damaged event, so it cannot be replayed ({type(error).__name__}: {detail})"
        raise OutputError(f"{log}: {what}") from error


def _sha256(path: Path) -> str | None:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except FileNotFoundError:
        return None


@contextmanager
def _alone(record: Record, wait_seconds: float) -> Iterator[None]:
    """Only one process at a time sends a record: two would each make its runs. The lock is on the folder itself."""
    handle = os.open(record.folder.root, os.O_RDONLY)
    try:
        end = time.monotonic() + wait_seconds
        while not _locked(handle):
            if time.monotonic() > end:
                raise TrackingError(f"{record.folder.root}: another process is replaying it to MLflow; try again later")
            time.sleep(0.1)
        yield
    finally:
        os.close(handle)


def _locked(handle: int) -> bool:
    """Whether the lock is ours; also where the file system knows no locks, as some network ones do."""
    import fcntl

    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True
