"""The `repro` command: a group that imports a command's file when the command is used, and the error boundary."""

from __future__ import annotations

import errno
import os
import signal
import sys
import threading
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

import click

import repro
from repro.core.errors import Exit, Interrupted, ReproError, UsageError, one_line

UNWRITABLE = (errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EBADF, errno.EFBIG)
"""Errors of an output that has no name: stdout."""
CONTEXT = {"help_option_names": ["-h", "--help"], "show_default": True, "max_content_width": 110}
COMMANDS = {
    "advise": "repro.papers.advise.cli:advise",
    "agent": "repro.cli.commands.machine:agent",
    "audit": "repro.cli.commands.compare:audit",
    "bench": "repro.cli.commands.bench:bench",
    "board": "repro.board.commands:board",
    "bundle": "repro.cli.commands.bundle:bundle",
    "calibrate": "repro.cli.commands.suites:calibrate",
    "clean": "repro.cli.commands.machine:clean",
    "compare": "repro.cli.commands.compare:compare",
    "completion": "repro.cli.commands.machine:completion",
    "data": "repro.cli.commands.data:data",
    "diff": "repro.cli.commands.bundle:diff",
    "doctor": "repro.cli.commands.machine:doctor",
    "gate": "repro.cli.commands.suites:gate",
    "import": "repro.published.commands:import_",
    "lane": "repro.cli.commands.pool:lane",
    "list": "repro.cli.commands.suites:list_",
    "new": "repro.cli.commands.new:new",
    "plan": "repro.cli.commands.suites:plan",
    "predict": "repro.papers.predict.cli:predict",
    "probe": "repro.cli.commands.pool:probe",
    "report": "repro.cli.commands.report:report",
    "reproduce": "repro.cli.commands.bundle:reproduce",
    "run": "repro.cli.commands.run:run",
    "schema": "repro.cli.commands.suites:schema",
    "scores": "repro.scores.commands:scores",
    "show": "repro.cli.commands.suites:show",
    "track": "repro.cli.commands.run:track",
    "ui": "repro.cli.commands.machine:ui",
    "verify": "repro.cli.commands.bundle:verify",
    "volume": "repro.papers.chunkflow.cli:volume",
}
"""Command name -> "module:object"."""
ON_LINUX = ("agent", "bench", "calibrate", "gate", "lane", "reproduce", "run", "track", "volume")
"""Commands that start trials or measure: they use /proc, fork servers and, on an emulated cluster, namespaces."""


class LazyGroup(click.Group):
    """A group that imports the file of a command only when that command or its help is needed."""

    def __init__(self, *args: Any, lazy: Mapping[str, str], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._lazy = lazy

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(self._lazy)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._lazy:
            return None
        module, _, name = self._lazy[cmd_name].partition(":")
        found: click.Command = getattr(import_module(module), name)
        return found


FIRST = """\
repro show quickstart      what a suite compares, and why
repro run quickstart       DDP against DeepSpeed on real data, two minutes on two cores
repro new suite mine       writes mine.yaml, a commented start for your own question"""
LATER = """\
repro list runs            what ran here, with its verdicts
repro ui                   the same runs in MLflow
repro bundle RUN           one file, which others verify and run again; the newest RUN: {newest}"""


@click.group(cls=LazyGroup, lazy=COMMANDS, context_settings=CONTEXT, invoke_without_command=True)
@click.version_option(repro.__version__, prog_name="repro")
def cli() -> None:
    """Time-to-accuracy benchmarks whose verdicts can be checked and re-run.

    \b
    Example:
      repro run quickstart        compare DDP with DeepSpeed on real data, about a minute on two cores
      repro ui                    open the same runs in MLflow
    """
    name = click.get_current_context().invoked_subcommand
    if name is None:
        plans = sorted(Path("runs").glob("*/plan.json"), key=lambda path: path.stat().st_mtime)
        click.echo(LATER.format(newest=plans[-1].parent) if plans else FIRST)
        click.echo("repro --help               all commands")
    if name in ON_LINUX and not sys.platform.startswith("linux") and not {"-h", "--help"} & set(sys.argv):
        raise UsageError(f"repro {name} needs Linux, for its trials; run it in a container or a virtual machine; "
                         "repro report, compare, verify, audit and board read records here too")


def main() -> None:
    """Run the command line: every failure becomes one line on stderr and an exit code."""
    if sys.platform == "win32":
        click.echo("error: repro needs Linux; on Windows, run it in WSL 2 or in a container", err=True)
        sys.exit(Exit.USAGE)
    try:
        _end_on_signals()
        _require_working_directory()
        cli.main(standalone_mode=False)
    except click.exceptions.Abort:
        sys.exit(Exit.INTERRUPTED)
    except KeyboardInterrupt:
        click.echo("interrupted", err=True)
        sys.exit(Exit.INTERRUPTED)
    except click.ClickException as error:
        error.message = one_line(error.message)  # type: ignore[misc]  # it quotes what was written
        error.show()
        sys.exit(Exit.USAGE)
    except ReproError as error:  # a line, and a further one for each engine that trains otherwise
        click.echo("error: " + "\n".join(map(_message, str(error).splitlines() or [""])), err=True)
        sys.exit(error.exit_code)
    except BrokenPipeError:  # the reader of stdout has exited, so no message would reach it
        _drop_output()
        sys.exit(Exit.DONE)
    except OSError as error:
        if os.environ.get("REPRO_DEBUG"):
            raise
        if error.filename is None and error.errno not in UNWRITABLE:
            _end_internally(error)
        if error.filename is None:
            _drop_output()
            click.echo(f"error: the output cannot be written: {error.strerror}", err=True)
            sys.exit(Exit.USAGE)
        click.echo(f"error: {_message(error.filename)}: cannot be used: {error.strerror}", err=True)
        sys.exit(Exit.USAGE)
    except Exception as error:  # a bug of this package: one line for the user, a traceback with REPRO_DEBUG=1
        if os.environ.get("REPRO_DEBUG"):
            raise
        _end_internally(error)


def _end_internally(error: Exception) -> NoReturn:
    click.echo(f"internal error: {type(error).__name__}: {_message(error)}; for the traceback set REPRO_DEBUG=1",
               err=True)
    sys.exit(Exit.TRIAL_FAILED)


def _drop_output() -> None:
    """Send what is left for stdout to nowhere: Python would fail again when it writes it at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _end_on_signals() -> None:
    """Have SIGTERM and SIGHUP end a command as Ctrl-C does, from its first moment; signals that are ignored stay so."""
    for each in (signal.SIGTERM, signal.SIGHUP):
        if threading.current_thread() is threading.main_thread() and signal.getsignal(each) is signal.SIG_DFL:
            signal.signal(each, _interrupt)


def _interrupt(number: int, frame: object) -> None:
    raise Interrupted(number)


def _require_working_directory() -> None:
    try:
        os.getcwd()  # noqa: PTH109  # the fact, not the path
    except OSError:
        raise UsageError("the working directory was removed; change to one that exists") from None


def _message(error: object) -> str:
    """Return the message without credentials: libraries often quote the address that they could not reach."""
    from repro.core.redact import masked

    return one_line(masked(str(error)))
