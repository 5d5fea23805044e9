"""`repro doctor`, `clean`, `ui`, `agent`, `completion`: this machine, its runs and MLflow store, its help to others."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import Any

import click
from click.shell_completion import get_completion_class

from repro.cli.options import FiniteRange, PlaceParam, echo_json, json_option
from repro.cli.terminal import say
from repro.core.errors import Exit
from repro.launchers.nodes.hosts import master


@click.command()
@click.argument("runs", nargs=-1, metavar="[RUN ...]", type=PlaceParam(path_type=Path))
@click.option("--yes", is_flag=True, help="Remove what is listed.")
def clean(runs: tuple[Path, ...], yes: bool) -> None:
    """List what can be removed from runs without loss to a record; remove it with --yes.

    That is: runs in which nothing ran, compiled code, checkpoints of trials that have ended, reports, files of killed
    writers. Without RUN, of all runs in ./runs. Logs, results and tracking stores stay.

    \b
    Example: repro clean --yes
    """
    from repro.bundle.source import expanded
    from repro.cli.workflows.listing import leftovers, remove, runs_below

    total = 0
    for root in expanded(runs) if runs else runs_below():
        found = list(leftovers([root]))
        if yes and found:
            remove(found, root)
        for item in found:
            say(f"{'removed' if yes else 'would remove'} {item.path}: {item.why}, {item.bytes / (1 << 20):,.1f} MiB")
        total += sum(item.bytes for item in found)
    again = shlex.join(["repro", "clean", *map(str, runs), "--yes"])
    say(f"{total / (1 << 20):,.1f} MiB {'removed' if yes else f'in all; to remove it: {again}'}"
        if total else "nothing to remove")


@click.command()
@click.option("--fix", is_flag=True, help="End orphaned processes of earlier runs, and with them their networks.")
@click.option("--device", is_flag=True, help="Try what works on this machine's GPUs instead: formats, kernels, copies.")
@json_option
def doctor(fix: bool, device: bool, as_json: bool) -> None:
    """Check that this machine can run trials.

    Shows what the machine has, what is missing, and the command that fixes it.

    \b
    Example: repro doctor --fix
             repro doctor --device
    """
    from repro.runner.doctor import end_orphans, examine, examine_devices

    if fix:
        say(f"orphaned processes ended: {len(end_orphans())}", err=True)
    findings = examine_devices() if device else examine(Path("runs"))
    if as_json:
        echo_json([item.model_dump() for item in findings])
    else:
        for item in findings:
            fix_text = f"\n{'':<9}fix: {item.mend}" if item.mend else ""
            say(f"{item.state:<8} {item.what}: {item.found}{fix_text}")
    sys.exit(Exit.TRIAL_FAILED if any(item.state == "missing" for item in findings) else Exit.DONE)


@click.command()
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Port on the loopback interface; 0: a free one.")
@click.option("--experiment", help="Open this experiment (the name of a suite).")
def ui(port: int, experiment: str | None) -> None:
    """Serve MLflow's UI for the store in use.

    \b
    Example: repro ui --experiment quickstart
    """
    from repro.runner.mlflow_ui import open_ui

    open_ui(os.environ.get("MLFLOW_TRACKING_URI"), port=port, experiment=experiment)


class Address(click.ParamType):  # type: ignore[type-arg]  # generic only from click 8.4 on
    """A host and a port."""

    name = "HOST:PORT"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        host, _, port = str(value).rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) < 65_536:
            self.fail(f"{value!r} is not HOST:PORT, for example node0:29410", param, ctx)
        return host.strip("[]"), int(port)


@click.command()
@click.option("--join", "address", type=Address(), default=master, show_default="MASTER_ADDR, its port 29410",
              help="Address of `repro run`.")
@click.option("--wait", "wait_seconds", type=FiniteRange(min=0), default=600.0,
              help="Seconds to wait for the run, at the start and after a lost connection.")
@click.option("--secret-stdin", is_flag=True, help="Read the secret from standard input.")
@click.option("--as", "start", default="", hidden=True, help="The host by which the run has started this agent.")
def agent(address: tuple[str, int] | None, wait_seconds: float, secret_stdin: bool, start: str) -> None:
    """Lend this computer to a run with launcher torchrun or --pool agents on another one, until that run ends.

    Both need the same secret: REPRO_SECRET, or the file that the run made in the home folder (docs/nodes.md).

    \b
    Example: repro agent --join node0:29410
    """
    if address is None:
        raise click.UsageError("--join HOST:PORT is missing: give the address of `repro run`, or set MASTER_ADDR")
    from repro.core.machine import detect
    from repro.launchers.nodes.agent import serve
    from repro.launchers.nodes.hosts import key_of, read_secret
    from repro.record.environment.environment import take

    key = key_of(sys.stdin.readline().strip() if secret_stdin else read_secret())
    if not serve(*address, key, lambda: take(detect(), (), named=True).model_dump(mode="json", by_alias=True),
                 lambda text: say(text, err=True), wait_seconds, start):
        say(f"no run at {address[0]}:{address[1]} for {wait_seconds:g} s; start one there with launcher torchrun or "
            "--pool agents, or wait longer with --wait", err=True)
        sys.exit(Exit.TRIAL_FAILED)
    say("the run is over", err=True)


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the completion script of a SHELL.

    \b
    Example: eval "$(repro completion bash)"
    """
    found = get_completion_class(shell)
    assert found is not None
    click.echo(found(ctx.find_root().command, {}, "repro", "_REPRO_COMPLETE").source())
