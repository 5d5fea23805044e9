"""Options of plug-ins that lead out of the run: found by type, refused in a record, allowed value by value."""

from __future__ import annotations

import os
import re
import shutil
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal
from unittest.mock import patch

import pytest
from click.testing import CliRunner, Result
from pydantic import AnyUrl, BaseModel, Field, SecretStr

from repro.cli.main import cli
from repro.core import registry
from repro.core.errors import ReproError, UsageError
from repro.engines.fake import Fake
from repro.record.environment.environment import settings
from repro.seams.plugin import SAFE, CommandOption, HostOption, PathOption, Plugin, TextOption
from repro.suite.model import Suite
from repro.suite.planning import consent
from tests.hostile_records import SUITE


class Colour(Enum):
    RED = "red"


class Inner(BaseModel):
    log: PathOption = "here"
    level: int = 1


class Everything(Plugin):
    folder: PathOption = "/usual"
    cache: PathOption | None = None
    program: CommandOption = ""
    host: HostOption = ""
    place: Path = Path()
    address: AnyUrl | None = None
    free: str = ""
    remark: TextOption = ""
    kind: Literal["a", "b"] = "a"
    colour: Colour = Colour.RED
    size: float = 1.0
    files: list[PathOption] = Field(default_factory=list)
    words: list[TextOption] = Field(default_factory=list)
    by_name: dict[str, str] = Field(default_factory=dict)
    counts: dict[str, int] = Field(default_factory=dict)
    levels: dict[Literal["high", "low"], int] = Field(default_factory=dict)
    labels: dict[TextOption, int] = Field(default_factory=dict)
    checked: Annotated[dict[str, Any], SAFE] = Field(default_factory=dict)
    anything: Any = None
    inner: Inner = Field(default_factory=Inner)


def found(**options: Any) -> list[tuple[str, str, str]]:
    return [(item.option, item.value, item.what)
            for item in consent._of_model(Everything.model_validate(options), "workload")]


@pytest.mark.parametrize(("options", "expected"), [
    ({"folder": "/x"}, [("workload.folder", "/x", "path")]),
    ({"cache": "x"}, [("workload.cache", "x", "path")]),
    ({"program": "rm -r x"}, [("workload.program", "rm -r x", "command")]),
    ({"host": "evil"}, [("workload.host", "evil", "host")]),
    ({"place": "a/b"}, [("workload.place", "a/b", "path")]),
    ({"address": "http://evil/x"}, [("workload.address", "http://evil/x", "host")]),
    ({"free": ".bashrc"}, [("workload.free", ".bashrc", "text")]),
    ({"files": ["a", "b"]}, [("workload.files.0", "a", "path"), ("workload.files.1", "b", "path")]),
    ({"by_name": {"k": "v"}}, [("workload.by_name", "k", "text"), ("workload.by_name.k", "v", "text")]),
    ({"counts": {"localhost": 1}}, [("workload.counts", "localhost", "text")]),
    ({"levels": {"high": 1, "low": 2}}, []), ({"labels": {"/x": 1}}, []),
    ({"anything": {"etc": 1}}, [("workload.anything", "etc", "text")]),
    ({"counts": {"/etc/x": 1}}, [("workload.counts", "/etc/x", "text")]),
    ({"anything": {"deep": [{"x": "../y"}, 1]}}, [
        ("workload.anything", "deep", "text"), ("workload.anything.deep.0", "x", "text"),
        ("workload.anything.deep.0.x", "../y", "text")]),
    ({"inner": {"log": "/l", "level": 2}}, [("workload.inner.log", "/l", "path")]),
    ({}, []), ({"folder": "/usual"}, []), ({"remark": "/x"}, []), ({"words": ["/x", "../y"]}, []),
    ({"kind": "b", "colour": "red", "size": 2, "checked": {"path": "/x"}}, []),
])
def test_what_leads_out_is_found(options: dict[str, Any], expected: list[tuple[str, str, str]]) -> None:
    assert found(**options) == expected


