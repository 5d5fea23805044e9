"""`repro` called in this process: for commands whose start is not the subject."""

from __future__ import annotations

from click.testing import CliRunner, Result

from repro.cli.main import cli
from repro.core.errors import ReproError


def called(*arguments: object) -> Result:
    """Run `repro ARGUMENTS`."""
    return CliRunner().invoke(cli, list(map(str, arguments)))


def succeeded(*arguments: object) -> Result:
    """Run `repro ARGUMENTS`, which ends with exit code 0."""
    ended = called(*arguments)
    assert ended.exit_code == 0, (ended.output, ended.exception)
    return ended


def refusal(*arguments: object, kind: type[ReproError] = ReproError) -> str:
    """Run `repro ARGUMENTS`, which are refused; return the message, which is one line."""
    ended = called(*arguments)
    assert isinstance(ended.exception, kind), (ended.output, ended.exception)
    assert "\n" not in str(ended.exception)
    return str(ended.exception)
