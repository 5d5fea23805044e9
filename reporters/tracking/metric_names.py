"""Names of metrics in a tracking store: `group/column`, the column as in the tables `cells` and `trials`.

MLflow shows one group after the other in the order of the alphabet, and so the metrics of a group. The names are chosen
so that this is the order of use: `answer`, then the curves of training, then details.
"""

from __future__ import annotations

from repro.suite.metrics import METRICS
from repro.suite.model import Metric

ANSWER = "answer"
"""The group that is read first."""
OTHER = "other"
"""The group of figures that no other group lists, such as a metric that was added to `METRICS` alone."""
GROUPS: dict[str, tuple[str, ...]] = {
    ANSWER: ("final", "best", "epochs_to_target", "samples_to_target"),
    "energy": ("joules_per_sample", "energy_joules_measured", "energy_joules_modelled"),
    "memory": ("training_peak_mib", "training_peak_mib_sum", "init_peak_mib", "peak_bytes"),
    "operation": ("operation_time", "operation_throughput"),
    "phase": ("conservation_error", "observer_effect"),
    "speed": ("samples", "samples_per_second", "train_samples_per_second", "tokens_per_second", "mfu", "step_seconds",
              "step_seconds_mean", "input_wait_seconds", "input_wait_share"),
    "staleness": ("version_lag", "clock_lag"),
    "time": ("tta_wall", "tta_train", "tta_cold", "run_seconds", "init_seconds"),
    "traffic": ("bytes_sent", "busiest_bytes", "controller_bytes"),
}
"""Group -> figures of a trial."""
RENAMED = {"final": "quality", "best": "quality_best"}
"""Column -> its name here."""
_GROUP_OF = {column: group for group, columns in GROUPS.items() for column in columns}


def column_of(metric: Metric) -> str:
    """Return the name of a metric's figure: its column, which has the unit; of a contest the metric, which says to the
    end of what it is a time."""
    spec = METRICS[metric]
    return spec.name if spec.at_end else spec.column


def of_trial(column: str, declared: Metric | None) -> str:
    """Return the name of a trial's figure; that of the declared metric belongs to the answer."""
    if declared is not None and column == METRICS[declared].column:
        return f"{ANSWER}/{column_of(declared)}"
    return f"{_GROUP_OF.get(column, OTHER)}/{RENAMED.get(column, column)}"