class Foldered(Fake):
    """A third party's engine that writes where its option says."""

    title: ClassVar[str] = "writes"
    folder: PathOption = ""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The complete run of a user who has set the option himself, in which nothing is refused."""
    root = tmp_path_factory.mktemp("foldered")
    (root / "suite.yaml").write_text(SUITE.replace("kind: fake, step", "kind: foldered, folder: /data, step"))
    with plugged():
        ended = CliRunner().invoke(cli, ["run", str(root / "suite.yaml"), "--no-mlflow", "--out", str(root / "run")],
                                   standalone_mode=False)
    assert isinstance(ended.exception, SystemExit) and ended.exception.code in (0, 3), ended.exception
    return root / "run"


def plugged() -> Any:
    return patch.dict(registry.BUILT_IN["engine"], {"foldered": f"{__name__}:Foldered"})


def tried(*arguments: str) -> BaseException | None:
    with plugged():
        return CliRunner().invoke(cli, list(arguments), standalone_mode=False).exception


def test_a_record_may_not_choose_a_path_unless_that_very_value_is_allowed(run: Path, tmp_path: Path) -> None:
    again = ["reproduce", str(run), "--out", str(tmp_path / "again"), "--trials", "1",
             "--even-if-undecided"]
    shutil.copytree(run, tmp_path / "run")
    for arguments in (["run", "--resume", str(tmp_path / "run"), "--no-mlflow"], again):
        error = tried(*arguments)
        assert isinstance(error, UsageError) and int(error.exit_code) == 2
        assert str(error).endswith(
            "engine.folder is a path: '/data': a record may not choose what is read, written or run here; if you trust "
            "it, allow exactly that value: --allow engine.folder=/data")
        other = tried(*arguments, "--allow", "engine.folder=/other")
        assert isinstance(other, UsageError) and "has no such value; values that need it: engine.folder=/data" in \
            str(other)
        assert not (tmp_path / "again").exists()
        allowed = tried(*arguments, "--allow", "engine.folder=/data")
        assert not isinstance(allowed, ReproError), allowed
    assert (tmp_path / "again/plan.json").exists()


def test_the_line_that_tells_how_to_resume_has_the_permission(run: Path) -> None:
    from repro.cli.workflows.run import messages
    from repro.record.folder.store import read_record

    with plugged():
        record = read_record(run)
        assert messages(record.folder.root, record.plan).next_step.endswith(
            f"run --resume {run} --allow engine.folder=/data")


def test_reading_a_record_needs_no_permission(run: Path, tmp_path: Path) -> None:
    for arguments in (["verify"], ["compare"], ["report", "--to", "csv", "--out", str(tmp_path)]):
        ended = tried(arguments[0], str(run), *arguments[1:])
        assert ended is None or isinstance(ended, SystemExit), ended


def test_no_option_of_the_harness_itself_is_free_text() -> None:
    """A plug-in of this repository that is given one has to mark it."""
    for seam in set(registry.SEAMS) - {"reporter"}:
        for name in registry.BUILT_IN[seam]:
            cls = registry.load(seam, name)
            for key, field in cls.model_fields.items():
                kinds, mark = consent._unfold(field.annotation)
                free = {str, Any, dict[str, Any], dict[str, str], list[str]} & set(kinds)
                assert not free or SAFE in (mark, *field.metadata), f"{seam} {name}: {key}"


PASSWORD, TOKEN = "hunter-4711", "planted-4711-token"
TEXT = SUITE.replace("seeds: 2", f"""\
title: Runs with {TOKEN} on our cluster
description: see http://ann:{PASSWORD}@host.invalid/a
source: https://ann:{PASSWORD}@host.invalid/paper
expected: "a second ({TOKEN})"
version: "1.0"
changes: [{{version: "1.0", text: "from ftp://ann:{PASSWORD}@host.invalid/x with {TOKEN}"}}]
seeds: 2""")


@pytest.fixture
def suite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MY_API_TOKEN", TOKEN)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.yaml").write_text(f"# {TOKEN}, https://ann:{PASSWORD}@host.invalid\n{TEXT}")
    return tmp_path / "mine.yaml"


def called(*arguments: str) -> Result:
    return CliRunner().invoke(cli, list(arguments), standalone_mode=False)


@pytest.mark.slow
def test_a_suite_s_text_is_masked_in_the_terminal_the_record_and_every_report(suite: Path, tmp_path: Path) -> None:
    printed = [called(verb, str(suite)).output for verb in ("plan", "show")]
    assert "Runs with <hidden> on our cluster" in printed[1]
    printed.append(called("run", str(suite), "--no-mlflow", "--out", "run").output)
    printed.append(called("report", "run", "--to", "csv,markdown,latex,jsonl").output)
    written = [path for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert len(written) > 25
    texts = {path.name: path.read_bytes().decode(errors="replace") for path in written}
    for name, text in [*texts.items(), *((str(number), text) for number, text in enumerate(printed))]:
        assert PASSWORD not in text, name
        assert TOKEN not in text, name
    assert "https://host.invalid/paper" in texts["plan.json"] and "Runs with <hidden> on our" in texts["suite.yaml"]


def test_the_text_of_a_record_made_by_others_loses_its_users_too() -> None:
    found = Suite.model_validate({"suite": "x", "source": f"https://ann:{PASSWORD}@h/x", "trial": {}})
    assert found.source == "https://h/x"


class Connected(Fake):
    """A third party's engine with an address."""

    title: ClassVar[str] = "connected"
    address: str = ""
    memo: TextOption = ""
    checked: Annotated[Any, SAFE] = None
    hidden: SecretStr = SecretStr("")
    ready: TextOption = Field(default_factory=lambda: os.environ["MY_READY"])


