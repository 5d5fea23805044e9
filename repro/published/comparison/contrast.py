"""Contrasts of two published systems: the ratio of their scores, Welch's test on the logs of the minutes, and a verdict
if the rules allow one."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pydantic import Field

from repro.compare import Comparison
from repro.compare.cells import Named
from repro.compare.evidence.evidence import ComparisonRequest, Evidence, examine
from repro.compare.verdict.verdict import judged
from repro.core.errors import UsageError, nearest
from repro.core.frozen import Frozen
from repro.published.cells import FACTORS, SEVERAL, as_result
from repro.published.record import PublishedCell, PublishedResult, Score
from repro.published.speedrun.claims import different_machines
from repro.published.store import Published
from repro.record.result.results import Result
from repro.stats.interval import from_log
from repro.suite.metrics import METRICS
from repro.suite.model import Metric

KEYS = ("round", "benchmark", "org", "system", *(name for name in FACTORS if name not in (
    "round", "benchmark", "org", "system")))
SHOWN = 8


@dataclass(frozen=True, slots=True)
class Entry:
    """One cell with its runs and its import."""

    folder: str
    """Name of the import if there are several; empty if there is one."""
    program: str
    cell: PublishedCell
    results: tuple[PublishedResult, ...]

    @property
    def label(self) -> str:
        return f"{self.cell.label} [{self.folder}]" if self.folder else self.cell.label

    def factor(self, name: str) -> str | None:
        """Return the value of a factor; None: unknown."""
        return self.cell.factors.get(name)


def entries(imports: Sequence[tuple[str, Published]]) -> list[list[Entry]]:
    """Return the cells of every import, in the order of the record.

    Args:
        imports: (name, import).
    """
    return [[Entry(name, published.record.program, cell, runs[cell.cell_id]) for cell in published.record.cells]
            for name, published in imports for runs in [published.by_cell()]]


def read_factors(text: str, option: str) -> dict[str, str]:
    """Parse a pattern such as `org=NVIDIA,system=dgx`; a comma separates only if a key follows.

    Raises:
        UsageError: not of that form, or an unknown factor.
    """
    found: dict[str, str] = {}
    for part in re.split(r",(?=\s*[a-z_.]+\s*=)", text):
        key, equals, value = (item.strip() for item in part.partition("="))
        if not equals or not key or not value:
            raise UsageError(f"{option} {text!r}: expected key=value,key=value, for example "
                             "benchmark=resnet,system=dgx_h100")
        if key not in KEYS:
            raise UsageError(f"{option} {text!r}: published results have no factor {key!r}{nearest(key, KEYS)}")
        found[key] = value
    return found


def matching(cells: Sequence[Entry], wanted: Mapping[str, str], option: str) -> list[Entry]:
    """Return the cells with all wanted factors.

    Raises:
        UsageError: no cell matches.
    """
    found = [item for item in cells if all(item.factor(key) == value for key, value in wanted.items())]
    if found:
        return found
    for key, value in wanted.items():
        known = {text for item in cells if (text := item.factor(key)) is not None}
        if value not in known:
            raise UsageError(f"{option}: no cell has {key}={value}{nearest(value, sorted(known)[:200])}")
    raise UsageError(f"{option}: no cell has all of {', '.join(f'{key}={value}' for key, value in wanted.items())}")


def contrasts(
    groups: Sequence[Sequence[Entry]], baseline: Mapping[str, str] | None, candidate: Mapping[str, str] | None
) -> list[tuple[Entry, Entry]]:
    """Return (candidate, baseline) pairs of cells of one benchmark.

    One import: the cells selected by `candidate` (default: all others of the benchmark and round) against the cell
    selected by `baseline`. Two imports: cells of the second against those of the first; without patterns, every system
    against itself.

    Raises:
        UsageError: no baseline, or more than one.
    """
    first, last = groups[0], groups[-1]
    if baseline is None and candidate is None and len(groups) == 2:
        return _same_systems(first, last)
    bases = matching(first, baseline, "--baseline") if baseline is not None else _only_base(first, candidate)
    ours = matching(last, candidate, "--candidate") if candidate is not None else list(last)
    found = [(item, mate) for item in ours
             if (mate := _mate(item, bases, anywhere=candidate is not None)) is not None]
    if not found:
        asked, there = (", ".join(sorted({item.cell.factors["benchmark"] for item in cells})[:SHOWN])
                        for cells in (bases, ours))
        raise UsageError(f"nothing to compare: the baseline is of {asked}, the candidates of {there}; only results of "
                         "one benchmark and round can be compared")
    return found


def _same_systems(first: Sequence[Entry], last: Sequence[Entry]) -> list[tuple[Entry, Entry]]:
    known: dict[tuple[str | None, ...], list[Entry]] = {}
    keys = ("org", "system", "benchmark")
    for item in first:
        known.setdefault(tuple(item.factor(key) for key in keys), []).append(item)
    found = [(item, mates[0]) for item in last
             if len(mates := known.get(tuple(item.factor(key) for key in keys), [])) == 1]
    if not found:
        raise UsageError("the two imports have no system and benchmark in common; select cells of the first with "
                         "--baseline and of the second with --candidate")
    return found


def _only_base(cells: Sequence[Entry], candidate: Mapping[str, str] | None) -> list[Entry]:
    """Return the baseline if there are two cells; with more cells the user must name it in advance."""
    if len(cells) == 2 and candidate is None:
        return [cells[0]]
    if len(cells) < 2:
        raise UsageError("there is only one cell, so there is nothing to compare it with" if cells else
                         "the import has no cell")
    raise UsageError(f"there are {len(cells)} cells: {_listed(cells)}; name the cell to compare with, for example "
                     f"--baseline {_written(cells[0])}")


def _mate(item: Entry, bases: Sequence[Entry], anywhere: bool) -> Entry | None:
    """Return the baseline of one candidate: in its own round, else in another round if it was named."""
    others = [base for base in bases if base.cell.factors["benchmark"] == item.cell.factors["benchmark"]
              and (base.cell.cell_id, base.folder) != (item.cell.cell_id, item.folder)]
    mates = [base for base in others if base.factor("round") == item.factor("round")] or (
        # two imports are compared even if their rounds differ
        others if anywhere or any(base.folder != item.folder for base in others) else [])
    if len(mates) > 1:
        raise UsageError(f"--baseline matches {len(mates)} cells of {item.cell.factors['benchmark']}: "
                         f"{_listed(mates)}; select one")
    return mates[0] if mates else None


def _written(item: Entry) -> str:
    return f"benchmark={item.factor('benchmark')},system={item.factor('system')}"


def _listed(cells: Sequence[Entry]) -> str:
    shown = "; ".join(_written(item) for item in cells[:SHOWN])
    return shown + (f"; and {len(cells) - SHOWN} more" if len(cells) > SHOWN else "")


PUBLISHED_METRICS = tuple(spec.name for spec in METRICS.values() if spec.published)
"""Metrics of published logs; the clock of the program is used as wall clock."""
UNPAIRED = ("not paired: the two share no {shared}; the ratio comes from Welch's test on the logs of "
            "{what} of all runs{drop}")
DROPPED = "; the score drops the fastest and the slowest run"
GRID = ("samples to the target are counted up to the first evaluation that reached it, and the submitter chooses the "
        "distance between evaluations: figures without a verdict")
FOREIGN = "published by others and not run here: any difference between the two descriptions can be the cause"
DESCRIBED = (("accelerators", "accelerators"), ("accelerator", "accelerator"), ("nodes", "nodes"),
             ("framework", "framework"), ("batch.global", "global batch"))

NOT_ON_SALE = ("preview", "research", "rdi", "internal")
"""Words of MLPerf's availability for systems that are not on sale."""


