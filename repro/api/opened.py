"""A record as an object: its tables as data frames, its comparisons, and what the commands do with it."""

from __future__ import annotations

import tempfile
import weakref
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from repro.api.comparison import Comparison, displayed
from repro.api.frames import Frames, described
from repro.bundle.source import EXPERIMENT, expanded, folder_name, is_foreign, open_record
from repro.core.errors import OutputError, UsageError
from repro.record.folder import index
from repro.record.folder.store import Record, read_record

if TYPE_CHECKING:
    from pandas import DataFrame

    from repro.bundle.verify_files import Verification

SHOWN = 3
"""Modified files that an error names."""


class Run:
    """A record: a run folder, a bundle, an MLflow experiment, or several runs of one suite together.

    Nothing is read before it is asked for. `repro.open` makes it.
    """

    def __init__(self, places: Sequence[Path], *, unverified: bool = False) -> None:
        """Open a record; see `repro.open`."""
        with ExitStack() as stack:
            for place in places:
                if place.is_dir():  # before it is copied: it may be a whole home
                    _require_run(place, place)
            roots = [stack.enter_context(open_record(place)) for place in places]
            states = [_state(root, place) for root, place in zip(roots, places, strict=True)]
            for place, state in zip(places, states, strict=True):
                if state and not unverified:
                    raise OutputError(f"{place}: {state}; request it again, or open it with unverified=True, which its "
                                      "frames then say")
            self._places, self._root = list(places), roots[0]
            if len(roots) > 1:
                self._root = _joined(roots, Path(stack.enter_context(tempfile.TemporaryDirectory())))
            self._close = weakref.finalize(self, stack.pop_all().close)
        self.unverified = any(states)
        """A file is not as the run sealed it; its frames and comparisons say so."""
        stored = any(EXPERIMENT.fullmatch(str(place)) and not place.exists() for place in places)
        self.state = next((state for state in states if state), (
            "rebuilt from MLflow, which keeps no index" if stored else "unmodified since it was sealed")
            + ", not derived again")
        """State of the files: unmodified, modified or not sealed. `verify` derives every figure from the logs again."""

    @property
    def name(self) -> str:
        """Name of the run folder, the bundle or the experiment."""
        return folder_name(self._places[0]) + (f" and {len(self._places) - 1} more" if len(self._places) > 1 else "")

    @property
    def path(self) -> Path:
        """The run folder; of a bundle or an experiment a private copy, which goes with this object."""
        return self._root

    @cached_property
    def record(self) -> Record:
        """The record in the project's own types; not part of the public interface."""
        return read_record(self._root)

    @cached_property
    def tables(self) -> Frames:
        """Every table by its name; `run.tables["phases"]`."""
        return Frames(self.record, self._attrs)

    @property
    def _attrs(self) -> Mapping[str, Any]:
        return {"record": self.name, "state": self.state, "unverified": self.unverified}

    @property
    def trials(self) -> DataFrame:
        """One row per trial."""
        return self.tables["trials"]

    @property
    def evaluations(self) -> DataFrame:
        """One row per evaluation of a trial."""
        return self.tables["evaluations"]

    @property
    def steps(self) -> DataFrame:
        """One row per step of a trial, read from the logs."""
        return self.tables["steps"]

    @property
    def pairs(self) -> DataFrame:
        """One row per pair of trials with one seed."""
        return self.tables["pairs"]

    @property
    def cells(self) -> DataFrame:
        """One row per cell."""
        return self.tables["cells"]

    @property
    def comparisons(self) -> DataFrame:
        """One row per verdict, the declared contrast first."""
        return self.tables["comparisons"]

    @property
    def warnings(self) -> DataFrame:
        """One row per warning about the machine and the run."""
        return self.tables["warnings"]

    @cached_property
    def environment(self) -> Mapping[str, Any]:
        """Machine, libraries, settings and data of the run, as environment.json has them; `nodes`: its computers."""
        record = self.record
        return record.environment.model_dump(mode="json", by_alias=True) | {
            "nodes": record.nodes.model_dump(mode="json", by_alias=True)}

    def describe(self, name: str) -> DataFrame:
        """Return one row per column of a table: its type, its unit and what it holds."""
        return described(self.tables[name])

    def compare(
        self, candidate: str | Mapping[str, Any] | None = None, baseline: str | Mapping[str, Any] | None = None,
        metric: str | None = None, margin: float | None = None,
    ) -> Comparison:
        """Compare two cells; without arguments, the declared contrast.

        A comparison that the suite did not declare is exploratory: it has every figure and no verdict.

        Args:
            candidate, baseline: a cell each, by label, id, pattern (`"engine=ddp,processes=2"`) or factors.
            metric: None: that of the suite.
            margin: largest difference that counts as the same, 0.05 for 5 %; None: that of the suite.

        Raises:
            UsageError: one of them means no cell or several, or the two have no pairs or no values of the metric.
        """
        for name, value, kinds in (("candidate", candidate, str | Mapping), ("baseline", baseline, str | Mapping),
                                   ("metric", metric, str), ("margin", margin, int | float)):
            if value is not None and not isinstance(value, kinds):
                raise UsageError(f"{name} {value!r}: is {type(value).__name__}; see help(repro.Run.compare)")
        from repro.compare.findings import findings
        from repro.compare.two_cells import compare_cells

        if candidate is None and baseline is None:
            first = next(iter(findings(self.record).comparisons), None)
            if first is None:
                raise UsageError(f"{self.name}: the suite declares no contrast; name candidate and baseline")
            candidate, baseline = candidate or first.candidate, baseline or first.baseline
        if candidate is None or baseline is None:
            raise UsageError("name candidate and baseline, or neither for the declared contrast")
        found = compare_cells(self.record, candidate, baseline, metric, margin)
        return Comparison(found, self.record, self._attrs)

    def verify(self) -> Verification:
        """Check that the record is complete and unmodified, and derive every result from its log again."""
        from repro.bundle.verify import verify_opened

        self._one("verify")
        return verify_opened(self._root, self._places[0])

    def report(self, to: str | Sequence[str] = "html", out: str | Path | None = None) -> list[str]:
        """Write the report, as `repro report` does; return the paths and URLs written.

        Args:
            to: names of reporters; a text may have several, comma-separated.
            out: folder; None: the run's, of a bundle BUNDLE-report in the working directory.
        """
        from repro.bundle.verify import unsound
        from repro.reporting import write_reports

        names = to.split(",") if isinstance(to, str) else to
        if isinstance(names, int | float) or not all(isinstance(name, str) and name for name in names):
            raise UsageError(f"to {to!r}: names of reporters are texts; `repro list reporters` lists them")
        foreign = len(self._places) > 1 or is_foreign(self._places[0])
        place = Path(out) if out is not None else Path(f"{folder_name(self._places[0])}-report") if foreign else None
        changed = unsound(self._places[0], self._root) if len(self._places) == 1 else ""
        return write_reports(self._root, names, place, changed=changed)

    def bundle(self, out: str | Path | None = None, license: str = "not stated") -> Path:  # noqa: A002  # the option's
        """Pack the run into one file for others, as `repro bundle` does; return its path."""
        from repro.bundle.contents import make_bundle

        self._one("bundle")
        return make_bundle(self._root, Path(out) if out is not None else None, license).path

    def _one(self, what: str) -> None:
        if len(self._places) > 1:
            raise UsageError(f"{what} takes one run at a time; open each alone")

    def __repr__(self) -> str:
        record = self.record
        plan = record.plan
        origins = sorted({*record.origins.values()} - {"measured"})
        merged = [note for note in plan.notes if note.startswith("one record of")]
        return (f"Run {self.name}: suite {plan.suite.suite}, {len(record.results)} of {record.planned} trials, "
                f"{'; '.join([', '.join([f'{len(plan.cells)} cells', *origins]), *merged, self.state])}")

    def _repr_html_(self) -> str:
        return displayed(self.record, f"{self!r}")


