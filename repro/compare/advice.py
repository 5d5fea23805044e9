"""Advice under an open comparison: what would settle it without more errors than stated.

Every further test of one contrast at 5 % errs in up to 5 % again: somebody who repeats an experiment until a verdict
appears finds one where there is none. So no advice asks for another run of a contrast that was tested. It asks for what
was missing (a trial, a grid, enough pairs for any verdict), or says how the next experiment is declared.
"""

from __future__ import annotations

from typing import Literal

from repro.record.result.remarks import Worded

AdviceKind = Literal["missing_pairs", "lost_trials", "more_pairs", "declare_pairs", "equal_grids", "pair_trials",
                     "next_look", "tested", "tested_in_a_contest", "looks_used_up"]
WORDS: dict[AdviceKind, str] = {
    "missing_pairs": "run the missing pairs",
    "lost_trials": "run them again",
    "more_pairs": "run at least {n} pairs, with new seeds: repro run SUITE --seeds {n}",
    "declare_pairs": "declare at least {n} pairs in a suite before its first run",
    "equal_grids": "use the same distance between evaluations in both, in a new experiment",
    "pair_trials": "run pairs of one seed, interleaved: they show more than unpaired trials",
    "next_look": "the next look is at {n} pairs",
    "tested": "report it as undecided. Adding pairs until a verdict appears would err in more than 5 % of cases; "
              "to ask again with more pairs, start a new run that declares this contrast as the primary one of a "
              "sequential design",
    "tested_in_a_contest": "report it as undecided. Adding runs until a verdict appears would err in more than 5 % of "
                           "cases; to show a smaller difference, start a new contest that declares more seeds",
    "looks_used_up": "report it as undecided. Its looks are used up, and running it again until a verdict appears "
                     "would err in more than 5 % of cases",
}


class Advice(Worded):
    """What settles an open comparison."""

    kind: AdviceKind
    n: int = 0
    """Pairs of `more_pairs`, `declare_pairs` and `next_look`."""

    def _words(self) -> str:
        return WORDS[self.kind].format(n=self.n)
