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
from shlex import quote
from typing import Any, NoReturn

import click

import repro
from repro.core.errors import Exit, Interrupted, ReproError, UnknownName, UsageError, one_line

UNWRITABLE = (errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EBADF, errno.EFBIG)
"""Errors of an output that has no name: stdout."""
CONTEXT = {"help_option_names": ["-h", "--help"], "show_default": True, "max_content_width": 110}
COMMANDS = {
    "advise": ("repro.papers.advise.cli:advise", "Predict how many workers, servers and samples a step to use."),
    "agent": ("repro.cli.commands.machine:agent", "Lend this computer to a run on another one."),
    "audit": ("repro.cli.commands.compare:audit", "Check a record against best practices."),
    "bench": ("repro.cli.commands.bench:bench", "Measure the harness itself."),
    "board": ("repro.board.commands:board", "Build a static site from the records in FOLDER."),
    "bundle": ("repro.cli.commands.bundle:bundle", "Pack RUN into one file for others."),
    "calibrate": ("repro.cli.commands.suites:calibrate", "Measure the false-positive rate of SUITE."),
    "clean": ("repro.cli.commands.machine:clean", "List what can be removed from runs; remove it with --yes."),
    "compare": ("repro.cli.commands.compare:compare", "Compare the cells of one run or two; combine several records."),
    "completion": ("repro.cli.commands.machine:completion", "Print the completion script of a SHELL."),
    "data": ("repro.cli.commands.data:data", "Prepare, list and check the data sets on this disk."),
    "diff": ("repro.cli.commands.bundle:diff", "Show the differences between two records."),
    "doctor": ("repro.cli.commands.machine:doctor", "Check that this machine can run trials."),
    "gate": ("repro.cli.commands.suites:gate", "Compare how the cells of SUITE train, without timing them."),
    "import": ("repro.published.commands:import_", "Import published results as records."),
    "lane": ("repro.cli.commands.run:lane", ""),
    "list": ("repro.cli.commands.suites:list_", "List suites, plug-ins of one KIND, or runs."),
    "new": ("repro.cli.commands.new:new", "Write a commented start of a suite, workload or program."),
    "plan": ("repro.cli.commands.suites:plan", "Show the trials that SUITE runs here."),
    "predict": ("repro.papers.predict.cli:predict", "Model the times of RUN with other numbers of processes."),
    "probe": ("repro.cli.commands.run:probe", ""),
    "report": ("repro.cli.commands.compare:report", "Write the report of a run again."),
    "reproduce": ("repro.cli.commands.bundle:reproduce", "Run a record again and judge its claim."),
    "run": ("repro.cli.commands.run:run", "Run SUITE, or resume an interrupted run."),
    "schema": ("repro.cli.commands.suites:schema", "Print the JSON Schema of suites, records or --json."),
    "scores": ("repro.scores.commands:scores", "Score contenders over several workloads."),
    "show": ("repro.cli.commands.suites:show", "Show what SUITE compares and why."),
    "track": ("repro.cli.commands.run:track", ""),
    "ui": ("repro.cli.commands.machine:ui", "Serve MLflow's UI for the store in use."),
    "verify": ("repro.cli.commands.bundle:verify", "Check that a record is unmodified."),
    "volume": ("repro.papers.chunkflow.cli:volume", "Run a network over a volume in overlapping chunks."),
}
"""Command name -> "module:object" and its line in `repro --help`; a hidden command has none."""
ON_LINUX = ("agent", "bench", "calibrate", "gate", "lane", "reproduce", "run", "track", "volume")
"""Commands that start trials or measure: they use /proc, fork servers and, on an emulated cluster, namespaces."""


class LazyGroup(click.Group):
    """A group that imports the file of a command only when that command or its help is needed."""

    def __init__(self, *args: Any, lazy: Mapping[str, tuple[str, str]], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._lazy = lazy

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(self._lazy)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._lazy:
            return None
        module, _, name = self._lazy[cmd_name][0].partition(":")
        found: click.Command = getattr(import_module(module), name)
        return found

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in self._lazy and not ctx.resilient_parsing:
            raise UnknownName("command", args[0], (name for name, (_, line) in self._lazy.items() if line))
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in sorted(self._lazy.items()) if line])


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
      repro run quickstart        compare DDP with DeepSpeed on real data, one to three minutes on two cores
      repro ui                    open the same runs in MLflow
    """
    name = click.get_current_context().invoked_subcommand
    if name is None:
        plans = sorted(Path("runs").glob("*/plan.json"), key=lambda path: path.stat().st_mtime)
        click.echo(LATER.format(newest=quote(str(plans[-1].parent))) if plans else FIRST)
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
        if not isinstance(error, click.exceptions.NoArgsIsHelpError):
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
        if error.filename is not None:
            click.echo(f"error: {_message(error.filename)}: cannot be used: {error.strerror}", err=True)
        elif error.errno in UNWRITABLE:
            _drop_output()
            click.echo(f"error: the output cannot be written: {error.strerror}", err=True)
        else:
            _end_internally(error)
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
