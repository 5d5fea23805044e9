"""A comparison as an object: its figures by name, its pairs, a display for notebooks and a plot."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from repro.api.frames import frame
from repro.compare import METRICS
from repro.compare import Comparison as Compared
from repro.core import registry
from repro.core.numbers import ratio_texts
from repro.record.folder.store import Record
from repro.tables.tables import Table
from repro.tables.values import Value
from repro.tables.verdicts import comparison_rows, comparison_sentence, node_rows, pair_rows

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from pandas import DataFrame


class Comparison:
    """One candidate against one baseline; `Run.compare` makes it.

    Its figures are those of the page and of `repro compare --json`.
    """

    def __init__(self, found: Compared, record: Record, attrs: Mapping[str, Any]) -> None:
        """Make it of a record.

        Args:
            attrs: of its frames: `record`, the name, `state`, `unverified`.
        """
        self._found, self._record, self._attrs = found, record, attrs

    @property
    def candidate(self) -> str:
        """Label of the cell."""
        return self._found.candidate_label

    @property
    def baseline(self) -> str:
        """Label of the cell."""
        return self._found.baseline_label

    @property
    def metric(self) -> str:
        """Name of the metric, as in `--metric`."""
        return self._found.metric

    @property
    def unit(self) -> str:
        """Unit of the figures of both cells; "" for a quality."""
        return METRICS[self._found.metric].unit

    @property
    def ratio(self) -> float | None:
        """Candidate / baseline, geometric mean over pairs; None: there is no ratio."""
        return self._found.ratio

    @property
    def interval(self) -> tuple[float, float] | None:
        """Ends of the interval of the ratio, not corrected for other comparisons."""
        found = self._found.interval
        return None if found is None else (found.low, found.high)

    @property
    def level(self) -> float | None:
        """Nominal coverage of the interval: 0.95, or more at a look of a sequential design, whose intervals have 0.95
        over all looks; None without one."""
        return None if self._found.interval is None else self._found.interval.level

    @property
    def speedup(self) -> float | None:
        """Speed of the candidate relative to the baseline; None for a metric that is no speed."""
        return self._found.speedup

    @property
    def p(self) -> float | None:
        """Two-sided, corrected by Holm's method if the suite compares more than the declared contrast; not corrected,
        it is `figures["p"]`."""
        return self._found.p if self._found.p_adjusted is None else self._found.p_adjusted

    @property
    def n(self) -> int:
        """Pairs, also those of which a trial missed the target: these have no ratio, and no row in `pairs`."""
        return self._found.n

    @property
    def verdict(self) -> str:
        """faster, slower, higher, lower, same, inconclusive or exploratory."""
        return self._found.verdict

    @property
    def exploratory(self) -> bool:
        """It has no verdict: it was asked for after the results were seen, or so few pairs could decide nothing."""
        return self._found.verdict == "exploratory"

    @property
    def because(self) -> str:
        """Reason of the verdict."""
        return self._found.because

    @property
    def cautions(self) -> tuple[str, ...]:
        """Reservations that belong beside the figures."""
        return (*([f"the record {self._attrs['state']}"] if self._attrs["unverified"] else []), *self._found.cautions)

    @property
    def differs(self) -> str:
        """Other settings in which the two differ, as read back; "" if there are none."""
        return str(self.figures["differs"])

    @property
    def pairs(self) -> DataFrame:
        """One row per pair of trials with one seed."""
        return self._frame("pairs", pair_rows([self._found], self._record.origins))

    @property
    def nodes(self) -> DataFrame:
        """One row per node of a pool, or per lane: its pairs, their ratio and its interval; no row without a pool."""
        return self._frame("ratios_by_lane", node_rows([self._found], self._record.origins))

    def _frame(self, name: str, rows: Iterable[dict[str, Value]]) -> DataFrame:
        found = frame(Table(name, "", tuple(rows)))
        found.attrs |= {**self._attrs, "table": name}
        return found

    @property
    def figures(self) -> dict[str, Any]:
        """Every figure by the names of the columns of `Run.comparisons`."""
        return dict(*comparison_rows([self._found], self._record.origins))

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw the pairs, the ratio, its interval and the margin in the current style of matplotlib; return the axes.

        Args:
            ax: axes to draw into; None: the current ones of pyplot.
        """
        from matplotlib import pyplot as plt
        from matplotlib.ticker import MaxNLocator, NullLocator, ScalarFormatter

        axes = ax if ax is not None else plt.gca()
        pairs, margin = self.pairs, 1 + float(self.figures["equivalence_margin"] or self._record.plan.suite.margin)
        axes.axvspan(1 / margin, margin, alpha=0.15, color="gray", lw=0, label=f"margin, {margin - 1:.3g}")
        axes.axvline(1, color="gray", lw=1, ls="--")
        axes.plot(pairs["ratio"], [0.1] * len(pairs), "o", mfc="none", ls="", label=f"{len(pairs)} pairs")
        if self.ratio is not None:
            low, high = self.interval or (self.ratio, self.ratio)
            axes.errorbar([self.ratio], [0], xerr=[[self.ratio - low], [high - self.ratio]], fmt="o", capsize=4,
                          label=f"ratio {ratio_texts([self.ratio])[0]}" + (f", {self._found.coverage} interval"
                                                             if self.interval else ""))
        axes.set(xscale="log", yticks=[], ylim=(-0.15, 0.3),
                 title=f"{self.candidate}\nagainst {self.baseline}: {self._found.spoken}",
                 xlabel=f"ratio of {METRICS[self.metric].noun} ({self.figures['origin']}), log scale")
        axes.xaxis.set_major_locator(MaxNLocator(5))
        axes.xaxis.set_major_formatter(ScalarFormatter())
        axes.xaxis.set_minor_locator(NullLocator())
        axes.legend(loc="upper right", fontsize="small")
        return axes

    def __repr__(self) -> str:
        state = f"; the record {self._attrs['state']}" if self._attrs["unverified"] else ""
        return comparison_sentence(self._found) + state

    def _repr_html_(self) -> str:
        state = f": it {self._attrs['state']}" if self._attrs["unverified"] else ""
        return displayed(self._record, f"{self._attrs['record']}{state}", self._found)


def displayed(record: Record, caption: str, found: Compared | None = None) -> str:
    """Return a comparison, or the cells of a record, as HTML for a notebook."""
    return str(registry.part("display", "notebook")(record, found, caption))
