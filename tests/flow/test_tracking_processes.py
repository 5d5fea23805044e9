"""A run's tracking process, its command and its end, with a server that fails."""

from __future__ import annotations

import json
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from repro.core.errors import TrackingError
from repro.record.folder.store import Record, read_record
from repro.runner import tracking
from repro.runner.tracking import Tracker
from tests.commands import free_port
from tests.flow.failing_server import (
    SECRET,
    SMALL,
    TOKEN,
    Fate,
    Proxy,
    Server,
    check_exactly_once,
    command,
    environment,
    plain,
    proxy,
    record_of,
    reporter,
    rows,
    server,
)
from tests.flow.mlflow_stores import QUIET
from tests.waiting import LONG_SECONDS, until

__all__ = ["plain", "proxy", "server"]  # fixtures
pytest.importorskip("mlflow")
pytestmark = QUIET


def complete(record: Record, uri: str) -> str:
    """Let the command finish it; what it printed. On a machine with much else to do the first contact may be late."""
    for _ in range(5):
        child = command(record, uri)
        out, said = child.communicate(timeout=300)
        if child.returncode == 0:
            return out
        assert "no answer in time" in said
    raise AssertionError(said)


@pytest.mark.slow
def test_a_replay_killed_in_the_middle_is_continued(proxy: Proxy, server: Server, tmp_path: Path) -> None:
    record = record_of(tmp_path, "killed")
    for target in (1, 1, 2, 1):  # which batch of points it is killed in: when the server has it, before it answers
        batches, child = [0], [command(record, proxy.uri)]

        def plan(number: int, what: str) -> Fate:
            if "log-batch" in what:
                batches[0] += 1  # noqa: B023
                if batches[0] == target:  # noqa: B023
                    threading.Timer(random.Random(target).choice((0.0, 0.02, 0.05)), child[0].kill).start()  # noqa: B023
            return "pass"

        proxy.plan = plan
        child[0].communicate(timeout=120)
        assert child[0].returncode == -signal.SIGKILL
    proxy.plan = lambda number, what: "pass"
    assert "/#/experiments/" in complete(record, proxy.uri)
    check_exactly_once(server, record, proxy)


@pytest.mark.slow
def test_a_slow_server_holds_no_run_up_and_the_printed_command_completes_it(
    proxy: Proxy, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", proxy.uri)
    proxy.plan = lambda number, what: "delay:2"
    record = record_of(tmp_path, "slow")
    followed = Tracker(record.folder.root)
    followed.sync(wait_seconds=6.0)  # not done in that time
    for _ in range(5):
        followed.sync(wait_seconds=2 * LONG_SECONDS)  # nobody waits twice: else all would have been sent by then
    said: list[str] = []
    ended = followed.finish(8.0, said.append)
    assert ended.pending and re.fullmatch(r"[1-4] of 4 trials", ended.left)
    assert re.fullmatch(r"mlflow: [1-4] of 4 trials still to be replayed, waiting 8 s at most; Ctrl-C leaves it for "
                        r"later", said[0])
    assert len(said) == 1
    proxy.plan = lambda number, what: "pass"
    complete(record, proxy.uri)
    check_exactly_once(server, record, proxy)


@pytest.mark.slow
def test_two_seconds_a_request_only_take_longer(proxy: Proxy, server: Server, tmp_path: Path) -> None:
    proxy.plan = lambda number, what: "delay:2"
    record = record_of(tmp_path, "slow-whole", only=1)
    reporter(proxy.uri).write(record, tmp_path)
    assert proxy.fates == {"delay:2": len(proxy.seen)}
    check_exactly_once(server, record, proxy)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["dead", "mute", "dies"])
