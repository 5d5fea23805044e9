"""Hostile command lines: every verb with arguments that are no files, too long, no text, or of the wrong kind.

    python -m tests.fuzz.command_lines --count 2000

All run in this process, as `repro` would: a finding is an exception that leaves `main`, an exit code that is not
documented, the words "internal error", a message of several lines, or more than LONGEST_SECONDS.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import random
import signal
import socket
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import click

from repro.bundle.contents import write_bundle
from repro.cli.main import cli, main
from tests.fuzz.drive import TooLong
from tests.letters import SUITE, letters_record, write_package

CODES = {0, 1, 2, 3, 130}
LONGEST_SECONDS = 30
TEXTS = ("", " ", "0", "-1", "1e999", "nan", "9" * 5000, "\u0663", "x" * 300, "/", ".", "..", "a/" * 3000, "=", "a=b=c",
         "--", "-", "\udcff", "\ud800", "a\0b", "a\nb", "\x1b[31m", "{", "[", "!!python/object", "quickstart",
         "ratio > nan", "ratio >", "top1", "html", "letters", "comm=star", "~", "file:///etc/passwd", "%s%n", "\u202e")
NO_NUMBERS = ("9" * 5000, "-1", "nan", "", "x", "1e999", "0x10", "\u2155", "1_")
STARTS_WORK = ("bench",)
"""Commands that measure if every option is valid: one of their numbers never is."""
ASKED = ("suite", "targets")
"""Parameters without a type of their own that name a place."""
NEVER = ("ui", "doctor", "track")
"""A server, a check of the whole machine, and the hidden one that reads requests."""


@dataclass
class Places:
    """Things on disk that no command expects, and some that it does."""

    root: Path
    paths: list[str] = field(default_factory=list)

    def make(self) -> None:
        write_package(self.root / "packages")
        letters_record(self.root / "run", self.root / "packages")  # its plug-ins are absent, so nothing ever runs
        write_bundle(self.root / "run", self.root / "run.zip")
        (self.root / "letters.yaml").write_text(SUITE)
        os.mkfifo(self.root / "fifo")
        with socket.socket(socket.AF_UNIX) as door, inside(self.root):
            door.bind("socket")
        (self.root / "empty").write_bytes(b"")
        (self.root / "noise.yaml").write_bytes(bytes(range(256)))
        (self.root / "cut.zip").write_bytes((self.root / "run.zip").read_bytes()[:5000])
        (self.root / "loop").symlink_to("loop")
        (self.root / "broken").symlink_to("nowhere")
        (self.root / "secret").write_text("x")
        (self.root / "secret").chmod(0)
        (self.root / "folder").mkdir()
        self.paths = [str(self.root / name) for name in (
            "run", "run.zip", "letters.yaml", "fifo", "socket", "empty", "noise.yaml", "cut.zip", "loop", "broken",
            "secret", "folder", "nothing", "run/plan.json", "empty/below", "fifo/below", "n" * 300, "n" * 300 + ".yaml",
            "folder/\udcff")]
        self.paths += ["/dev/null", "/dev/zero", "/dev/full", "/proc/self/mem"]


@contextlib.contextmanager
def inside(folder: Path) -> Iterator[None]:
    """Work in `folder`: a path that is relative is short."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def commands() -> Iterator[tuple[list[str], click.Command]]:
    """Yield every command, those of groups too, with its words."""
    context = click.Context(cli)
    for name in cli.list_commands(context):
        command = cli.get_command(context, name)
        if name in NEVER or command is None:
            continue
        if isinstance(command, click.Group):
            for inner in command.list_commands(context):
                found = command.get_command(context, inner)
                assert found is not None
                yield [name, inner], found
        else:
            yield [name], command


def command_line(words: list[str], command: click.Command, places: Places, rng: random.Random) -> list[str]:
    """Return one hostile command line."""
    found = list(words)
    numbers = [item for item in command.params if isinstance(item.type, click.IntRange)]
    for item in command.params:
        if item.name == "experiment":
            continue  # a server or store of MLflow would be asked for it
        if isinstance(item, click.Option) and (rng.random() < 0.35 or (item.required and rng.random() < 0.9)):
            found.append(rng.choice(item.opts))
            if not item.is_flag:
                found.append(_value(item, words, places, rng))
        elif isinstance(item, click.Argument):
            count = rng.choice((0, 1, 1, 1, 2, 3)) if item.nargs == -1 else rng.choice((0, 1, 1, 1, 1, 1, 1, 2))
            found += [_value(item, words, places, rng) for _ in range(count)]
    if words[0] in STARTS_WORK and numbers:
        found += [rng.choice(numbers).opts[-1], rng.choice(NO_NUMBERS)]
    if rng.random() < 0.05:
        found.insert(rng.randrange(len(found) + 1), rng.choice(TEXTS))
    return found


