"""Elsewhere than on Linux: one line for what needs it. No such machine was at hand: its name is replaced."""

from __future__ import annotations

import sys

import pytest

from repro.cli.main import ON_LINUX, main
from repro.core.errors import Exit, UsageError
from tests.in_process import called, succeeded


@pytest.mark.parametrize("name", ON_LINUX)
def test_commands_that_start_trials_are_refused_on_macos(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(sys, "argv", ["repro", name])
    done = called(name, "quickstart")
    assert isinstance(done.exception, UsageError) and "needs Linux" in str(done.exception)
    assert "repro report, compare" in str(done.exception)


def test_what_reads_records_is_not_refused_and_help_never_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(sys, "argv", ["repro", "show", "quickstart"])
    succeeded("show", "quickstart")
    monkeypatch.setattr(sys, "argv", ["repro", "run", "--help"])
    succeeded("run", "--help")


def test_windows_gets_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == Exit.USAGE
    assert capsys.readouterr().err == "error: repro needs Linux; on Windows, run it in WSL 2 or in a container\n"
