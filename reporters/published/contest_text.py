"""Claims of a contest as a table for a README or a paper, as rows of plain values, and as a figure in print."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import date
from functools import partial
from typing import Any

from repro.published.speedrun.claims import ArmClaim, judge_claims
from repro.published.store import Published
from repro.tables.layout import NOTHING, TextTable, name
from repro.tables.values import Row, plain

from ..paper.figures import COLORS, SMALL, Drawing

HEADERS = ("Record", "Arm", "Runs", "Mean loss", "p, one-sided", "Quality", "Mean time, s", "Ratio", "Time")
MARKS = {"supported": ("o", COLORS[2]), "not supported": ("x", COLORS[1]), "cannot be tested": ("D", COLORS[7])}


def claim_tables(item: Published) -> Iterator[TextTable]:
    """Yield one table a track; nothing for an import that is no contest."""
    for track, claims in _tracks(item).items():
        targets = ", ".join(sorted({f"{claim.quality.target:g}" for claim in claims}))
        yield TextTable(title=f"Claims of {name(track)}, target {targets}", headers=HEADERS,
                        numeric=(False, False, True, True, True, False, True, True, False),
                        rows=tuple(_text(claim) for claim in claims))


def claim_doubts(item: Published) -> Iterator[str]:
    """Yield what the logs do not support or cannot test, with the figures, and what the reader concluded."""
    if item.record.contest is None:
        return
    claims = judge_claims(item)
    for claim in claims.arms:
        if claim.quality.verdict != "supported":
            yield f"{name(claim.record)}, {name(claim.arm)}: quality {claim.quality.verdict}: {claim.quality.because}"
        yield from (f"{name(claim.record)}, {name(claim.arm)}: {text}" for text in claim.time.cautions)
    yield from (stated.because for stated in claims.stated)
    yield from claims.rules.notes


def claim_rows(item: Published) -> Iterator[Row]:
    """Yield one row an arm, exact."""
    for claims in _tracks(item).values():
        for claim in claims:
            quality, time = claim.quality, claim.time
            yield {
                "cell_id": claim.cell_id, "record": plain(claim.record), "arm": plain(claim.arm), "date": claim.date,
                "track": plain(claim.benchmark), "target": quality.target, "runs": claim.runs, "n": quality.n,
                "loss_mean": quality.mean, "loss_deviation": quality.deviation, "p": quality.p,
                "quality": quality.verdict, "quality_because": plain(quality.because), "seconds_mean": claim.seconds,
                "seconds_low": claim.seconds_interval[0] if claim.seconds_interval else None,
                "seconds_high": claim.seconds_interval[1] if claim.seconds_interval else None,
                "against": time.against or None, "ratio": time.ratio,
                "ratio_low": time.interval[0] if time.interval else None,
                "ratio_high": time.interval[1] if time.interval else None, "time_p": time.p,
                "time_p_adjusted": time.p_adjusted, "time": time.verdict, "time_because": plain(time.because),
            }


def claim_figures(imports: Sequence[Published]) -> list[Drawing]:
    """Draw the progression of each track with at least two dates."""
    found: list[Drawing] = []
    for item in imports:
        for track, claims in _tracks(item).items():
            known = [claim for claim in claims if claim.date and claim.seconds and not claim.baseline]
            if len({claim.date for claim in known}) > 1:
                found.append(Drawing(
                    f"published-progression-{len(found) + 1}",
                    f"Mean time of each record of {name(track)} by the program's clock, with its 95 % interval; "
                    "the mark says whether its own logs support its quality. The machines differ. Figures: published "
                    "by others.", 3.0, partial(_draw, known)))
    return found


def _tracks(item: Published) -> dict[str, list[ArmClaim]]:
    return {} if item.record.contest is None else judge_claims(item).tracks


def _text(claim: ArmClaim) -> tuple[str, ...]:
    quality, time = claim.quality, claim.time
    return (
        name(claim.record), name(claim.arm), str(claim.runs),
        NOTHING if quality.mean is None else f"{quality.mean:.5f}",
        NOTHING if quality.p is None else f"{quality.p:.2g}", quality.verdict,
        NOTHING if claim.seconds is None else f"{claim.seconds:,.3f}",
        NOTHING if time.ratio is None else f"{time.ratio:.4f}" + (
            f" ({time.interval[0]:.4f} to {time.interval[1]:.4f})" if time.interval else ""), time.verdict,
    )


def _draw(claims: Sequence[ArmClaim], figure: Any) -> None:
    from matplotlib.dates import AutoDateLocator
    from matplotlib.ticker import FuncFormatter, NullFormatter

    pane = figure.subplots()
    for verdict, (mark, color) in MARKS.items():
        chosen = [claim for claim in claims if claim.quality.verdict == verdict]
        if not chosen:
            continue
        middle = [claim.seconds or 0.0 for claim in chosen]
        bounds = [claim.seconds_interval or (seconds, seconds) for claim, seconds in zip(chosen, middle, strict=True)]
        pane.errorbar(
            [date.fromisoformat(claim.date or "") for claim in chosen], middle,
            yerr=[[seconds - low for seconds, (low, _) in zip(middle, bounds, strict=True)],
                  [high - seconds for seconds, (_, high) in zip(middle, bounds, strict=True)]],
            fmt=mark, color=color, markersize=4, elinewidth=0.8, capsize=2, label=f"quality {verdict}")
    pane.set_yscale("log")
    pane.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    pane.yaxis.set_minor_formatter(NullFormatter())
    pane.set_xlabel("date of the record")
    pane.set_ylabel("mean time, seconds (logarithmic) [published]")
    pane.xaxis.set_major_locator(AutoDateLocator(maxticks=5))
    figure.legend(loc="outside lower left", fontsize=SMALL)