def _value(item: click.Parameter, words: list[str], places: Places, rng: random.Random) -> str:
    """Return a value, most often one that the parameter might accept.

    A suite that could run is never one: nothing is trained here. A store or server of MLflow is never asked.
    """
    if words == ["audit"] and item.name == "source":
        known = ("run", "fifo", "socket", "loop", "n", "null")
        return rng.choice([place for place in places.paths if place.endswith(known)])
    if words[0] in ("run", "calibrate") and item.name == "suite":
        return rng.choice([place for place in places.paths if not place.endswith("run.zip")])
    if isinstance(item.type, click.Choice) and rng.random() < 0.7:
        return str(rng.choice(list(item.type.choices)))
    if isinstance(item.type, click.Path) or item.name in ASKED:
        return rng.choice(places.paths)
    return rng.choice((*TEXTS, *places.paths))


def run(arguments: list[str], deleted_folder: bool, temporary: str | None) -> str:
    """Run one command line; return what is wrong with its end, "" if nothing is."""
    out, err, code = io.StringIO(), io.StringIO(), 0
    before, argv, begun = Path.cwd(), sys.argv, time.monotonic()
    with contextlib.ExitStack() as stack:
        stack.callback(os.chdir, before)
        stack.callback(setattr, sys, "argv", argv)
        if deleted_folder:
            gone = tempfile.mkdtemp()
            os.chdir(gone)
            os.rmdir(gone)  # noqa: PTH106
        if temporary:
            stack.callback(setattr, tempfile, "tempdir", tempfile.tempdir)
            tempfile.tempdir = temporary
        sys.argv = ["repro", *arguments]
        stack.enter_context(contextlib.redirect_stdout(out))
        stack.enter_context(contextlib.redirect_stderr(err))
        stack.callback(signal.alarm, 0)
        signal.signal(signal.SIGALRM, _late)
        signal.alarm(LONGEST_SECONDS)
        try:
            main()
        except SystemExit as end:
            code = int(end.code or 0)
        except TooLong:
            return f"more than {LONGEST_SECONDS} s"
        except BaseException:
            return traceback.format_exc()
    return _judge(code, err.getvalue(), time.monotonic() - begun)


def _late(number: int, frame: object) -> None:
    raise TooLong


def _judge(code: int, err: str, seconds: float) -> str:
    if code not in CODES or "internal error" in err or "Traceback" in err:
        return f"exit code {code}: {err[-600:]}"
    lines = [line for line in err.splitlines() if line.startswith(("error:", "Error:"))]
    if code == 2 and len(lines) != 1 and "\nCommands:\n" not in err:  # a group without a command prints its help
        return f"exit code 2 with {len(lines)} lines of error: {err[-600:]}"
    if any(not sign.isprintable() for line in lines for sign in line):
        return f"an error that is not printable: {lines[0][:600]!r}"
    return ""


def drive(count: int, seed: int, place: Path) -> dict[str, str]:
    """Run `count` command lines; return those with a finding."""
    places, rng = Places(place), random.Random(seed)
    places.make()
    long = place / ("t" * 150)
    long.mkdir()
    known, found = list(commands()), dict[str, str]()
    home = place / "work"
    home.mkdir()
    with inside(home):
        for number in range(count):
            words, command = known[number % len(known)]
            line = command_line(words, command, places, rng)
            if wrong := run(line, rng.random() < 0.05, str(long) if rng.random() < 0.2 else None):
                found[repr(line)[:3000]] = wrong
    return found


def _main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as place:
        found = drive(asked.count, asked.seed, Path(place))
    for line, wrong in found.items():
        print(line, "\n   ", wrong)
    print(f"{asked.count} command lines, {len(found)} findings, {time.monotonic() - begun:.0f} s")
    return bool(found)


if __name__ == "__main__":
    sys.exit(_main())
