"""`python -m benchmarks NAME [--option value]...`: run a benchmark, whose options are those of its function."""

from __future__ import annotations

import argparse
import inspect
import sys
from collections.abc import Sequence
from importlib import import_module

from pydantic import validate_call

from repro.core.errors import Exit, ReproError

BENCHMARKS = {
    "ledger": "benchmarks.ledger",
    "pool": "benchmarks.pool",
    "tracing": "benchmarks.tracing",
    "tracking": "benchmarks.tracking",
    "verdicts": "benchmarks.verdicts.measure",
    "workers": "benchmarks.workers",
}
"""Name -> module, whose `measure` gives an object with `text()`."""


def main(arguments: Sequence[str]) -> int:
    """Measure and print the result; return the exit code: 3 if simulated verdicts do not keep what is promised."""
    first = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__, add_help=False)
    first.add_argument("name", choices=BENCHMARKS)
    chosen, given = first.parse_known_args(arguments)
    measure = import_module(BENCHMARKS[chosen.name]).measure
    options = argparse.ArgumentParser(prog=f"python -m benchmarks {chosen.name}", description=inspect.getdoc(measure),
                                      formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, parameter in inspect.signature(measure).parameters.items():
        needed = parameter.default is parameter.empty
        options.add_argument(f"--{name}", required=needed, default=None if needed else parameter.default,
                             help="needed" if needed else f"[default: {parameter.default}]")
    try:
        found = validate_call(measure)(**vars(options.parse_args(given)))
    except (ReproError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return int(Exit.USAGE)
    print(found.text())
    return int(Exit.DONE) if getattr(found, "holds", True) else int(Exit.NOT_REPRODUCED)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
