"""What qualifies a verdict: failures of either cell, means and slow trials, settings that a search chose."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

from repro.core.frozen import Frozen
from repro.record.result.remarks import Worded

Side = Literal["candidate", "baseline", ""]
WINNER: Mapping[str, Side] = {"faster": "candidate", "slower": "baseline"}
"""The quicker cell by verdict."""


class Failures(Frozen):
    """Trials that missed the target, diverged, ran out of memory or out of time; or failed starts that ran again."""

    candidate: int
    candidate_trials: int
    baseline: int
    baseline_trials: int
    starts: bool = False
    """Trials of which a start crashed, hung or vanished, and ran again: their times count."""

    @property
    def more(self) -> Side:
        """The cell with the larger share of failures; "": neither."""
        ours, theirs = self.candidate * self.baseline_trials, self.baseline * self.candidate_trials
        return "" if ours == theirs else "candidate" if ours > theirs else "baseline"

    @property
    def p(self) -> float:
        """Two-sided p of Fisher's exact test that both fail equally often."""
        from scipy.stats import fisher_exact

        return float(fisher_exact(np.array([[self.candidate, self.candidate_trials - self.candidate],
                                            [self.baseline, self.baseline_trials - self.baseline]])).pvalue)

    @property
    def words(self) -> str:
        """`failures 3 of 20 against 0 of 20`; `failed starts 3 of 20 against 0 of 20`."""
        what = "failed starts" if self.starts else "failures"
        return f"{what} {self.candidate} of {self.candidate_trials} against {self.baseline} of {self.baseline_trials}"

    @property
    def caution(self) -> str:
        """The words of failed starts beside a verdict."""
        return f"{self.words} ran again: which times are left may depend on what made the others fail"

    def of(self, verdict: str) -> str:
        """Return what a verdict must not be said without: that the quicker cell fails more often; "" if it does not."""
        if not self.more or WINNER.get(verdict) != self.more:
            return ""
        return f" when {'it' if self.more == 'candidate' else 'the baseline'} succeeds; {self.words}"


class Levels(Frozen):
    """Figures beside the geometric mean of the ratios of pairs, which a few slow trials move less or more."""

    mean_ratio: float
    """Ratio of the arithmetic means."""
    candidate_p90: float | None = None
    """In the metric's unit, from 20 pairs on."""
    baseline_p90: float | None = None


class OneSearch(Worded):
    """The settings of both cells were chosen by tuning, each by one search."""

    kind: Literal["one_search"] = "one_search"
    candidate: Mapping[str, Any]
    """Field of a trial -> the value chosen."""
    baseline: Mapping[str, Any]

    sentence = "one search for each contender; another search may choose others"
