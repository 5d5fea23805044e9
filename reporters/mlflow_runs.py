"""Replays a record to MLflow: one run per cell, one per attempt of a trial below it.

The run folder is the truth and MLflow reads it. A replay sends what the tracking store does not have yet and changes
nothing else; it can be repeated at any time, during the run and afterwards. tracking.json records how far it came, and
only an answer of the store updates it. Without that file, and after every failure, the replay finds the runs by their
tags and reads their metric histories, so that no point is sent twice. If the store fails, the replay retries with
growing pauses as long as the store still takes something; the rest stays in the folder for the next replay. Files that
the store refuses do not block anything else.
"""

from __future__ import annotations

import hashlib
import os
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import ClassVar

from pydantic import Field, PrivateAttr

from repro.compare import Comparison
from repro.compare.findings import findings
from repro.core.errors import OutputError, TrackingError
from repro.core.events import read_events
from repro.core.redact import redacted
from repro.record.folder.store import Record
from repro.record.log.reading import Recorded, interpret
from repro.reporting import Reporter
from repro.runner.tracking_store import (
    Backoff,
    RequestTally,
    TransientError,
    each_once,
    experiment_place,
    locked,
    store_uri,
    translated,
)
from repro.stats import paired_ratio
from repro.suite.planning.cell import Cell

from .tracking.metric_points import (
    MetricPoint,
    cell_metrics,
    cell_points,
    finite_points,
    result_points,
    system_points,
    training_points,
    trials_to_come,
)
from .tracking.notes import Links, experiment_note, experiment_tags
from .tracking.run_view import AttemptRun, RunView, attempt_runs, cell_key, cell_view, is_alive, trial_view
from .tracking.server import Server, StoredRun
from .tracking.state import Cursor, Sent, State, Store, own_state, remember


