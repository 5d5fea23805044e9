"""Two published systems side by side: their scores as their program computes them, Welch on logs of the minutes beside
them, and a verdict only where the rules leave room for one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from pydantic import Field

from repro.compare import Comparison
from repro.compare.evidence import ComparisonRequest, Evidence, examine
from repro.compare.two_runs import Named
from repro.compare.verdict import judged
from repro.core.frozen import Frozen
from repro.published.cells import SEVERAL, as_results
from repro.published.comparison.selection import Entry
from repro.published.mlperf.rules import Score
from repro.record.results import Result
from repro.stats.interval import from_log
from repro.suite.metrics import DEFAULT, METRICS
from repro.suite.model import Metric

PUBLISHED_METRICS = tuple(spec.name for spec in METRICS.values() if spec.published)
"""What published logs say; their program's clock stands for the wall clock."""
UNPAIRED = ("not paired: the two share no seed, machine or hour; the ratio is Welch's on logs of {what} of all "
            "runs{drop}")
DROPPED = ", where the score drops the fastest and the slowest"
GRID = ("samples to the target are those of the first evaluation that reached it, and how far evaluations lie apart is "
        "the submitter's choice: figures, no verdict")
FOREIGN = "published by others and not run here: everything in the two descriptions may be what makes the difference"
DESCRIBED = (("accelerators", "accelerators"), ("accelerator", "accelerator"), ("nodes", "nodes"),
             ("framework", "framework"), ("batch.global", "global batch"))

NOT_ON_SALE = ("preview", "research", "rdi", "internal")
"""Words of MLPerf's availability that say so."""


class PublishedContrast(Frozen):
    """One candidate against one baseline."""

    comparison: Comparison
    candidate_score: Score
    baseline_score: Score
    score_ratio: float | None
    """Minutes of the candidate / of the baseline; None where the rules do not let the scores be compared."""
    score_because: str = ""
    """Why there is no ratio of scores."""
    differs: dict[str, tuple[str | None, str | None]] = Field(default_factory=dict)
    """Factor -> (candidate's, baseline's), where they differ; None: not known."""


def contrast_all(found: Sequence[tuple[Entry, Entry]], metric: Metric = DEFAULT) -> list[PublishedContrast]:
    """Every (candidate, baseline) pair, corrected by Holm over all of them."""
    evidence = [_examined(candidate, baseline, metric) for candidate, baseline in found]
    return [_contrast(candidate, baseline, comparison)
            for (candidate, baseline), comparison in zip(found, judged(evidence), strict=True)]


def _examined(candidate: Entry, baseline: Entry, metric: Metric) -> Evidence:
    ours, theirs = _results(candidate, metric), _results(baseline, metric)
    refusals = (*apart(candidate, baseline), *_rounds(candidate, baseline), *unscored(candidate, baseline),
                *_lost(candidate, baseline))
    if metric == "samples":
        refusals += (GRID,)
    elif not refusals:
        refusals = _disagreement(candidate, baseline, ours, theirs)
    asked = ComparisonRequest(metric=metric, paired=False, refusals=refusals, withhold=False,
                  cautions=_cautions(candidate, baseline, metric))
    if apart(candidate, baseline):  # no figure at all: whoever reads a ratio takes it for a comparison
        ours, theirs = [], []
    found = examine(_named(candidate), _named(baseline), ours, theirs, asked)
    return _refused(found, refusals)


def _refused(found: Evidence, refusals: Sequence[str]) -> Evidence:
    """The rules' reasons stand first, whatever else keeps the verdict back. No equivalence: nobody declared a margin
    before these results were known."""
    found = replace(found, equivalence=None)
    return replace(found, refusal="; ".join(refusals), settles="", missed=None) if refusals else found


def _named(item: Entry) -> Named:
    return Named(f"{item.folder}/{item.cell.cell_id}" if item.folder else item.cell.cell_id, item.label,
                 dict(item.cell.factors))


def _results(item: Entry, metric: Metric) -> list[Result]:
    """Runs as results of trials; minutes carry the factor that review put on the score."""
    factor = item.cell.score.scaling_factor if METRICS[metric].timed else 1.0
    return [
        found if factor == 1.0 or found.tta_wall is None else
        found.model_copy(update={"tta_wall": found.tta_wall * factor}) for found in as_results(item.results)
    ]


def apart(candidate: Entry, baseline: Entry) -> tuple[str, ...]:
    """Why the two are no answers to one question, so that there is no ratio of any kind."""
    found = []
    if candidate.program != baseline.program:
        found.append(f"{candidate.program} and {baseline.program} keep different clocks and targets")
    if candidate.program == "mlperf":
        found += _divisions(candidate, baseline)
    targets = _targets(candidate, baseline)
    return (*found, *([targets] if targets else []))


def _rounds(candidate: Entry, baseline: Entry) -> tuple[str, ...]:
    """Two rounds with one target have a ratio, and no verdict."""
    ours, theirs = _said(candidate, "round"), _said(baseline, "round")
    told = f"rounds differ ({ours} against {theirs}): rules and software change between them"
    return (told,) if ours != theirs else ()


