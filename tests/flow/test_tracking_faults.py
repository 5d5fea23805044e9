"""Tracking servers: down, slow, restarted, refusing or disconnected during an answer; nothing lost, nothing doubled.

The server is MLflow's own, a real process with its database and its store of files; in front of it is a proxy that
does to each request what a plan says. What the server has in the end is read from its database, not from its answers.
"""

from __future__ import annotations

import random
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

import pytest

from repro.core.errors import TrackingError
from tests.flow.failing_server import (
    SECRET,
    TOKEN,
    Fate,
    Proxy,
    Server,
    check_exactly_once,
    expected,
    plain,
    proxy,
    record_of,
    reporter,
    rows,
    server,
)
from tests.flow.mlflow_stores import QUIET

__all__ = ["plain", "proxy", "server"]  # fixtures
pytest.importorskip("mlflow")
pytestmark = [pytest.mark.slow, *QUIET]


def seeded(seed: int, fates: Sequence[Fate], share: float) -> Callable[[int, str], Fate]:
    """A plan: this share of all requests meets one of `fates`, drawn by the number of the request."""
    return lambda number, what: (lambda dice: dice.choice(list(fates)) if dice.random() < share else "pass")(
        random.Random(f"{seed}/{number}"))


ALL: tuple[Fate, ...] = ("cut", "torn", "status:429", "status:500", "status:503", "delay:0.3")


@pytest.mark.parametrize(
    "seed", [1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 7))])