class PublishedContrast(Frozen):
    """One candidate against one baseline."""

    comparison: Comparison
    candidate_score: Score
    baseline_score: Score
    score_ratio: float | None
    """Minutes of the candidate / of the baseline; None if the rules forbid comparing the scores."""
    score_because: str = ""
    """The reason if there is no ratio of scores."""
    differs: dict[str, tuple[str | None, str | None]] = Field(default_factory=dict)
    """Factor -> (candidate's, baseline's) if they differ; None: unknown."""


def contrast_all(found: Sequence[tuple[Entry, Entry]], metric: Metric) -> list[PublishedContrast]:
    """Compare every (candidate, baseline) pair, corrected by Holm over all of them."""
    evidence = [_examined(candidate, baseline, metric) for candidate, baseline in found]
    return [_contrast(candidate, baseline, comparison)
            for (candidate, baseline), comparison in zip(found, judged(evidence), strict=True)]


def _examined(candidate: Entry, baseline: Entry, metric: Metric) -> Evidence:
    ours, theirs = _results(candidate, metric), _results(baseline, metric)
    unlike = incomparable(candidate, baseline)
    refusals = (*unlike, *_rounds(candidate, baseline), *unscored(candidate, baseline), *_lost(candidate, baseline),
                *_elsewhere(candidate, baseline))
    if metric == "samples":
        refusals += (GRID,)
    elif not refusals:
        refusals = _disagreement(candidate, baseline, ours, theirs)
    # No ratio that would be mistaken for a comparison, and none over the runs that are left: logs that were refused are
    # not among the results.
    without = bool(unlike) or any(item.cell.score.failed for item in (candidate, baseline))
    asked = ComparisonRequest(metric=metric, paired=False, refusals=refusals, withhold=without,
                              cautions=_cautions(candidate, baseline, metric))
    # No equivalence: no margin was declared before the results. The reasons of the rules come before all others.
    found = replace(examine(_named(candidate), _named(baseline), ours, theirs, asked), equivalence=None)
    return replace(found, refusal="; ".join(refusals), missed=None) if refusals else found


