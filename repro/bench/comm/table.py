"""Plain-text tables of the communication benchmark."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from repro.bench.comm.result import CommOutcome, CommPoint, PairedRatio, WorldResult
from repro.seams.launching import oversubscription

HEAD = ("size", "algorithm", "n", "time ms", "algbw GB/s", "busbw GB/s", "/bound", "/stated", "/own", "/backend",
        "95 % interval", "busiest sent B", "model ms", "error")
NOTE = (
    "time: median over n repetitions of the slowest rank's; sums are checked on every call",
    "GB = 10^9 B; busbw = algbw x 2(p-1)/p (nccl-tests)",
    "/bound: time over 2(p-1)/p S/B; /own: over the bytes of the algorithm's own path / B; B is measured as above",
    "/stated: time over 2(p-1)/p S over the stated rate of the slowest link, which includes frame headers",
    "/backend: geometric mean over repetitions of time / the backend's time, paired, with its t interval",
    "busiest sent B: counted by the meter; = formula if it equals that of the schedule",
    "model: alpha-beta-gamma, fitted to transfers and small collectives on these links, error (model - time) / time",
)


def text(outcome: CommOutcome) -> str:
    """Format all tables, one per world size, and explain their figures."""
    blocks = [_world(world) for world in outcome.worlds]
    return "\n\n".join([*blocks, "\n".join([*NOTE, origin_text(outcome)])])


def origin_text(outcome: CommOutcome) -> str:
    """Describe where it was measured, and the load there."""
    before, after = outcome.load
    shared = "" if outcome.origin == "emulated" else "; ranks share its cores, so bounds by B hold for one pair only"
    crowded = oversubscription(max(world.world for world in outcome.worlds), outcome.cores)
    return (f"{outcome.origin}: {outcome.place}, gloo on {outcome.cores} cores{shared}; load average {before:.1f} "
            f"before, {after:.1f} after{f'; {crowded}' if crowded else ''}")


def _world(world: WorldResult) -> str:
    rows = [point_row(point, world) for point in sorted(world.points, key=lambda item: item.size)]
    findings = bound_texts(world)
    lines = [links_text(world), model_text(world), *findings, "", *columns([HEAD, *rows], left=(1,))]
    lines += [f"not measured: {item.algorithm}{f' at {size_text(item.size)}' if item.size else ''}: {item.reason}"
              for item in world.skipped]
    return "\n".join([*lines, "", *columns(overall_rows(world), left=(0, 4))])


def links_text(world: WorldResult) -> str:
    """Describe the links, as measured before any collective."""
    rates = [link.bytes_per_second for link in world.links]
    latency = sorted(link.latency_seconds for link in world.links)[len(rates) // 2]
    spread = f" (fastest {rate_text(max(rates))})" if max(rates) > 1.05 * min(rates) else ""
    return (f"{world.world} ranks: slowest of {len(rates)} links B = {rate_text(min(rates))}{spread}, "
            f"1 KiB one way in {1e6 * latency:.0f} us")


def bound_texts(world: WorldResult) -> list[str]:
    """Describe links far off their stated rate, and measured times below the bound; empty if there are none."""
    found = [
        f"link {link.sender} to {link.receiver}: measured {rate_text(link.bytes_per_second)}, stated "
        f"{rate_text(stated)} ({link.bytes_per_second / stated:.2f} x): B may not be the links' rate"
        for link, stated in world.far_off
    ]
    if points := world.below_bound:
        each = ", ".join(f"{point.algorithm} at {size_text(point.size)} {point.to_bound:.3f} x" for point in points)
        found.append(f"below the bound: {each}; links of rate B allow no such time, so the bound is too slow there: B "
                     "was measured while other work ran, or a message of a few frames passed a link before its limit "
                     "took hold")
    return found


def model_text(world: WorldResult) -> str:
    """Describe the fitted model and its error."""
    model = world.model
    return (f"model: alpha {1e6 * model.alpha:.3g} us per round, beta {1e9 * model.beta:.4g} ns per byte, gamma "
            f"{1e9 * model.gamma:.3g} ns per reduced byte; median error {model.error:.0%} over {model.samples} samples")


def size_text(size: int) -> str:
    """Format a size in bytes, for example `4 KiB`."""
    for unit, factor in (("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size >= factor and size % factor == 0:
            return f"{size // factor} {unit}"
    return f"{size} B"


def rate_text(value: float) -> str:
    """Format bytes per second as the rate of a link."""
    return f"{value * 8e-9:.3g} Gbit/s" if value * 8 >= 1e9 else f"{value * 8e-6:.4g} Mbit/s"


def point_row(point: CommPoint, world: WorldResult) -> tuple[str, ...]:
    """Return one row of the table, with the columns of `HEAD`."""
    sent = "-" if point.sent_bytes is None else str(point.sent_bytes)
    if point.sent_bytes is not None and point.formula_bytes is not None:
        same = point.sent_bytes == point.formula_bytes
        sent += " = formula" if same else f" (formula {point.formula_bytes})"
    return (
        size_text(point.size), point.algorithm, str(len(point.seconds)), f"{1e3 * point.median_seconds:.4g}",
        f"{point.algbw:.4g}", f"{point.busbw(world.world):.4g}", f"{point.to_bound:.2f}",
        _shown(world.to_stated(point), ".2f"), _shown(point.to_own, ".2f"),
        *ratio_cells(point.ratio), sent, _shown(point.model_seconds, ".4g", 1e3), _shown(point.model_error, "+.0%"),
    )


def ratio_cells(ratio: PairedRatio | None) -> tuple[str, str]:
    """Format a ratio and its interval, to three decimals."""
    return ("-", "-") if ratio is None else (f"{ratio.value:.3f}", f"{ratio.low:.3f} to {ratio.high:.3f}")


def overall_rows(world: WorldResult) -> list[tuple[str, ...]]:
    """Return headings and one row per algorithm: ratio to the backend over all sizes, and its worst size."""
    rows: list[tuple[str, ...]] = [("algorithm", "/backend, all sizes", "95 % interval", "at worst /best", "there")]
    for name in world.algorithms:
        worst, size = world.behind_best(name)
        rows.append((name, *ratio_cells(world.overall(name)), f"{worst:.2f}", size_text(size)))
    return rows


def _shown(value: float | None, form: str, factor: float = 1.0) -> str:
    return "-" if value is None else format(value * factor, form)


def columns(rows: Iterable[Sequence[str]], left: Sequence[int]) -> list[str]:
    """Align rows in columns; columns in `left` are left-justified."""
    table = list(rows)
    widths = [max(len(row[at]) for row in table) for at in range(len(table[0]))]
    return [
        "  ".join(cell.ljust(width) if at in left else cell.rjust(width)
                  for at, (cell, width) in enumerate(zip(row, widths, strict=True))).rstrip()
        for row in table
    ]
