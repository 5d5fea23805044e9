"""Pure statistics: numbers in, numbers out; no clock, no files, no random numbers.

Every function refuses values without meaning (ValueError, one sentence): NaN, negative times, too few values, no
spread. tests/unit/stats/test_coverage.py measures the coverage of each interval at small n; docs/method.md has the
figures.
Tests valid at several looks stand in `sequential` and `anytime`, apart from this index.
"""

from repro.stats.exact_tests import (
    EXACT_PAIRS,
    holm,
    lane_trend,
    order_trend,
    pairs_to_survive,
    probability_less,
    sign_flip,
    sign_flip_floor,
)
from repro.stats.grid_effect import bracket_bias, bracket_welch, range_interval
from repro.stats.interval import (
    Interval,
    coefficient_of_variation,
    mean_interval,
    median_interval,
    outlier_marks,
    wilson,
)
from repro.stats.power import MOST_PAIRS, detectable_ratio, equivalence_power, paired_power, pairs_needed
from repro.stats.profile import (
    mean_ratios,
    percentile_interval,
    profile_scores,
    profiles,
    ratios_to_best,
    resampled_medians,
)
from repro.stats.ratio import (
    Equivalence,
    QualityClaim,
    equivalent_pairs,
    log_ratios,
    paired_p,
    paired_ratio,
    quality_claim,
    tost,
    tost_welch,
    welch_p,
    welch_ratio,
)
from repro.stats.sample import deviation, or_none
from repro.stats.survival import cumulative_incidence, kaplan_meier, log_rank, restricted_mean, restricted_ratio