def _named(item: Entry) -> Named:
    return Named(f"{item.folder}/{item.cell.cell_id}" if item.folder else item.cell.cell_id, item.label,
                 dict(item.cell.factors))


def _results(item: Entry, metric: Metric) -> list[Result]:
    """Convert the runs to results of trials; minutes include the scaling factor of the review."""
    factor = item.cell.score.scaling_factor if METRICS[metric].timed else 1.0
    return [
        found if factor == 1.0 or found.tta_wall is None else
        found.model_copy(update={"tta_wall": found.tta_wall * factor}) for found in map(as_result, item.results)
    ]


def incomparable(candidate: Entry, baseline: Entry) -> tuple[str, ...]:
    """Return the reasons why the two cannot be compared, not even by a ratio."""
    found = []
    if candidate.program != baseline.program:
        found.append(f"{candidate.program} and {baseline.program} use different clocks and targets")
    if candidate.program == "mlperf":
        found += _divisions(candidate, baseline)
    return (*found, *_targets(candidate, baseline))


def _rounds(candidate: Entry, baseline: Entry) -> tuple[str, ...]:
    """Refuse a verdict between two rounds; a ratio is possible if the target is the same."""
    ours, theirs = _factor(candidate, "round"), _factor(baseline, "round")
    text = f"rounds differ ({ours} against {theirs}): rules and software change between them"
    return (text,) if ours != theirs else ()


def _elsewhere(candidate: Entry, baseline: Entry) -> tuple[str, ...]:
    """Refuse a verdict on speed-runs of different machines: their differences are smaller than those of machines."""
    if candidate.program != "speedrun" or baseline.program != "speedrun":
        return ()
    text = different_machines(candidate.results, baseline.results)
    return (text,) if text else ()


def _divisions(candidate: Entry, baseline: Entry) -> list[str]:
    ours, theirs = _factor(candidate, "division"), _factor(baseline, "division")
    if ours != theirs:
        return [f"divisions differ ({ours} against {theirs}): an open result need not follow the closed rules"]
    if ours == "closed":
        return []
    return [f"both are of division {ours}: only the closed division fixes model, data and target"]


def _factor(item: Entry, name: str) -> str:
    return item.factor(name) or "unknown"


def _targets(candidate: Entry, baseline: Entry) -> list[str]:
    ours, theirs = ({tuple(sorted(run.target.items())) for run in item.results} for item in (candidate, baseline))
    if not ours or not theirs or (ours == theirs and len(ours) == 1):
        return []
    return [f"targets differ ({_target_text(ours)} against {_target_text(theirs)}), so the times do not compare"]


def _target_text(targets: set[tuple[tuple[str, float], ...]]) -> str:
    return " or ".join(" and ".join(f"{name} {value:g}".strip() for name, value in target) or "unknown"
                       for target in sorted(targets))