@pytest.mark.parametrize("address", [f"s3://ann:{PASSWORD}@host/x", "https://h/x?token=abcdefgh", TOKEN])
@pytest.mark.parametrize(("place", "form"), [
    ("engine.address", "address: '%s'"), ("engine.memo", "memo: '%s'"), ("engine.checked", "checked: {'%s': 1}"),
    ("engine.checked", "checked: {'%s': {a: '%s'}}"), ("engine.checked.deep.1", "checked: {deep: [1, '%s']}"),
    ("matrix.engine.0.hidden", "hidden: '%s'"), ("engine.ready", ""),
])
def test_an_option_that_holds_a_credential_is_refused_without_showing_it(
    suite: Path, place: str, form: str, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_READY", "" if form else address)
    options = f"{form.replace('%s', address)}, " if form else ""
    suite.write_text(SUITE.replace("kind: fake, step", f"kind: connected, {options}step"))
    with patch.dict(registry.BUILT_IN["engine"], {"connected": f"{__name__}:Connected"}):
        for verb in ("plan", "run") if place == "engine.address" else ("run",):
            error = called(verb, str(suite)).exception
            what = "the value of your variable MY_" if address == TOKEN else "a password in an address"
            assert isinstance(error, UsageError) and f"{place}: holds {what}" in str(error)
            assert address not in str(error)
    assert not (suite.parent / "runs").exists()


def test_only_nccl_s_tuning_is_recorded_by_value() -> None:
    given = {"NCCL_ALGO": "Ring", "NCCL_P2P_DISABLE": "1", "NCCL_MIN_NCHANNELS": "4", "NCCL_IB_HCA": "mlx5_0",
             "NCCL_SOCKET_IFNAME": "lo", "NCCL_TOPO_FILE": "/home/ann/topology.xml", "NCCL_COMM_ID": "10.0.0.7:4711",
             "NCCL_NET_PLUGIN": "secret-net", "NCCL_HOSTID": "node7.invalid", "NCCL_CONF_FILE": "/etc/x"}
    found = settings(given)
    assert set(found) == set(given)
    assert {name for name, value in found.items() if value == given[name]} == {
        "NCCL_ALGO", "NCCL_P2P_DISABLE", "NCCL_MIN_NCHANNELS", "NCCL_IB_HCA", "NCCL_SOCKET_IFNAME"}
    assert all(value.startswith("sha256:") for name, value in found.items() if value != given[name])
    assert settings({"NCCL_TOPO_FILE": "/b"}) != settings({"NCCL_TOPO_FILE": "/a"})


def test_words_of_the_schema_are_no_credentials_and_a_suite_name_may_be_one(
    suite: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for word in ("digits", "momentum", "processes", "engine"):
        monkeypatch.setenv("DB_PASSWORD", word)
        assert called("plan", str(suite)).exception is None
    monkeypatch.setenv("DB_PASSWORD", "quickcheck")
    suite.write_text(re.sub(r"(?m)^suite: .*$", "suite: quickcheck", suite.read_text()))
    error = called("plan", str(suite)).exception
    assert isinstance(error, UsageError)
    assert "suite: its name holds the value of your variable DB_PASSWORD" in str(error)