def _divisions(candidate: Entry, baseline: Entry) -> list[str]:
    ours, theirs = _said(candidate, "division"), _said(baseline, "division")
    if ours != theirs:
        return [f"divisions differ ({ours} against {theirs}): an open result need not follow the closed rules"]
    if ours == "closed":
        return []
    return [f"both are of division {ours}: only the closed division fixes model, data and target"]


def _said(item: Entry, name: str) -> str:
    return item.factor(name) or "unknown"


def _targets(candidate: Entry, baseline: Entry) -> str:
    ours, theirs = ({tuple(sorted(run.target.items())) for run in item.results} for item in (candidate, baseline))
    if not ours or not theirs:
        return ""
    if ours != theirs or len(ours) > 1:
        return f"targets differ ({_told(ours)} against {_told(theirs)}), so the times are times to different things"
    return ""


def _told(targets: set[tuple[tuple[str, float], ...]]) -> str:
    return " or ".join(" and ".join(f"{name} {value:g}".strip() for name, value in target) or "not known"
                       for target in sorted(targets))


def unscored(candidate: Entry, baseline: Entry) -> tuple[str, ...]:
    """Scores that the program's rules do not accept."""
    return tuple(f"{item.label} has no valid score: {item.cell.score.reason or 'not known why'}"
                 for item in (candidate, baseline) if not item.cell.score.valid)


def _lost(candidate: Entry, baseline: Entry) -> tuple[str, ...]:
    """Runs without a time: the score may drop one as its slowest, an unpaired interval may not. Runs that are there
    twice: each would count as one more."""
    hashes = [[run.sha256 for run in item.results] for item in (candidate, baseline)]
    copies = tuple(f"{len(found) - len(set(found))} of the runs of {item.label} are copies of others (same sha256)"
                   for item, found in zip((candidate, baseline), hashes, strict=True) if len(set(found)) < len(found))
    if not set(hashes[0]).isdisjoint(hashes[1]):
        copies += ("the two share logs (same sha256)",)
    return copies + tuple(
        f"{item.cell.score.failed} of {item.cell.score.runs} runs of {item.label} gave no time to target: the score "
        "counts that as its slowest run, a ratio over the others would hide it"
        for item in (candidate, baseline) if item.cell.score.failed)


def _disagreement(
    candidate: Entry, baseline: Entry, ours: Sequence[Result], theirs: Sequence[Result]
) -> tuple[str, ...]:
    """Scores and geometric means that point in different directions carry no verdict."""
    above, below = ([item.tta_wall for item in found if item.tta_wall] for found in (ours, theirs))
    first, second = candidate.cell.score.minutes, baseline.cell.score.minutes
    if not above or not below or first is None or second is None:
        return ()
    logs = sum(map(math.log, above)) / len(above) - sum(map(math.log, below)) / len(below)
    if logs * math.log(first / second) < 0:
        return (f"the scores say {first / second:.3f} and the runs' geometric means {from_log(logs):.3f}: they point "
                "in different directions",)
    return ()


def _cautions(candidate: Entry, baseline: Entry, metric: Metric) -> tuple[str, ...]:
    drop = DROPPED if METRICS[metric].timed and candidate.program == baseline.program == "mlperf" else ""
    found = [UNPAIRED.format(what="the minutes" if METRICS[metric].timed else "the samples", drop=drop), FOREIGN]
    if not any(run.target for item in (candidate, baseline) for run in item.results):
        found.append("the target of this benchmark and round is not known here: that it was reached is the logs' own "
                     "word")
    unlike = [f"{word} {_said(candidate, name)} against {_said(baseline, name)}" for name, word in DESCRIBED
              if candidate.factor(name) != baseline.factor(name)]
    if unlike:
        found.append(f"they differ in {'; '.join(unlike)}")
    for item in (candidate, baseline):
        kinds = sorted({run.availability for run in item.results if run.availability and any(
            word in run.availability.lower() for word in NOT_ON_SALE)})
        if kinds:
            found.append(f"{item.label} could not be bought or rented then: {', '.join(kinds)}")
        if item.cell.score.scaling_factor != 1.0 and METRICS[metric].timed:
            found.append(f"{item.label}: review put a factor of {item.cell.score.scaling_factor:g} on the score; its "
                         "minutes here carry it too")
        if SEVERAL in (item.factor("accelerator"), item.factor("batch.global")):
            found.append(f"the runs of {item.label} do not agree on accelerator or batch")
    return tuple(found)


def _contrast(candidate: Entry, baseline: Entry, comparison: Comparison) -> PublishedContrast:
    ours, theirs = candidate.cell.score, baseline.cell.score
    why = "; ".join((*apart(candidate, baseline), *unscored(candidate, baseline)))
    names = sorted({*candidate.cell.factors, *baseline.cell.factors})
    return PublishedContrast(
        comparison=comparison, candidate_score=ours, baseline_score=theirs,
        score_ratio=None if why or ours.minutes is None or theirs.minutes is None else ours.minutes / theirs.minutes,
        score_because=why,
        differs={name: (candidate.factor(name), baseline.factor(name)) for name in names
                 if candidate.factor(name) != baseline.factor(name)},
    )
