"""Pure statistics: numbers in, numbers out; no clock, no files, no random numbers.

Every function refuses values without meaning (ValueError, one sentence): NaN, negative times, too few values, no
spread. tests/unit/stats/test_coverage.py measures the coverage of each interval at small n; docs/method.md has the
figures.
"""

from repro.stats.anytime import anytime_interval, e_difference, e_same
from repro.stats.contest import QualityClaim, quality_claim
from repro.stats.description import coefficient_of_variation, outlier_marks
from repro.stats.dominance import probability_less
from repro.stats.equivalence import Equivalence, tost, tost_welch
from repro.stats.exact_tests import EXACT_PAIRS, holm, pairs_to_survive, sign_flip, sign_flip_floor
from repro.stats.grid_effect import (
    Bracket,
    GridBias,
    RatioRange,
    bracket_bias,
    bracket_ratio,
    bracket_welch,
    first_crossing,
    range_interval,
    ratio_range,
)
from repro.stats.interval import Interval, clopper_pearson, mean_interval, median_interval, wilson
from repro.stats.mlperf import MlperfScore, mlperf_score
from repro.stats.power import (
    MOST_PAIRS,
    detectable_ratio,
    equivalence_power,
    joint_power,
    paired_power,
    pairs_needed,
)
from repro.stats.profile import geometric_mean, performance_profile, profile_score
from repro.stats.ratio import log_ratios, paired_p, paired_ratio, welch_p, welch_ratio
from repro.stats.resampling import (
    censored_median,
    mean_ratios,
    percentile_interval,
    profile_scores,
    profiles,
    ratios_to_best,
    resampled_medians,
)
from repro.stats.restricted import restricted_area, restricted_mean, restricted_ratio, watched_horizon
from repro.stats.sample import deviation, mean, or_none
from repro.stats.sequential import LookLevel, look_levels
from repro.stats.survival import Steps, Survival, cumulative_incidence, kaplan_meier, log_rank, median_time
from repro.stats.trend import order_trend

__all__ = [
    "EXACT_PAIRS",
    "MOST_PAIRS",
    "Bracket",
    "Equivalence",
    "GridBias",
    "Interval",
    "LookLevel",
    "MlperfScore",
    "QualityClaim",
    "RatioRange",
    "Steps",
    "Survival",
    "anytime_interval",
    "bracket_bias",
    "bracket_ratio",
    "bracket_welch",
    "censored_median",
    "clopper_pearson",
    "coefficient_of_variation",
    "cumulative_incidence",
    "detectable_ratio",
    "deviation",
    "e_difference",
    "e_same",
    "equivalence_power",
    "first_crossing",
    "geometric_mean",
    "holm",
    "joint_power",
    "kaplan_meier",
    "log_rank",
    "log_ratios",
    "look_levels",
    "mean",
    "mean_interval",
    "mean_ratios",
    "median_interval",
    "median_time",
    "mlperf_score",
    "or_none",
    "order_trend",
    "outlier_marks",
    "paired_p",
    "paired_power",
    "paired_ratio",
    "pairs_needed",
    "pairs_to_survive",
    "percentile_interval",
    "performance_profile",
    "probability_less",
    "profile_score",
    "profile_scores",
    "profiles",
    "quality_claim",
    "range_interval",
    "ratio_range",
    "ratios_to_best",
    "resampled_medians",
    "restricted_area",
    "restricted_mean",
    "restricted_ratio",
    "sign_flip",
    "sign_flip_floor",
    "tost",
    "tost_welch",
    "watched_horizon",
    "welch_p",
    "welch_ratio",
    "wilson",
]
