"""Results + baseline -> Comparisons: the verdicts on pairs of cells, with reasons. `comparing` conducts them."""

from repro.compare.cells import ComparedCell, factors_of
from repro.compare.comparing import compare, contrast
from repro.compare.evidence.pairing import PAIRED_HASHES
from repro.compare.figures import (
    DECIDED,
    Bounds,
    Comparison,
    Difference,
    Estimate,
    MarginTest,
    Metric,
    Pair,
    Restricted,
    TimeSplit,
    Verdict,
)
from repro.compare.verdict.summary import Summary, summarize
from repro.suite.metrics import METRICS, MetricSpec

__all__ = [
    "DECIDED",
    "METRICS",
    "PAIRED_HASHES",
    "Bounds",
    "ComparedCell",
    "Comparison",
    "Difference",
    "Estimate",
    "MarginTest",
    "Metric",
    "MetricSpec",
    "Pair",
    "Restricted",
    "Summary",
    "TimeSplit",
    "Verdict",
    "compare",
    "contrast",
    "factors_of",
    "summarize",
]
