"""Results + baseline -> Comparisons: the verdicts on pairs of cells, with reasons. `comparing` conducts them."""

from repro.compare.cells import factors_of
from repro.compare.comparing import compare, contrast
from repro.compare.evidence.pairing import PAIRED_HASHES
from repro.compare.figures import DECIDED, Bounds, Comparison, Estimate, Pair, Verdict
from repro.compare.verdict.summary import Summary, summarize
from repro.suite.metrics import METRICS, MetricSpec
from repro.suite.model import Metric
