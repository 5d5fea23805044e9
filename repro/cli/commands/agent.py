"""`repro agent`: lend this computer to a run on another one."""

from __future__ import annotations

import sys
from typing import Any

import click

from repro.cli.options import FiniteRange
from repro.cli.terminal import say
from repro.core.errors import Exit
from repro.launchers.nodes.hosts import master


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
def agent(address: tuple[str, int] | None, wait_seconds: float, secret_stdin: bool) -> None:
    """Lend this computer to a run with launcher torchrun on another one, until that run ends.

    Both need the same secret: REPRO_SECRET, or the file that the run made in the home folder (docs/nodes.md).

    \b
    Example: repro agent --join node0:29410
    """
    if address is None:
        raise click.UsageError("--join HOST:PORT is missing: give the address of `repro run`, or set MASTER_ADDR")
    from repro.core.machine import detect
    from repro.launchers.nodes.agent import Agent
    from repro.launchers.nodes.secret import key_of, read
    from repro.record.environment.environment import take

    key = key_of(sys.stdin.readline().strip() if secret_stdin else read())
    found = Agent(*address, key, lambda: take(detect(), ()).model_dump(mode="json", by_alias=True),
                  lambda text: say(text, err=True))
    if not found.serve(wait_seconds):
        say(f"no run at {address[0]}:{address[1]} for {wait_seconds:g} s; start one there with launcher torchrun, or "
            "wait longer with --wait", err=True)
        sys.exit(Exit.TRIAL_FAILED)
    say("the run is over", err=True)
