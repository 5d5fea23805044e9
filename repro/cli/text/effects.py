"""Main effects as a table and sentences for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.table import Table

from repro.cli.console import Console, line
from repro.compare import METRICS
from repro.compare.design.effect import HEADING, MainEffect

from .colors import COLORS, p_text


def print_effects(found: Sequence[MainEffect], console: Console) -> None:
    """Print the main effects with their reasons and the factors that they depend on."""
    if not found:
        return
    console.print(line(f"{HEADING}: ratio of {METRICS[found[0].pooled.metric].noun}"), soft_wrap=True)
    console.print(_table(found))
    for number, item in enumerate(found, 1):
        for indent, text in zip(("", *["   "] * 100), _lines(number, item), strict=False):
            console.print(line(f"{indent}{text}"), soft_wrap=True)
    for text in dict.fromkeys(text for item in found for text in item.pooled.cautions):
        console.print(line(f"caution: {text}"), soft_wrap=True)


def _lines(number: int, item: MainEffect) -> Iterator[str]:
    settles = f"; {item.pooled.settles}" if item.pooled.settles else ""
    yield f"{number}. {item.pooled.verdict}: {item.pooled.because}{settles}"
    if item.incomplete or item.failed:
        yield item.scope
    if item.pooled.also:
        yield item.pooled.also
    yield from (f"caution: it {other.words}" for other in item.flagged)


def _table(found: Sequence[MainEffect]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="")
    for name, right in (("", True), ("level", False), ("against", False), ("pairs of cells", True),
                        ("ratio", True), ("95 % interval", True), ("seeds", True), ("p", True), ("p Holm", True),
                        ("verdict", False)):
        table.add_column(name, justify="right" if right else "left", overflow="fold")
    for number, item in enumerate(found, 1):
        pooled = item.pooled
        table.add_row(
            str(number), line(item.level), line(item.reference), str(item.combinations),
            "no result" if pooled.refused else "-" if pooled.ratio is None else f"{pooled.ratio:.3f}",
            f"{pooled.interval.low:.3f} to {pooled.interval.high:.3f}" if pooled.interval else "-", str(pooled.n),
            p_text(pooled.p), p_text(pooled.p_adjusted), line(pooled.verdict, style=COLORS.get(pooled.verdict, "")),
        )
    return table


def effect_lines(item: MainEffect) -> Iterator[str]:
    """Yield a main effect as one sentence, then what it depends on."""
    pooled = item.pooled
    size = "" if pooled.ratio is None else f"{pooled.ratio:.3f} x {METRICS[pooled.metric].times} "
    limits = f"(95 % interval {pooled.interval.low:.3f} to {pooled.interval.high:.3f}, {pooled.n} seeds) " \
        if pooled.interval else ""
    yield f"{item.level} against {item.reference} ({pooled.metric}): {pooled.verdict}, {size}{limits}{item.scope}" \
        if size else f"{item.level} against {item.reference} ({pooled.metric}): {pooled.verdict}; {pooled.because}"
    yield from (f"caution: it {other.words}" for other in item.flagged)
