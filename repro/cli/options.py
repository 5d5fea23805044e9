"""Arguments and options that several commands share, and how they become a suite and a plan."""

from __future__ import annotations

import json
import math
import os
import re
import stat
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from pydantic import BaseModel

from repro.cli.terminal import say
from repro.core.errors import UsageError

if TYPE_CHECKING:
    from repro.suite.file import SuiteFile


class PlaceParam(click.Path):
    """The path of a file or folder that exists or will be made: no pipe, socket or device, which would block."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        check_place(value)
        return super().convert(value, param, ctx)


def check_place(value: str | os.PathLike[str]) -> None:
    """Check that a path can be one.

    Raises:
        UsageError: it is empty, no file system has such a name, or it names neither file nor folder.
    """
    text = os.fspath(value)
    shown = text if len(text) <= 80 else f"{text[:40]}...{text[-20:]}"
    if not text:
        raise UsageError("a path is empty")
    try:
        mode = Path(text).stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return
    except ValueError:
        raise UsageError(f"{shown}: is not a path: it has a character that no file system can write") from None
    except OSError as error:
        raise UsageError(f"{shown}: cannot be used: {error.strerror}") from None
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise UsageError(f"{shown}: is a pipe, socket or device, neither a file nor a folder")


class SuiteParam(click.ParamType):  # type: ignore[type-arg]  # generic only from click 8.4 on
    """The name of a bundled suite (completed by the shell) or a path."""

    name = "suite"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        check_place(value)
        return value

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
        from click.shell_completion import CompletionItem

        from repro.suite.file import bundled

        found = [CompletionItem(name) for name in bundled() if name.startswith(incomplete)]
        return found or [CompletionItem(incomplete, type="file")]


class FiniteRange(click.FloatRange):
    """A number in a range that is neither infinite nor nan."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        found = super().convert(value, param, ctx)
        if not math.isfinite(found):
            self.fail(f"{value!r} is not a finite number", param, ctx)
        return found


suite_argument = click.argument("suite", type=SuiteParam())
override_option = click.option(
    "-o", "overrides", multiple=True, metavar="KEY=VALUE[,VALUE...]",
    help="Set a field of every trial; several values make it a factor: -o processes=1,2,4 -o optimizer.lr=0.1",
)
DESIGN = (
    click.option("--seeds", type=click.IntRange(1, 1000), help="Repeats of every cell.  [default: the suite's]"),
    click.option("--master-seed", type=click.IntRange(0, (1 << 63) - 1), help="Seed of all random numbers of the "
                 "trials.  [default: the suite's, else drawn for every run]"),
    click.option("--until-settled", is_flag=True, help="Stop when the primary contrast is settled: judge it at "
                 "declared looks whose levels keep the error at 5 % (a suite without a design gets looks at 8, 12, 18, "
                 "27 and 40 pairs)."),
    click.option("--anytime", is_flag=True, help="Stop when the primary contrast is settled, without declared looks: "
                 "an e-process judges after every pair, up to 200."),
)
Command = TypeVar("Command", bound=Callable[..., Any])


def design_options(command: Command) -> Command:
    """Add the options that change the design of a suite; `read_source` takes their values."""
    for option in reversed(DESIGN):
        command = option(command)
    return command


allow_option = click.option(
    "--allow", "allowed", multiple=True, metavar="SEAM.OPTION=VALUE",
    help="Allow exactly this value of a plug-in's option that names a path, a command or a host; the error names it.",
)
allow_code_option = click.option(
    "--allow-code", "code", metavar="HASH", help="Run the classes from files and the commands in the record; the "
    "error without this option lists them with the place of their source and their hash.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON on stdout, for scripts.")


def read_source(
    name: str, overrides: tuple[str, ...], seeds: int | None = None, master_seed: int | None = None,
    until_settled: bool = False, anytime: bool = False,
) -> SuiteFile:
    """Read a suite with the overrides of the command line.

    Raises:
        SuiteError: the suite or an override is wrong.
        click.UsageError: two sequential designs were asked for.
    """
    from repro.suite.design import ANYTIME, UNTIL_SETTLED
    from repro.suite.file import read_suite

    if until_settled and anytime:
        raise click.UsageError("--until-settled judges at declared looks and --anytime after every pair: give one")
    return read_suite(name, overrides, ANYTIME if anytime else UNTIL_SETTLED if until_settled else None,
                      {"seeds": seeds, "master_seed": master_seed})


Answered = BaseModel | Mapping[str, Any] | Sequence[object]
"""What `--json` prints: a model, its fields, or rows."""


def answer(as_json: bool, data: Answered, shown: Callable[[], object], output: str = "") -> None:
    """Print `data` as JSON, or what `shown` returns as text; None: it has printed that itself. `output`: see below."""
    if as_json:
        echo_json(data, output)
    elif (text := shown()) is not None:
        say(text)


def echo_json(data: Answered, output: str = "") -> None:
    """Print `data` as JSON on stdout, with the name of its schema; several rows as `rows`.

    Args:
        output: of `json_outputs.OUTPUTS`; "": the words of the command.
    """
    from repro.cli.json_outputs import OUTPUTS, name_of

    if not output:
        context: click.Context | None = click.get_current_context()
        words: list[str] = []
        while context is not None and context.parent is not None:
            words.insert(0, context.info_name or "")
            context = context.parent
        output = next(name for name in (" ".join(words), words[0]) if name in OUTPUTS)
    if isinstance(data, BaseModel):
        data = data.model_dump(mode="json", by_alias=True)
    fields = data if isinstance(data, Mapping) else {"rows": data}
    click.echo(json.dumps({"$schema": name_of(output), **fields}, indent=1))


SECONDS = {"h": 3600.0, "m": 60.0, "s": 1.0}
_FORM = re.compile(r"(?:(\d{1,6}(?:\.\d+)?)h)?(?:(\d{1,6}(?:\.\d+)?)m)?(?:(\d{1,6}(?:\.\d+)?)s)?")


class DurationParam(click.ParamType):  # type: ignore[type-arg]  # generic only from click 8.4 on
    """A positive duration; its value is in seconds."""

    name = "duration"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        found = _FORM.fullmatch(str(value).strip())
        seconds = sum(float(part) * unit for part, unit in zip(found.groups(), SECONDS.values(), strict=True) if part) \
            if found else 0.0
        if seconds <= 0:
            self.fail(f"{str(value)[:40]!r} is not a duration; write 2h, 45m, 90s or 1h30m", param, ctx)
        return seconds