def test_whatever_befalls_requests_all_is_there_once(
    seed: int, proxy: Proxy, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if seed == 1:  # the same requests meet the same fates, only what is waited in between is less
        monkeypatch.setattr("repro.runner.tracking_store.FIRST_PAUSE", 0.05)
        monkeypatch.setattr("repro.runner.tracking_store.LONGEST_PAUSE", 0.4)
    record = record_of(tmp_path, f"seeded-{seed}", only=1 if seed == 1 else None)
    proxy.plan = seeded(seed, ALL, 0.25)
    for _ in range(10):  # the first contact is not insisted on
        try:
            reporter(proxy.uri).write(record, tmp_path)
        except TrackingError:
            continue
        break
    assert sum(proxy.fates.values()) - proxy.fates["pass"] > 10
    proxy.plan = lambda number, what: "pass"
    reporter(proxy.uri).write(record, tmp_path)
    check_exactly_once(server, record, proxy)


def test_runs_with_unconfirmed_creation_exist_once(proxy: Proxy, server: Server, tmp_path: Path) -> None:
    torn = set[int]()

    def plan(number: int, what: str) -> Fate:
        if "runs/create" in what and number - max(torn, default=-99) > 5:
            torn.add(number)
            return "torn"
        return "pass"

    record = record_of(tmp_path, "torn")
    proxy.plan = plan
    reporter(proxy.uri).write(record, tmp_path)
    assert len(torn) >= 4
    check_exactly_once(server, record, proxy)


def test_a_run_that_was_made_twice_is_made_one(proxy: Proxy, server: Server, tmp_path: Path) -> None:
    """A request that was given up arrives after its repetition."""
    doubled = []

    def plan(number: int, what: str) -> Fate:
        return "pass"

    record = record_of(tmp_path, "twice")
    target = reporter(proxy.uri)
    target.write(record, tmp_path)
    from mlflow import MlflowClient

    client = MlflowClient(proxy.uri)
    for runs in rows(server, "twice").values():
        first = client.get_run(runs[0][0])
        doubled.append(client.create_run(first.info.experiment_id, start_time=1, tags=first.data.tags).info.run_id)
    assert all(len(runs) == 2 for runs in rows(server, "twice").values())
    reporter(proxy.uri).write(record, tmp_path)
    check_exactly_once(server, record, proxy)
    record.folder.tracking.unlink()
    for runs in rows(server, "twice").values():
        first = client.get_run(runs[0][0])
        client.create_run(first.info.experiment_id, start_time=1, tags=first.data.tags)
    reporter(proxy.uri).write(record, tmp_path)
    check_exactly_once(server, record, proxy)


def test_a_server_killed_in_mid_replay_and_started_again_has_all_once(
    proxy: Proxy, server: Server, tmp_path: Path
) -> None:
    record = record_of(tmp_path, "restarted")
    again: list[threading.Thread] = []

    def plan(number: int, what: str) -> Fate:
        if number in (25, 60):
            server.kill()
            again.append(threading.Thread(target=server.start))
            again[-1].start()
        return "pass"

    proxy.plan = plan
    reporter(proxy.uri, patience_seconds=120).write(record, tmp_path)
    for thread in again:
        thread.join()
    assert len(again) == 2
    check_exactly_once(server, record, proxy)


@pytest.mark.parametrize(("code", "said"), [
    (401, r"requires a login \(401\); set MLFLOW_TRACKING_USERNAME"), (403, r"refuses this user \(403\)"),
    (429, r"too many requests \(429\)"), (500, r"it fails \(500\)"), (503, r"it fails \(503\)"),
])
def test_a_refusal_is_reported_soon_in_one_line_and_costs_nothing(
    code: int, said: str, proxy: Proxy, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", TOKEN)
    record = record_of(tmp_path, f"refused-{code}")
    proxy.plan = lambda number, what: "pass" if number < 7 else f"status:{code}"
    started = time.monotonic()
    with pytest.raises(TrackingError, match=said) as caught:
        reporter(proxy.uri, patience_seconds=2).write(record, tmp_path)
    assert time.monotonic() - started < 600  # the server requests an hour
    # Where it begins with a file, the next call is tried too.
    assert proxy.fates[f"status:{code}"] <= 2 if code in (401, 403) else proxy.fates[f"status:{code}"] > 2
    assert TOKEN not in str(caught.value) and SECRET not in str(caught.value) and "\n" not in str(caught.value)
    assert reporter(proxy.uri).left(record) == "4 of 4 trials"
    proxy.plan = lambda number, what: "pass"
    reporter(proxy.uri).write(record, tmp_path)
    check_exactly_once(server, record, proxy)


def test_a_database_that_another_holds_is_waited_for(proxy: Proxy, server: Server, tmp_path: Path) -> None:
    record = record_of(tmp_path, "held")
    held = threading.Event()

    def hold() -> None:
        with closing(sqlite3.connect(server.database, timeout=60, isolation_level=None)) as other:
            other.execute("BEGIN EXCLUSIVE")
            held.set()
            time.sleep(25)
            other.execute("ROLLBACK")

    thread = threading.Thread(target=hold)

    def plan(number: int, what: str) -> Fate:
        if number == 20:
            thread.start()
            held.wait(60)
        return "pass"

    proxy.plan = plan
    reporter(proxy.uri, patience_seconds=60).write(record, tmp_path)
    thread.join()
    check_exactly_once(server, record, proxy)


def test_a_local_database_that_another_holds_is_named(tmp_path: Path) -> None:
    uri, record = f"sqlite:///{tmp_path}/local.db", record_of(tmp_path, "local-held")
    target = reporter(uri, patience_seconds=1)
    target.check("local-held")
    with closing(sqlite3.connect(tmp_path / "local.db", isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(TrackingError, match="the database is locked by another process; end the other"):
            target.write(record, tmp_path)
        other.execute("ROLLBACK")
    target.write(record, tmp_path)
    assert target.left(record) == ""


def test_files_that_are_not_taken_hold_no_figure_up(proxy: Proxy, server: Server, tmp_path: Path) -> None:
    record = record_of(tmp_path, "no-files")
    server.files.mkdir(exist_ok=True)
    server.files.rename(server.folder / "aside")
    server.files.write_text("a file where the folder of all files should be")
    try:
        with pytest.raises(TrackingError, match=r"it fails \(500\).*\(the file "):
            reporter(proxy.uri, patience_seconds=1).write(record, tmp_path)
    finally:
        server.files.unlink()
        (server.folder / "aside").rename(server.files)
    there = rows(server, "no-files")
    for result in record.results:
        points = there[f"trial:{result.trial_id}/1"][0][1]
        assert expected(record, result.trial_id).keys() <= {(name, step) for name, step, _, _ in points}
    assert reporter(proxy.uri).left(record) == "4 of 4 trials"
    reporter(proxy.uri).write(record, tmp_path)
    check_exactly_once(server, record, proxy)
