"""What each column of the tables holds: its type, unit and words, for Parquet, CSV, data frames and the docs.

The name of a column ends in its unit (`_seconds`, `_bytes`, `_mib`, `_ms`: milliseconds since 1970). A column without
such an end is a count, a share, a ratio, a text, or has the unit of the metric that its row names (`unit`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from repro.compare.cell_figures import GROUPS
from repro.tables.values import Value

COLUMNS = """\
text cell_id: id of the cell
text cell: label of the cell
text trial_id: id of the trial
text origin: measured, emulated, simulated or modelled
text metric: metric of the figures
text unit: its unit
text statuses: how many trials ended how
text candidate: id of the candidate's cell
text candidate_cell: its label
text baseline: id of the baseline's cell
text baseline_cell: its label
text verdict: faster, slower, higher, lower, same, inconclusive or exploratory
text qualifier: words without which the verdict would say too much
text because: reason of the verdict
text settles: what settles an open comparison
text differs: what else differs, as read back
text cautions: what a reader must know
text split_words: what the two factors of the time show, exploratory
text failures: trials that failed
text factor: factor of the suite
text level: its level
text reference: level compared with
text depends_on: factors that the effect depends on
text other_factor: the other factor
text other_level: its level
text other_reference: its level compared with
text quality: metric of the quality
text direction: higher or lower: which is better
text status: how it ended
text reason: why it ended so
text resumed_from: checkpoint that it went on from
text passed_over: checkpoints that were skipped
text name: name
text value: value, as text
text title: title
text about: subject
text text: text
text means: consequence
text suite: name of the suite
text suite_version: version of the suite
text suite_digest: sha256 of the suite
text method: version of the method of measuring
text machine: processor and devices
text lane: lane of the pool: a node, or a part of one
text seeds_run: its seeds
text repro_version: version that made the record
text commit: commit of the checkout
text false_positive_rate: measured rate of false positives, in words
text notes: notes on the plan
text error_budget: error rates of all verdicts together
text figure: name of the figure
text label: counted, measured or modelled
text check: name of the check
text warnings: warnings about the trial
text agreement: counted bytes against those of the formula
text effective: algorithm, as read back
text uncounted: operations whose bytes are not counted
text absence: why there are no figures
text determinism: declared determinism
text cells: numbers of the cells
text line: settings that the cells of a line share
text conservation_error_trial: trial with that error
text observer_effect_trial: trial with that effect
text other_share_trial: trial with that share
text on: id of the cell with overlap
text off: id of that without
text interpretation: what the interval shows
text kind: same batch or larger batches
count n: trials; pairs in a comparison
count ok: trials that reached the target; of a design without one, that ended
count outliers: trials far from the others
count resumed: resumptions from a checkpoint
count trainings: different trainings among the trials
count planned: trials that are due
count family: contrasts that p was corrected for
count combinations: combinations of the other factors
count incomplete: combinations with one level only
count failed: combinations without a ratio
count seeds: most seeds a cell; a sequential run may need fewer
count seed: number of the repeat: the same weights and data only within one record
count attempt: number of the start
count evaluation: number of the evaluation, from 1
count step: number of the step, from 0
count trials: trials with a result
count attempts: starts of trials
count nulls: comparisons of a cell with itself
count false_positives: those that found a difference
count passed: trials that passed
count blocks: seeds that it ran
count declared: declared runs
count samples: samples of the training
count samples_to_target: samples up to the target
count started_ms: start
count peak_bytes: peak memory, largest rank
count bytes_sent: sent by all ranks in counted collectives
count controller_bytes: between controller and ranks
count busiest_bytes: sent and received by the busiest rank
count bracket_miss_samples: samples at the last evaluation that missed
count bracket_hit_samples: samples at the first that hit
count busiest_sent_bytes: sent by the busiest rank
count formula_sent_bytes: the same by formula
count controller_startup_messages: messages of the controller before training
count controller_startup_bytes: their bytes
count controller_training_messages: messages of the controller in training
count controller_training_bytes: their bytes
count processes: ranks
count ranks: ranks
count batch: global batch
count sender: node that sends
count receiver: node that receives
flag primary: the declared contrast
flag paired: trials are paired by seed
flag refused: there is no result
flag equivalent: the same within the margin
flag flagged: the effect depends on it
flag reverses: the effect changes its side
flag counted: this start gave the result
flag dirty: the checkout had changes
flag parity_needed: the gate had something to compare
flag parity_passed: the gate passed
figure relative_time: median time of its trials over the mean of their cells; 1.1: slower than the others
text gate.candidate: cell that is compared
text group: cells with one reference
flag gate.passed: no difference
count gate.step: first step that differs, from 1
text tensor: first tensor that differs
figure size: relative difference
figure tolerance: largest difference that passes
figure median: median; unit: that of the metric
figure coefficient_of_variation: standard deviation over mean
figure median_epochs: median epochs to the target
figure median_samples_per_second: median throughput of the run
figure median_final: median final quality
figure diverged_share: share of trials that diverged
figure restricted_horizon: horizon of the restricted mean; unit: that of the metric
figure restricted_mean: mean up to the horizon; unit: that of the metric
figure ratio: candidate / baseline; of several pairs their geometric mean
figure speedup: speed of the candidate relative to the baseline
figure p: p, not corrected
figure p_adjusted: p corrected by Holm's method
figure welch: ratio without pairing
figure split_samples: ratio of samples to the target
figure split_throughput: ratio of samples a second
figure restricted_ratio: ratio of restricted means
figure log_rank_p: p of the log-rank test
figure probability_less: P(a candidate trial has the smaller figure)
figure equivalence_margin: margin of sameness
figure equivalence_p: p of sameness
figure equivalence_p_adjusted: the same, corrected
figure unbiased: median-unbiased ratio of a sequential design
figure mean_ratio: ratio of arithmetic means
figure candidate_p90: P90 of the candidate; unit: that of the metric
figure baseline_p90: P90 of the baseline; unit: that of the metric
figure candidate_value: figure of the candidate's trial; unit: that of the metric
figure baseline_value: that of the baseline's; unit: that of the metric
figure ratio_here: ratio at the level
figure ratio_there: ratio at the other level
figure target: target of the quality
figure alpha: level of the claim
figure mean: mean quality
figure deviation: standard deviation of the quality
figure tta_wall_seconds: run_start to the evaluation that establishes the target, evaluation on the clock
figure tta_train_seconds: the same without evaluation, checkpoints and logging
figure tta_cold_seconds: launch of the processes to the same evaluation
figure run_seconds: run_start to run_stop
figure init_seconds: initialisation, before the clock starts
figure epochs_to_target: passes over the data up to the target
figure samples_per_second: samples of the run over its wall clock
figure train_samples_per_second: samples of timed steps over their time
figure tokens_per_second: the same in tokens
figure tokens_to_target: tokens up to the target
figure input_wait_seconds: wait of a step for its input, mean, slowest rank
figure input_wait_share: the same as a share of the step
figure conservation_error: share of the wall clock that the phases do not explain
figure observer_effect: share of the wall clock that logging took
figure other_share: share of other time
figure step_seconds: time of a step with its input: median, slowest rank
figure step_seconds_mean: its mean
figure training_peak_mib: peak memory in training, largest rank
figure training_peak_mib_sum: sum over ranks
figure init_peak_mib: peak memory until training
figure mfu: model FLOPs utilisation, 0 to 1
figure joules_per_sample: measured energy a sample
figure gpu_joules_per_sample: that of the GPUs alone
figure final: final quality
figure best: best quality
figure energy_joules_measured: measured energy of the trial
figure energy_joules_modelled: modelled energy of the trial
figure version_lag: mean staleness of updates, in versions
figure clock_lag: mean clocks ahead of the slowest worker
figure operation_time: median time of an operation, seconds
figure operation_throughput: items of operations a second
figure lost_seconds: lost before resuming from a checkpoint
figure bracket_miss_seconds: wall clock at the last evaluation that missed
figure bracket_hit_seconds: at the first that hit
figure step_median_seconds: time of a step without input: median
figure step_p95_seconds: its 95th percentile
figure straggler_seconds: sum over steps of slowest minus fastest rank
figure exposed_seconds: training waited for communication, mean over ranks
figure overlapped_seconds: communication while training went on
figure epochs: passes over the data
figure wall_seconds: wall clock since run_start
figure train_seconds: training phase: all of a trial, or until an evaluation; the phases add up to run_seconds
figure eval_seconds: evaluation phase of the trial, part of run_seconds
figure checkpoint_seconds: checkpoint phase
figure logging_seconds: logging phase
figure other_seconds: other time
figure train_loss: training loss
figure loss: training loss of the step
figure seconds: duration
figure margin: declared margin
figure horizon: declared horizon; unit: that of the metric
figure worst_error: largest error
figure limit: limit of the error
figure input_seconds: wait for the input
figure own_seconds: the step on rank 0, without input
figure slowest_rank_seconds: the step on the slowest rank, without input
figure fastest_rank_seconds: on the fastest rank, without input
text by: factors that name a contender
figure reached_at: moment; unit: that of the metric
figure share: share of trials at the target by then
figure collectives_per_step: collectives a step
figure sent_bytes_per_step: sent by the busiest rank a step
figure formula_bytes_per_step: the same by formula
figure exposed_seconds_per_step: training waited, a step
figure overlapped_seconds_per_step: overlapped, a step
figure exposed_percent: exposed time over training time
figure straggler_seconds_per_step: slowest minus fastest rank, a step
figure on_seconds_per_step: exposed with overlap
figure off_seconds_per_step: exposed without
figure difference_seconds_per_step: on minus off
figure startup_messages: messages of a rank at start-up
figure startup_bytes: bytes of a rank at start-up
figure startup_total_bytes: bytes of all ranks at start-up
figure training_messages: messages of all ranks in training
figure training_bytes: their bytes
figure control_frames_bytes: frames on the control network
figure log_bytes: log, a step
figure worker_bytes: sent by all ranks, a step
figure busiest_rank_bytes: busiest rank, a step
figure data_bytes: frames of all links, a step
figure compute_seconds: a step without waiting
figure wire_seconds: compute plus bytes over the rate of the link (modelled)
figure longer_seconds: the longer of the two (modelled)
figure modelled_seconds: compute plus the fitted cost model (modelled)
figure epoch_seconds: training seconds an epoch
figure median_to_target: median to the target; unit: that of the metric
figure bytes_per_epoch: sent by the busiest rank an epoch
figure exposed_seconds_per_epoch: exposed an epoch
figure stated_bits_per_second: rate that the link is shaped to
figure measured_bits_per_second: rate of a TCP stream before the first trial
figure latency_seconds: latency
figure median_run_seconds: median of run_start to run_stop
figure median_init_seconds: median initialisation
figure median_tta_cold_seconds: median from a cold start to the target
figure perplexity: exp(loss)
figure bits_per_byte: loss / ln 2 a byte
figure evaluations.value: quality of the evaluation
figure attempts.started_ms: start
text score_times.target: metric and target
figure tuning_settings.figure: figure of the setting; unit: that of the metric
figure tuning_settings.quality: its quality
text contender: contender
count workloads: workloads
count solved: workloads that it solved
figure tau_max: largest factor of a profile
figure score: area under its performance profile
figure best_share: share of workloads on which it is the best
text withheld: why there is no score
count draws: draws of the band
text workload: workload
count reached: trials that reached the target
figure tau: factor of the best time
text search: kind of search
count settings: settings tried
count further_trials: trials of other settings
text unequal: how its space is larger or smaller than others
count starts: starts of trials
count abandoned: trials that were abandoned
figure processor_seconds: time of the processors
count unknown_starts: starts without a recorded end
text best_setting: the chosen setting
figure best_figure: its figure; unit: that of the metric
figure best_quality: its quality
text tuning_seed: master seed of the tuning
text scored_seed: master seed of the scored run
text problems: what makes the tuning unfair
count number: number of the setting
count rank: its rank
text setting: the setting
text field: field of the space
text values: its values
text width: its width
text declared_origin: where the space comes from
count outputs: outputs of the layer
count inputs: inputs of the layer
flag linear: a separate fully connected layer
count rows: rows of the factors
count itemsize: bytes of a number
count factor_itemsize: bytes of a number of the factors
count reduce_bytes: sent by an all-reduce
count factor_bytes: sent as factors
figure reduce_seconds: time of the all-reduce (modelled)
figure factor_seconds: time of the factors (modelled)
flag paper: the paper's rule chooses factors
flag factors: factors are sent
"""
"""One line a column: type, name (TABLE.NAME in one table only), words. The ends of an interval, medians, factors and
hashes follow from others.
"""
KINDS: dict[str, type] = {"text": str, "count": int, "flag": bool, "figure": float}
UNITS = {"seconds": "s", "bytes": "bytes", "mib": "MiB", "ms": "ms since 1970", "joules": "J", "samples": "samples",
         "epochs": "epochs", "tokens": "tokens", "second": "1/s", "percent": "%"}
"""Last word of a name -> unit."""
OWN_UNITS = {"split_samples": "", "bytes_sent": "bytes", "joules_per_sample": "J", "gpu_joules_per_sample": "J",
             "operation_time": "s"}
"""Column whose unit its last word does not tell -> unit."""
ENDS = {"_low": "lower end of its interval", "_high": "upper end of its interval", "_level": "coverage of its interval"}
TITLES = {item.path.replace("model.", ""): item.title for group in GROUPS.values() for item in group}


@dataclass(frozen=True, slots=True)
class ColumnFacts:
    """One column."""

    kind: type
    """str, int, bool or float."""
    words: str
    unit: str = ""
    """"": a count, a share, a ratio, a text, or the metric's."""


