"""Options of `repro bench comm`, parsed from the text of the command line."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from repro.bench.comm.result import BASELINE, tunes
from repro.core import registry
from repro.core.errors import UsageError
from repro.core.frozen import Frozen
from repro.seams.launching import Launcher
from repro.suite.choice import Choice, parse_choice
from repro.suite.field_problem import FieldProblem

UNITS = {"": 1, "k": 1 << 10, "kib": 1 << 10, "m": 1 << 20, "mib": 1 << 20, "g": 1 << 30, "gib": 1 << 30}


class CommOptions(Frozen):
    """Algorithms, sizes, world sizes and limits of one benchmark."""

    algorithms: tuple[Choice, ...]
    """Always includes the backend's all-reduce, the baseline of the others."""
    sizes: tuple[int, ...]
    """Size of every rank's buffer in bytes; multiples of 4."""
    worlds: tuple[int, ...]
    launcher: Choice
    repetitions: int = 10
    seconds: float = 20.0
    """Most time of one algorithm at one size and world size."""
    seed: int = 20151102
    mpi: bool = False


def read_options(
    algorithms: tuple[str, ...], sizes: str, world: str | None, fabric: str | None, repetitions: int, seconds: float,
    seed: int, mpi: bool,
) -> CommOptions:
    """Parse the text of the command line.

    Raises:
        UsageError: a value cannot be parsed or measured.
    """
    launcher = read_launcher(fabric)
    return CommOptions(
        algorithms=read_algorithms(algorithms), sizes=read_sizes(sizes), worlds=read_worlds(world, launcher),
        launcher=launcher, repetitions=repetitions, seconds=seconds, seed=seed, mpi=mpi,
    )


def read_algorithms(texts: Sequence[str]) -> tuple[Choice, ...]:
    """Parse `ring` or `{kind: tree, arity: 4}` each; an empty list means all without options. The backend comes first.

    Raises:
        UsageError: an unknown algorithm or option, or an algorithm given twice.
    """
    wanted = list(texts) or registry.names("comm")
    chosen = [_choice("comm", text) for text in dict.fromkeys([BASELINE, *wanted])]
    labels = [item.label for item in chosen]
    if twice := next((name for name in labels if labels.count(name) > 1), None):
        raise UsageError(f"{twice} is given twice")
    if len(tuning := [item.label for item in chosen if tunes(item.plugin)]) > 1:
        raise UsageError(f"{' and '.join(tuning)} each measure the links at their start; give only one of them per run")
    return tuple(chosen)


def read_launcher(fabric: str | None) -> Choice:
    """Parse `nodes=8,rate=200mbit` into the emulated cluster; None: this machine's loopback.

    Raises:
        UsageError: an unknown option, or an invalid value.
    """
    if fabric is None:
        return _choice("launcher", "local")
    options = [part.strip() for part in fabric.split(",") if part.strip()]
    if wrong := next((part for part in options if "=" not in part), None):
        raise UsageError(f"--fabric: {wrong!r} is not an option; write for example nodes=8,rate=200mbit")
    written = [part.replace("=", ": ", 1) for part in options]
    return _choice("launcher", "{" + ", ".join(["kind: fabric", *written]) + "}")


def read_worlds(text: str | None, launcher: Choice) -> tuple[int, ...]:
    """Parse world sizes; by default as many ranks as the fabric has nodes, else 2 and 4.

    Raises:
        UsageError: not a number, or fewer than two ranks.
    """
    nodes = launcher.get(Launcher).node_count
    if text is None:
        return (nodes,) if nodes else (2, 4)
    try:
        found = tuple(dict.fromkeys(int(part) for part in text.split(",")))
    except ValueError:
        raise UsageError(f"--world: {text!r} is not a list of numbers; write for example 2,4,8") from None
    if min(found) < 2:
        raise UsageError(f"--world: an all-reduce needs at least 2 ranks, not {min(found)}")
    return found


def read_sizes(text: str) -> tuple[int, ...]:
    """Parse sizes: `1k:64m` is every fourfold size in between, `4k,1m` are those two.

    Raises:
        UsageError: not a size, or not a multiple of 4 bytes.
    """
    if ":" not in text:
        return tuple(sorted({_size(part) for part in text.split(",")}))
    first, last = (_size(part) for part in text.split(":", 1))
    if first > last:
        raise UsageError(f"--sizes: {text}: the first is larger than the last")
    return tuple(_powers(first, last))


def _powers(first: int, last: int) -> Iterator[int]:
    while first <= last:
        yield first
        first *= 4


def _size(text: str) -> int:
    plain = text.strip().lower()
    digits = plain.rstrip("kmgib")
    if not digits.isdecimal() or plain[len(digits):] not in UNITS:
        raise UsageError(f"--sizes: {text!r} is not a size; write for example 4k, 1m or 4096")
    size = int(digits) * UNITS[plain[len(digits):]]
    if size < 4 or size % 4:
        raise UsageError(f"--sizes: {text.strip()} is not a multiple of 4 bytes, the size of one number")
    return size


def size_text(size: int) -> str:
    """Format a size in bytes, for example `4 KiB`."""
    for unit, factor in (("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size >= factor and size % factor == 0:
            return f"{size // factor} {unit}"
    return f"{size} B"


def _choice(seam: str, text: str) -> Choice:
    import yaml

    try:
        choice = parse_choice(seam, yaml.safe_load(text))
    except yaml.YAMLError:
        raise UsageError(f"{seam}: {text!r} cannot be read; write a name or {{kind: name, option: value}}") from None
    except FieldProblem as error:
        raise UsageError(f"{seam}: {'.'.join(map(str, error.path))}{': ' if error.path else ''}{error}") from None
    assert isinstance(choice, Choice)
    return choice