def _state(root: Path, place: Path) -> str:
    """Return in what a record is not as its run sealed it; "" if in nothing."""
    _require_run(root, place)
    names = index.altered(root)
    if names == [index.NAME]:
        return f"has no index ({index.NAME}): it runs, was killed, or the file was removed"
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return f"was modified after it was sealed: {', '.join(names[:SHOWN])}{more}" if names else ""


def _require_run(root: Path, place: Path) -> None:
    if not (root / "plan.json").is_file():
        raise OutputError(f"{place}: is neither a run folder nor a bundle (it holds no plan.json); repro list runs "
                          f"{place} shows those below it")


def _joined(roots: Sequence[Path], scratch: Path) -> Path:
    """Merge runs of one suite into one record."""
    from repro.compare.runs.merge import sections

    found = sections(roots, scratch / "runs")
    if len(found) > 1:
        raise UsageError(f"these runs are no single record: {found[1].sources[0]}: {found[1].why}; open each alone")
    return found[0].record.folder.root


def open(  # noqa: A001  # its name is repro.open
    source: str | Path | Sequence[str | Path], *, unverified: bool = False
) -> Run:
    """Open a record, as `repro.open`.

    It compares the hashes of all files with the record's index; `Run.verify` derives the figures again.

    Args:
        source: a run folder, a bundle, a pattern (`runs/quick*`), `mlflow:EXPERIMENT` or the address of an experiment
            that this tool wrote; or several runs of one suite on one machine, which become one record.
        unverified: open a record that was modified, too; `attrs["unverified"]` of its frames is then True.

    Raises:
        OutputError: it is no run folder, or it was modified or is damaged.
        UsageError: a pattern matches nothing, or several runs are different experiments.
        TrackingError: the tracking store does not answer, or its record is incomplete.
    """
    given = list(source) if isinstance(source, Iterable) and not isinstance(source, str) else [source]
    for item in given:
        if not isinstance(item, str | Path):
            raise UsageError(f"{item!r}: is no path of a run folder or bundle")
    places = expanded(given)
    if not places:
        raise UsageError("name a run folder, a bundle or an MLflow experiment")
    return Run(places, unverified=unverified)