def test_the_end_of_a_run_does_not_hang_on_a_server(
    kind: str, proxy: Proxy, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = f"http://127.0.0.1:{free_port()}" if kind == "dead" else proxy.uri
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    monkeypatch.setattr(tracking, "STILL_SECONDS", 10.0)
    proxy.plan = lambda number, what: "mute" if kind == "mute" or number > 20 else "pass"
    record = record_of(tmp_path, f"end-{kind}")
    followed = Tracker(record.folder.root)
    if kind != "dies":  # what is slow at first has been, as at the end of a run
        until(lambda: followed.sync(wait_seconds=60.0) or followed.problem)
    started = time.monotonic()
    ended = followed.finish(2 * LONG_SECONDS)
    assert ended.pending and re.fullmatch("[34] of 4 trials", ended.left)
    assert time.monotonic() - started < LONG_SECONDS, "the server never answers"


@pytest.mark.slow
def test_ctrl_c_leaves_the_last_replay_for_later(proxy: Proxy, server: Server, tmp_path: Path) -> None:
    proxy.plan = lambda number, what: "delay:3"
    suite = tmp_path / "suite.yaml"
    suite.write_text(SMALL.replace("suite: sample", "suite: left-for-later").replace(
        "engine: [ddp, {kind: deepspeed, stage: 1}]", "engine: [fake, {kind: fake, samples_scale: 500}]").replace(
        "  engine: ddp\n", "").partition("baseline:")[0])
    child = subprocess.Popen([sys.executable, "-m", "repro", "run", str(suite), "--out", "run"], cwd=tmp_path,
                             env=environment(MLFLOW_TRACKING_URI=proxy.uri), stdout=subprocess.PIPE,
                             stderr=subprocess.STDOUT, text=True)
    try:
        assert child.stdout is not None
        seen = []
        for line in child.stdout:
            seen.append(line)
            if "Ctrl-C leaves it" in " ".join("".join(seen[-3:]).split()):
                break
        child.send_signal(signal.SIGINT)
        rest = child.communicate(timeout=LONG_SECONDS)[0]
    finally:
        child.kill()
    flat = " ".join(("".join(seen) + rest).split())
    assert re.search(r"warning: mlflow: [1-4] of 4 trials still to be replayed: .*; nothing is lost, to replay: "
                     r"\S*repro report run --to mlflow", flat), flat
    proxy.plan = lambda number, what: "pass"
    record = read_record(tmp_path / "run")
    assert len(record.results) == 4
    complete(record, proxy.uri)
    assert reporter(proxy.uri).left(record) == ""
    assert {len(runs) for runs in rows(server, "left-for-later").values()} == {1}


@pytest.mark.slow
def test_no_credential_is_written_or_printed(
    proxy: Proxy, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = proxy.uri.replace("://", f"://me:{SECRET}@")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", TOKEN)
    record = record_of(tmp_path, "secret")
    proxy.plan = lambda number, what: "pass" if number < 15 else "status:401"  # which says the credentials again
    followed = Tracker(record.folder.root)
    followed.sync(wait_seconds=60.0)
    said = repr(followed.finish(60.0)) + followed.problem
    assert "(401)" in said
    ended = command(record, uri, MLFLOW_TRACKING_TOKEN=TOKEN)
    out, errors = ended.communicate(timeout=120)
    assert ended.returncode == 1
    proxy.plan = lambda number, what: "pass"
    reporter(uri).write(record, tmp_path)
    everything = "".join([said, out, errors])
    assert SECRET not in everything and TOKEN not in everything
    written = [path for place in (record.folder.root, server.folder) for path in place.rglob("*") if path.is_file()]
    assert len(written) > 20
    for path in written:
        data = path.read_bytes()
        assert SECRET.encode() not in data and TOKEN.encode() not in data, path


def test_the_remaining_replay_follows_from_the_folder_alone(tmp_path: Path) -> None:
    record, uri = record_of(tmp_path, "left"), "http://127.0.0.1:1"
    assert reporter(uri).left(record) == "4 of 4 trials"
    runs = {f"trial:{item.trial_id}/1": {"run_id": "a", "done": [1, 2]} for item in record.results}
    state = {"stores": {uri: {"runs": dict(list(runs.items())[:3])}}}
    record.folder.tracking.write_text(json.dumps(state))
    assert reporter(uri).left(record) == "1 of 4 trials"
    assert reporter("http://elsewhere").left(record) == "4 of 4 trials"
    state["stores"][uri]["runs"] = runs
    record.folder.tracking.write_text(json.dumps(state))
    assert reporter(uri).left(record) == "the cells' last figures and files"
    state["stores"][uri]["whole"] = True  # type: ignore[assignment]
    record.folder.tracking.write_text(json.dumps(state))
    assert reporter(uri).left(record) == ""
    shutil.rmtree(record.folder.trial(record.results[0].trial_id))  # as before it ran
    assert reporter(uri).left(read_record(record.folder.root)) == ""


def test_patience_ends_and_progress_renews_it(monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib

    module: Any = importlib.import_module("repro.runner.tracking_store")
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    tally = module.RequestTally()
    patience = module.Backoff(10.0, tally)
    assert patience.pause(TrackingError("no")) is None
    assert patience.pause(module.TransientError("no answer", unreachable=True)) is None
    tally.contacts += 1
    pauses: list[float] = []
    while (pause := patience.pause(module.TransientError("no answer", unreachable=True))) is not None:
        pauses.append(pause)
        now[0] += pause
    assert sum(pauses) == pytest.approx(10.0)
    assert pauses[0] <= 0.5 and max(pauses) <= 8.0 and len(pauses) >= 5
    tally.taken += 1
    assert patience.pause(module.TransientError("busy")) == pytest.approx(0.4, abs=0.15)
    assert module.Backoff(0.0, tally).pause(module.TransientError("busy")) is None
