"""`repro volume`: tasks over a volume, and operators composed on the command line that work on them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any

import click

from repro.cli.options import FiniteRange, PlaceParam, echo_json, json_option
from repro.cli.terminal import say
from repro.core.errors import Exit, UnknownName, UsageError

if TYPE_CHECKING:
    from repro.papers.chunkflow.operators import Operator

class Sizes(click.ParamType):  # type: ignore[type-arg]  # generic only from click 8.4 on
    """One size for all axes, or three with commas between."""

    name = "N or N,N,N"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        parts = str(value).split(",")
        if len(parts) not in (1, 3) or not all(part.isdecimal() and len(part) < 10 for part in parts):
            self.fail(f"{value!r} is neither one size in voxels nor three like 64,64,32", param, ctx)
        return tuple(int(part) for part in (parts * 3)[:3])


class Chain(click.Group):
    """Operators, any number of them in one command."""

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        if self.get_command(ctx, args[0]) is None and not args[0].startswith("-"):
            raise UnknownName("operator", args[0], self.list_commands(ctx))
        return super().resolve_command(ctx, args)


queue_option = click.option("--queue", "address", required=True, metavar="ADDRESS",
                            help="sqlite:FILE, or redis://HOST:PORT/DB#STREAM.")


@click.group()
def volume() -> None:
    """Run a network over a volume in overlapping chunks.

    \b
    Example:
      repro volume create-tasks v.zarr out --chunk 64 --overlap 16 --queue sqlite:tasks.db
      repro volume run --queue sqlite:tasks.db read v.zarr infer --net conv blend write out
      repro volume status --queue sqlite:tasks.db
    """


@volume.command("create-tasks")
@click.argument("source", metavar="VOLUME", type=PlaceParam())
@click.argument("out", type=PlaceParam())
@click.option("--chunk", type=Sizes(), required=True, help="Size of a chunk in voxels.")
@click.option("--overlap", type=Sizes(), required=True, help="Voxels that neighbours share, at most half a chunk.")
@click.option("--dtype", type=click.Choice(["float32", "float64", "uint8", "uint16"]),
              help="Type of the output.  [default: that of the volume]")
@queue_option
def create_tasks(source: str, out: str, chunk: Any, overlap: Any, dtype: str | None, address: str) -> None:
    """Make the empty output OUT for VOLUME (a Zarr array), and one task for every chunk.

    \b
    Example: repro volume create-tasks v.zarr out --chunk 64,64,32 --overlap 16,16,8 --queue sqlite:tasks.db
    """
    from repro.core.redact import masked
    from repro.papers.chunkflow.grid import Grid
    from repro.papers.chunkflow.queues import open_queue
    from repro.papers.chunkflow.store import Output, open_volume

    given = open_volume(source)
    grid = Grid(tuple(given.shape), chunk, overlap)
    queue = open_queue(address, make=True)
    if (found := queue.counts()).open or found.dead:
        raise UsageError(f"the queue has {found.open} open tasks and {found.dead} dead letters; use another one")
    queue.add(Output.create(out, grid, dtype or str(given.dtype)).tasks())
    queue.close()
    say(f"{grid.chunks} tasks; next: repro volume run --queue {masked(address)} read {source} infer --net conv blend "
        f"write {out}")


@volume.command()
@queue_option
@json_option
def status(address: str, as_json: bool) -> None:
    """Show how many tasks wait, are in flight, and are dead letters.

    \b
    Example: repro volume status --queue sqlite:tasks.db
    """
    from repro.papers.chunkflow.queues import open_queue

    queue = open_queue(address)
    found, dead = queue.counts(), [task.rpartition("/")[2] for task in queue.dead()]
    queue.close()
    if as_json:
        echo_json({"waiting": found.waiting, "in_flight": found.in_flight, "dead": dead})
        return
    say(f"waiting {found.waiting}, in flight {found.in_flight}, dead letters {found.dead}"
        + (f": chunks {', '.join(dead)}" if dead else ""))


@volume.group(cls=Chain, chain=True, subcommand_metavar="read V [infer --net NAME] ... blend write OUT")
@queue_option
@click.option("--visibility", type=FiniteRange(min=0.1), default=60.0,
              help="Seconds after which a task that was received and not deleted is received again.")
@click.option("--most-receives", type=click.IntRange(1, 1000), default=10,
              help="Receipts of a task before it becomes a dead letter.")
def run(address: str, visibility: float, most_receives: int) -> None:
    """Work on tasks until none is left: apply the operators to each chunk, in the order given.

    Start as many workers as you like, at any time; one that is killed loses nothing.

    \b
    Example: repro volume run --queue sqlite:tasks.db read v.zarr infer --net conv blend write out
    """


def operator(made: Callable[..., Operator]) -> Callable[..., Callable[[], Operator]]:
    """Have a command return the function that makes its operator: the chain is made when all of it was read."""

    @wraps(made)
    def later(**options: Any) -> Callable[[], Operator]:
        return lambda: made(**options)

    return later


@run.command()
@click.argument("path", metavar="VOLUME", type=PlaceParam())
@operator
def read(path: str) -> Operator:
    """Read the chunk from VOLUME, a Zarr array."""
    from repro.papers.chunkflow.operators import Read

    return Read(path)


@run.command()
@click.option("--net", type=click.Choice(["identity", "conv"]), default="conv",
              help="identity, or a small net with fixed weights.")
@click.option("--device", type=click.Choice(["cpu", "cuda"]), default="cpu")
@operator
def infer(net: Any, device: str) -> Operator:
    """Run a network on the chunk."""
    from repro.papers.chunkflow.operators import Infer

    return Infer(net, device)


@run.command()
@click.option("--seconds", type=FiniteRange(min=0), required=True, help="Emulated computation of a chunk.")
@operator
def delay(seconds: float) -> Operator:
    """Sleep, in place of a larger network."""
    from repro.papers.chunkflow.operators import Delay

    return Delay(seconds)


@run.command()
@operator
def blend() -> Operator:
    """Multiply the chunk by its normalised bump."""
    from repro.papers.chunkflow.operators import Blend

    return Blend()


@run.command()
@click.argument("path", metavar="OUT", type=PlaceParam())
@operator
def write(path: str) -> Operator:
    """Write the chunk into OUT, which create-tasks made."""
    from repro.papers.chunkflow.operators import Write

    return Write(path)


@run.result_callback()
def work_on(made: list[Callable[[], Operator]], address: str, visibility: float, most_receives: int) -> None:
    """Work with the chain until the queue is empty."""
    from repro.papers.chunkflow.operators import checked_output
    from repro.papers.chunkflow.queues import open_queue
    from repro.papers.chunkflow.volume_workers import work

    queue = open_queue(address, visibility, most_receives)
    chain = [each() for each in made]
    output = checked_output(chain)
    tally = work(queue, chain, output, lambda text: say(text, err=True))
    dead, left = queue.counts().dead, output.left()
    queue.close()
    say(f"done {tally.done}, failed {tally.failed}, dead letters {dead}, chunks left {left}")
    if tally.late:
        say(f"{tally.late} tasks took longer than the visibility timeout of {visibility:g} s and were received twice; "
            "give --visibility more", err=True)
    if left > dead:
        say("the queue is empty, but not all of this output is done: its tasks were in another queue", err=True)
    if left or dead:
        sys.exit(Exit.TRIAL_FAILED)