def unscored(candidate: Entry, baseline: Entry) -> tuple[str, ...]:
    """Return the reasons of invalid scores."""
    return tuple(f"{item.label} has no valid score: {item.cell.score.reason or 'reason unknown'}"
                 for item in (candidate, baseline) if not item.cell.score.valid)


def _lost(candidate: Entry, baseline: Entry) -> tuple[str, ...]:
    """Refuse runs without a time, which only the score can drop as slowest, and copies, which would count twice."""
    hashes = [[run.sha256 for run in item.results] for item in (candidate, baseline)]
    copies = tuple(f"{len(found) - len(set(found))} of the runs of {item.label} are copies of others (same sha256)"
                   for item, found in zip((candidate, baseline), hashes, strict=True) if len(set(found)) < len(found))
    if not set(hashes[0]).isdisjoint(hashes[1]):
        copies += ("the two share logs (same sha256)",)
    return copies + tuple(
        f"{item.cell.score.failed} of {item.cell.score.runs} runs of {item.label} have no time to target: the score "
        "counts such a run as the slowest, and a ratio over the others would hide it"
        for item in (candidate, baseline) if item.cell.score.failed)


def _disagreement(
    candidate: Entry, baseline: Entry, ours: Sequence[Result], theirs: Sequence[Result]
) -> tuple[str, ...]:
    """Refuse a verdict if scores and geometric means point in different directions."""
    above, below = ([item.tta_wall for item in found if item.tta_wall] for found in (ours, theirs))
    first, second = candidate.cell.score.minutes, baseline.cell.score.minutes
    if not above or not below or first is None or second is None:
        return ()
    logs = sum(map(math.log, above)) / len(above) - sum(map(math.log, below)) / len(below)
    if logs * math.log(first / second) < 0:
        return (f"the ratio of scores is {first / second:.3f} and that of the geometric means {from_log(logs):.3f}: "
                "they point in different directions",)
    return ()


def _cautions(candidate: Entry, baseline: Entry, metric: Metric) -> tuple[str, ...]:
    drop = DROPPED if METRICS[metric].timed and candidate.program == baseline.program == "mlperf" else ""
    shared = "seed" if candidate.program == "speedrun" else "seed, machine or time"
    what = "the minutes" if METRICS[metric].timed else "the samples"
    found = [UNPAIRED.format(shared=shared, what=what, drop=drop), FOREIGN]
    if not any(run.target for item in (candidate, baseline) for run in item.results):
        found.append("the target of this benchmark and round is unknown here: only the logs say that it was reached")
    unlike = [f"{word} {_factor(candidate, name)} against {_factor(baseline, name)}" for name, word in DESCRIBED
              if candidate.factor(name) != baseline.factor(name)]
    if unlike:
        found.append(f"they differ in {'; '.join(unlike)}")
    for item in (candidate, baseline):
        kinds = sorted({run.availability for run in item.results if run.availability and any(
            word in run.availability.lower() for word in NOT_ON_SALE)})
        if kinds:
            found.append(f"{item.label} was not on sale at that time: {', '.join(kinds)}")
        if item.cell.score.scaling_factor != 1.0 and METRICS[metric].timed:
            found.append(f"{item.label}: the review scaled the score by {item.cell.score.scaling_factor:g}; its "
                         "minutes here include that factor")
        if SEVERAL in (item.factor("accelerator"), item.factor("batch.global")):
            found.append(f"the runs of {item.label} do not agree on accelerator or batch")
    return tuple(found)


def _contrast(candidate: Entry, baseline: Entry, comparison: Comparison) -> PublishedContrast:
    ours, theirs = candidate.cell.score, baseline.cell.score
    why = "; ".join((*incomparable(candidate, baseline), *unscored(candidate, baseline)))
    names = sorted({*candidate.cell.factors, *baseline.cell.factors})
    return PublishedContrast(
        comparison=comparison.model_copy(update={"advice": None}),  # nobody here can run more of them
        candidate_score=ours, baseline_score=theirs,
        score_ratio=None if why or ours.minutes is None or theirs.minutes is None else ours.minutes / theirs.minutes,
        score_because=why,
        differs={name: (candidate.factor(name), baseline.factor(name)) for name in names
                 if candidate.factor(name) != baseline.factor(name)},
    )