def _parsed(line: str) -> tuple[str, ColumnFacts]:
    head, _, words = line.partition(": ")
    kind, _, name = head.partition(" ")
    return name, ColumnFacts(KINDS[kind], words, _unit(name) if kind in ("count", "figure") else "")


def _unit(name: str) -> str:
    if name in OWN_UNITS:
        return OWN_UNITS[name]
    stem = re.sub("_(per_step|per_epoch|sum|mean|measured|modelled)$", "", name)
    return UNITS.get(stem.rpartition("_")[2], "")


KNOWN = dict(map(_parsed, COLUMNS.splitlines()))


def column_facts(table: str, name: str, values: Iterable[Value] = ()) -> ColumnFacts:
    """Return what a column holds.

    Args:
        values: of a column that no line of `COLUMNS` is for, whose type is the narrowest of them all.
    """
    if found := KNOWN.get(f"{table}.{name}") or KNOWN.get(name):
        return found
    group, _, rest = name.partition(".")
    if group in ("factor", "hash") and rest:
        return ColumnFacts(str, f"{'level of factor' if group == 'factor' else 'hash of'} {rest.replace('_', ' ')}")
    for end, words in ENDS.items():
        if name.endswith(end):
            base = column_facts(table, name.removesuffix(end))
            return ColumnFacts(float, f"{words}: {base.words}", "" if end == "_level" else base.unit)
    start, _, rest = name.partition("_")
    if start in ("median", "final") and (words := TITLES.get(rest) or column_facts(table, rest).words):
        return ColumnFacts(float, f"{start}: {words}", _unit(name))
    return facts_of_values(values)


def facts_of_values(values: Iterable[Value]) -> ColumnFacts:
    """Return the narrowest type of all values; text if none is known."""
    kinds = {type(value) for value in values if value is not None}
    return ColumnFacts(kinds.pop() if kinds in ({bool}, {int}) else float if kinds and kinds <= {int, float} else str,
                       "")
