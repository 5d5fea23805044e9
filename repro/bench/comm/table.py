"""The communication benchmark as plain text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from repro.bench.comm.options import size_text
from repro.bench.comm.result import CommOutcome, MpiResult, Point, Ratio, WorldResult

HEAD = ("size", "algorithm", "n", "time ms", "algbw GB/s", "busbw GB/s", "/bound", "/own", "/backend", "95 % interval",
        "busiest sent B", "model ms", "error")
NOTE = (
    "time: median over n repetitions of the slowest rank's; sums checked on every call",
    "GB = 10^9 B; busbw = algbw x 2(p-1)/p (nccl-tests)",
    "/bound: time over 2(p-1)/p S/B; /own: over the bytes of the algorithm's own path / B; B measured as above",
    "/backend: geometric mean over repetitions of time / the backend's own, paired, with its t interval",
    "busiest sent B: counted by the meter; = formula where it equals the closed form",
    "model: alpha-beta-gamma, fitted to transfers and small collectives on these links, error (model - time) / time",
)


def text(outcome: CommOutcome) -> str:
    """All tables, one a world size, with what their figures mean."""
    blocks = [_world(world) for world in outcome.worlds]
    blocks += [mpi_text(item) for item in outcome.mpi]
    return "\n\n".join([*blocks, "\n".join([*NOTE, origin_text(outcome)])])


def origin_text(outcome: CommOutcome) -> str:
    """Where it was measured, and how busy that was."""
    before, after = outcome.load
    shared = "" if outcome.origin == "emulated" else "; ranks share its cores, so bounds by B hold for one pair only"
    return (f"{outcome.origin}: {outcome.place}, {outcome.cores} cores{shared}; load average {before:.1f} before, "
            f"{after:.1f} after")


def _world(world: WorldResult) -> str:
    rows = [point_row(point, world.world) for point in sorted(world.points, key=lambda item: item.size)]
    lines = [links_text(world), model_text(world), "", *columns([HEAD, *rows], left=(1,))]
    lines += [f"not measured: {item.algorithm}{f' at {size_text(item.size)}' if item.size else ''}: {item.reason}"
              for item in world.skipped]
    return "\n".join([*lines, "", *columns(overall_rows(world), left=(0, 4))])


def links_text(world: WorldResult) -> str:
    """What the links gave before any collective."""
    rates = [link.bytes_per_second for link in world.links]
    latency = sorted(link.latency_seconds for link in world.links)[len(rates) // 2]
    spread = f" (fastest {rate_text(max(rates))})" if max(rates) > 1.05 * min(rates) else ""
    return (f"{world.world} ranks: slowest of {len(rates)} links B = {rate_text(min(rates))}{spread}, "
            f"1 KiB one way in {1e6 * latency:.0f} us")


def model_text(world: WorldResult) -> str:
    """The fit and how well it does."""
    model = world.model
    return (f"model: alpha {1e6 * model.alpha:.3g} us a round, beta {1e9 * model.beta:.4g} ns a byte, gamma "
            f"{1e9 * model.gamma:.3g} ns a reduced byte; median error {model.error:.0%} over {model.samples} samples")


def rate_text(value: float) -> str:
    """Bytes per second as a link's rate is written."""
    return f"{value * 8e-9:.3g} Gbit/s" if value * 8 >= 1e9 else f"{value * 8e-6:.4g} Mbit/s"


def point_row(point: Point, world: int) -> tuple[str, ...]:
    """One line of the table, under `HEAD`."""
    sent = "-" if point.sent_bytes is None else str(point.sent_bytes)
    if point.sent_bytes is not None and point.formula_bytes is not None:
        same = point.sent_bytes == point.formula_bytes
        sent += " = formula" if same else f" (formula {point.formula_bytes})"
    return (
        size_text(point.size), point.algorithm, str(len(point.seconds)), f"{1e3 * point.median_seconds:.4g}",
        f"{point.algbw:.4g}", f"{point.busbw(world):.4g}", f"{point.to_bound:.2f}", _shown(point.to_own, ".2f"),
        *ratio_cells(point.ratio), sent, _shown(point.model_seconds, ".4g", 1e3), _shown(point.model_error, "+.0%"),
    )


def ratio_cells(ratio: Ratio | None) -> tuple[str, str]:
    """The ratio and its interval; its precision follows the interval's width no further than three decimals."""
    return ("-", "-") if ratio is None else (f"{ratio.value:.3f}", f"{ratio.low:.3f} to {ratio.high:.3f}")


def overall_rows(world: WorldResult) -> list[tuple[str, ...]]:
    """Over all sizes: ratio to the backend, and the worst place against the best algorithm; headings first."""
    rows: list[tuple[str, ...]] = [("algorithm", "/backend, all sizes", "95 % interval", "at worst /best", "there")]
    for name in world.algorithms:
        worst = world.behind_best(name)
        assert worst is not None
        rows.append((name, *ratio_cells(world.overall(name)), f"{worst[0]:.2f}", size_text(worst[1])))
    return rows


def mpi_text(item: MpiResult) -> str:
    """Open MPI's times, or why there are none."""
    head = f"{item.world} ranks, MPI_Allreduce over TCP"
    if item.problem:
        return f"{head}: not measured: {item.problem}"
    rows = [("size", "n", "time ms"), *(
        (size_text(size), str(len(seconds)), f"{1e3 * sorted(seconds)[len(seconds) // 2]:.4g}")
        for size, seconds in item.seconds.items()
    )]
    return "\n".join([f"{head} ({item.version}):", *columns(rows, left=())])


def _shown(value: float | None, form: str, factor: float = 1.0) -> str:
    return "-" if value is None else format(value * factor, form)


def columns(rows: Iterable[Sequence[str]], left: Sequence[int]) -> list[str]:
    """Lines with columns as wide as they need to be; those in `left` start at the left."""
    table = list(rows)
    widths = [max(len(row[at]) for row in table) for at in range(len(table[0]))]
    return [
        "  ".join(cell.ljust(width) if at in left else cell.rjust(width)
                  for at, (cell, width) in enumerate(zip(row, widths, strict=True))).rstrip()
        for row in table
    ]
