"""No credential of a suite's own text or options gets into anything that is printed, stored or published."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Annotated, Any, ClassVar
from unittest.mock import patch

import pytest
from click.testing import CliRunner, Result
from pydantic import Field, SecretStr

from repro.cli.main import cli
from repro.core import registry
from repro.core.errors import UsageError
from repro.engines.fake import Fake
from repro.record.environment.environment import settings
from repro.seams.plugin import SAFE, TextOption
from repro.suite.model import Suite
from tests.hostile_records import SUITE

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