class MlflowRuns(Reporter):
    """Replays a record to an MLflow tracking store: repeatable and incremental."""

    title: ClassVar[str] = "MLflow runs: a parent per cell with its figures and verdict, a child per trial"
    of_each_phase: ClassVar[bool] = True

    tracking_uri: str | None = Field(None, description="tracking store; MLFLOW_TRACKING_URI, else that of this user")
    timeout_seconds: float = Field(10.0, gt=0, description="longest wait for one answer of a server")
    patience_seconds: float = Field(20.0, ge=0, description="how long to retry a failing server")
    ended: bool = Field(False, description="the run has ended: a trial without a result was killed")

    _servers: dict[str, Server] = PrivateAttr(default_factory=dict)
    _images: dict[str, dict[str, StoredRun]] = PrivateAttr(default_factory=dict)
    _tally: RequestTally = PrivateAttr(default_factory=RequestTally)

    def check(self, experiment: str = "Default") -> None:
        """Do the slow work in advance: import MLflow, create or open the store.

        Raises:
            TrackingError: the store does not answer or refuses, or MLflow is not installed.
        """
        self._server(experiment)
        paired_ratio([1.0, 2.0], [1.0, 1.5])  # loads scipy now, which takes another second

    def write(self, record: Record, out: Path) -> list[str]:
        """Send what the store does not have yet; return where to look at it.

        Raises:
            TrackingError: the store failed, or another process is sending this record.
        """
        patience = Backoff(self.patience_seconds, self._tally)
        while True:
            try:
                return self._write(record)
            except TrackingError as error:
                # It is unknown what the store took before the failure: read it again. The server can be a new one.
                self._images.clear()
                self._servers.clear()
                pause = patience.pause(error)
                if pause is None:
                    raise
            time.sleep(pause)

    def _write(self, record: Record) -> list[str]:
        name = record.plan.suite.suite
        server = self._server(f"{name}-tuning" if record.plan.kind == "tuning" else name)
        busy = f"{record.folder.root}: another process is replaying it to MLflow; try again later"
        handle = os.open(record.folder.root, os.O_RDONLY)  # two processes would each create the runs of the record
        with locked(handle, self.timeout_seconds, busy), translated(server.uri), each_once():
            self._replay(record, server)
        return [experiment_place(server.uri, server.experiment_id)]

    def follow(self, listener: Callable[[int], None]) -> None:
        """Call `listener` with a growing number whenever the store confirms a change."""
        self._tally.listener = listener

    def left(self, record: Record) -> str:
        """Describe what the store is not known to have; "" if nothing is missing. Contacts no server."""
        state, _ = own_state(record)
        place = redacted(self.tracking_uri or store_uri())
        store = state.stores.get(place) or (next(iter(state.stores.values()), Store()) if not place else Store())
        members = [course for cell in attempt_runs(record).values() for course in cell]
        behind = sum(not _is_sent(course, store.runs.get(course.key)) for course in members)
        if behind:
            return f"{behind} of {len(members)} trials"
        return "" if store.whole else "the cells' last figures and files"

    def rebuild(self, experiment: str, out: Path) -> None:
        """Restore the newest record of an experiment from its artifacts, as `tracking.rebuild` says."""
        from .tracking.rebuild import rebuild

        rebuild(self.tracking_uri, experiment, out, self.timeout_seconds)

    def _server(self, experiment: str) -> Server:
        if experiment not in self._servers:
            self._servers[experiment] = Server(self.tracking_uri, experiment, self.timeout_seconds, self._tally)
        return self._servers[experiment]

    def _replay(self, record: Record, server: Server) -> None:
        state, warning = own_state(record)
        if warning:
            sys.stderr.write(f"warning: {warning}\n")
        store = state.stores.setdefault(redacted(server.uri), Store())
        if store.experiment != server.experiment_id:
            store.experiment, store.runs = server.experiment_id, {}
        if state.run not in self._images:
            self._images[state.run] = self._look(server, state.run, store)
        images = self._images[state.run]
        known = {key: image.run_id for key, image in images.items()}
        store.runs = {key: sent for key, sent in store.runs.items() if known.get(key) == sent.run_id}
        store.whole = False
        replay = _Replay(record, server, state, store, images, not self.ended and is_alive(record))
        try:
            replay.all()
            if self._tally.doubt:  # a run may exist twice
                self._look(server, state.run, store)
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

    # Six are given: record and store, and what `write` has found out about both, for all steps of a pass.

    record: Record
    server: Server
    state: State
    store: Store
    images: dict[str, StoredRun]
    alive: bool
    comparisons: dict[str, list[Comparison]] = field(default_factory=dict)
    refused: TrackingError | None = None
    """The refusal of the first file; no further file is tried."""

    def all(self) -> None:
        begun = attempt_runs(self.record)
        for comparison in findings(self.record).comparisons:
            self.comparisons.setdefault(comparison.candidate, []).append(comparison)
        for cell in self.record.plan.cells:
            if cell.cell_id in begun:
                self._cell(cell, begun[cell.cell_id])
        note = experiment_note(self.record, findings(self.record).comparisons, self._links())
        self.server.describe(lambda present: experiment_tags(self.record, note, present))

    def _links(self, parent: str = "") -> Links:
        first = self.images.get(cell_key(self.record.plan.cells[0]))
        return Links(self.server.experiment_id, first.run_id if first else "", parent)

    def _cell(self, cell: Cell, members: Sequence[AttemptRun]) -> None:
        timed = [(course, span) for course in members if (span := self._span(course))]
        if not timed:
            return
        spans = [span for _, span in timed]
        view = self._cell_view(cell, spans)
        links = self._links()
        parent, sent = self._opened(view, None)
        if links != self._links():  # its new id is part of its own description
            view = self._cell_view(cell, spans)
        for course, span in timed:
            self._trial(cell, course, span, parent.run_id)
        at = trials_to_come(self.record, max(end for _, (_, end) in timed))
        figures = cell_points(
            [findings(self.record).summary(cell.cell_id, metric) for metric in cell_metrics(self.record)],
            self.comparisons.get(cell.cell_id, []), *at,
        ) if self.record.of_cell(cell.cell_id) else []
        tuning = findings(self.record).tuning_figures.get(cell.cell_id, {})
        figures += finite_points({f"tuning/{name}": value for name, value in tuning.items()}, *at)
        self.server.send(parent, view, (), figures)
        self._finish(parent, sent, view)

    def _cell_view(self, cell: Cell, spans: Sequence[tuple[int, int]]) -> RunView:
        return cell_view(self.record, self.state.run, cell, spans, self.comparisons.get(cell.cell_id, []), self.alive,
                         cell is self.record.plan.cells[0], self._links())

    def _span(self, course: AttemptRun) -> tuple[int, int] | None:
        """Return start and end of an attempt; its log is not read again after all of it was sent."""
        sent = self.store.runs.get(course.key)
        return (sent.done if sent and course.ended else None) or course.span_ms()

    def _trial(self, cell: Cell, course: AttemptRun, span: tuple[int, int], parent: str) -> None:
        image, sent = self.images.get(course.key), self.store.runs.get(course.key)
        if image and sent and sent.done and course.ended:
            return
        view = trial_view(self.record, self.state.run, cell, course, span, self.alive, self._links(parent))
        image, sent = self._opened(view, parent)
        batch, quality = cell.choices.global_batch or 1, cell.choices.quality
        training, cursor = _new_points(course.log, sent.logs.get(course.log.name, Cursor()),
                                       lambda events: training_points(events, batch, quality))
        begun = sent.logs.get(course.system_log.name, Cursor())
        system, system_cursor = _new_points(course.system_log, begun,
                                            lambda events: system_points(events, begun.count))
        figures = result_points(course.result, span[1], quality, self.record.plan.suite.metric) \
            if course.result else []
        self.server.send(image, view, [*training, *system], figures)
        sent.logs = {course.log.name: cursor, course.system_log.name: system_cursor}
        self._finish(image, sent, view)
        sent.done = span if course.ended and not self.refused else None
        remember(self.record.folder.tracking, self.state)

    def _opened(self, view: RunView, parent: str | None) -> tuple[StoredRun, Sent]:
        """Return the run of a view; create it if the store has none."""
        image = self.images.get(view.key)
        if image is None:
            image = self.images[view.key] = self.server.create(view, parent)
        sent = self.store.runs.setdefault(view.key, Sent(run_id=image.run_id))
        return image, sent

    def _finish(self, image: StoredRun, sent: Sent, view: RunView) -> None:
        self.server.send_data(image, view.data)
        for name, path in view.files.items():
            digest = _sha256(path)
            if digest and sent.files.get(name) != digest:
                self._file(sent, name, digest, partial(self.server.upload, image, path))
        for name, text in view.texts.items():
            digest = hashlib.sha256(text.encode()).hexdigest()
            if sent.files.get(name) != digest:
                self._file(sent, name, digest, partial(self.server.upload_text, image, name, text))
        self.server.set_status(image, view)

    def _file(self, sent: Sent, name: str, digest: str, send: Callable[[], None]) -> None:
        """Send a file; if the artifact store refuses it, metrics are still sent."""
        if self.refused:
            return
        try:
            with translated(self.server.uri):
                send()
        except TrackingError as error:
            if isinstance(error, TransientError) and error.unreachable:
                raise
            self.refused = type(error)(f"{error} (the file {name})")
        else:
            sent.files[name] = digest


def _is_sent(course: AttemptRun, sent: Sent | None) -> bool:
    """Return True if an attempt was sent completely; of an interrupted attempt, all of its logs."""
    if sent is None or course.ended:
        return sent is not None and sent.done is not None
    return all(path.stat().st_size <= sent.logs.get(path.name, Cursor()).offset
               for path in (course.log, course.system_log) if path.exists())


def _new_points(
    path: Path, cursor: Cursor, points: Callable[[Iterable[Recorded]], Iterable[MetricPoint]]
) -> tuple[list[MetricPoint], Cursor]:
    """Return the points of a log behind a cursor, and the cursor behind them; a log from elsewhere can hold anything.
    """
    events, offset = read_events(path, cursor.offset)
    try:
        found = list(points(map(interpret, events)))
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        detail = " ".join(str(error).split())[:120]
        what = f"a damaged event, so it cannot be replayed ({type(error).__name__}: {detail})"
        raise OutputError(f"{path}: {what}") from error
    return found, Cursor(offset=offset, count=cursor.count + len(events))


def _sha256(path: Path) -> str | None:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except FileNotFoundError:
        return None
