"""Tables of a record as pandas data frames, with the types that `tables.columns` states; the steps, read from logs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from repro.core.errors import ShownAsLine
from repro.record.derive.trial_log import TrialLog
from repro.record.folder.store import Record
from repro.record.log.reading import read_log
from repro.record.log.schema import RankSteps, StepBlock
from repro.record.result.results import Result
from repro.tables.columns import column_facts
from repro.tables.tables import Table, table, table_names
from repro.tables.values import plain

if TYPE_CHECKING:
    from pandas import DataFrame

DTYPES = {str: "string", int: "Int64", bool: "boolean", float: "float64"}
"""Type of a column -> dtype, which has a missing value."""
STEPS = "steps"
"""Read from the logs; of the exports Parquet has it."""
STEP_COLUMNS = ("trial_id", "cell_id", "cell", "origin", "seed", "step", "own_seconds", "input_seconds", "loss",
                "slowest_rank_seconds", "fastest_rank_seconds")


class NoSuchTable(ShownAsLine, KeyError):
    """A table that no record has."""

    __str__ = Exception.__str__  # of KeyError it is quoted


class Frames(Mapping[str, "DataFrame"]):
    """Every table of a record by its name, made when it is first asked for; a caller gets a copy."""

    def __init__(self, record: Record, attrs: Mapping[str, Any]) -> None:
        self._record, self._attrs = record, attrs
        self._made: dict[str, DataFrame] = {}

    def __getitem__(self, name: str) -> DataFrame:
        """Return a table.

        Raises:
            KeyError: there is no such table.
        """
        if name not in self._made:
            if name not in set(self):
                raise NoSuchTable(f"{name}: no such table; tables: {', '.join(self)}")
            found = step_frame(self._record) if name == STEPS else frame(table(self._record, name))
            found.attrs |= {**self._attrs, "table": name}
            self._made[name] = found
        return self._made[name].copy(deep=name != STEPS)  # of millions of rows the values are shared

    def __iter__(self) -> Iterator[str]:
        return iter((*table_names(), STEPS))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __repr__(self) -> str:
        return f"tables: {', '.join(self)}"


def frame(found: Table) -> DataFrame:
    """Return a table with a dtype for each column; an unknown value is missing."""
    import pandas

    return pandas.DataFrame({
        name: pandas.Series([row.get(name) for row in found.rows], dtype=DTYPES[facts.kind])
        for name, facts in found.described.items()})


def described(found: DataFrame) -> DataFrame:
    """Return one row per column of a frame: its type, unit and words."""
    import pandas

    facts = [column_facts(found.attrs.get("table", ""), str(name)) for name in found.columns]
    return pandas.DataFrame({"column": list(map(str, found.columns)), "dtype": [str(kind) for kind in found.dtypes],
                             "unit": [item.unit for item in facts], "words": [item.words for item in facts]})


def step_frame(record: Record) -> DataFrame:
    """Return one row per step of every trial whose log is there; texts are categories, so that rows stay small."""
    import pandas

    parts = [(item, found) for item in record.results if (found := _steps(record, item)) is not None]
    counts = [len(found["step"]) for _, found in parts]
    texts = {"trial_id": [item.trial_id for item, _ in parts], "cell_id": [item.cell_id for item, _ in parts],
             "cell": [plain(record.cell(item.cell_id).label) for item, _ in parts],
             "origin": [record.origins[item.cell_id] for item, _ in parts]}
    columns: dict[str, Any] = {name: pandas.Categorical(values).repeat(counts) for name, values in texts.items()}
    columns["seed"] = np.repeat(np.asarray([item.repeat for item, _ in parts], dtype=np.int64), counts)
    for name in STEP_COLUMNS[5:]:
        columns[name] = np.concatenate([found.pop(name) for _, found in parts]) if parts else np.empty(0)
    return pandas.DataFrame(columns, copy=False)


def _steps(record: Record, item: Result) -> dict[str, np.ndarray] | None:
    """Return the steps of one trial by column; None if its log has none."""
    log = TrialLog(read_log(record.folder.log(item.trial_id, item.attempt), skip_malformed=True))
    blocks, ranks = log.all(StepBlock), log.all(RankSteps)
    if not blocks:
        return None
    own = {"own_seconds": [block.seconds for block in blocks],
           "input_seconds": [block.input_seconds for block in blocks], "loss": [block.loss for block in blocks],
           "slowest_rank_seconds": [block.slowest_seconds for block in ranks],
           "fastest_rank_seconds": [block.fastest_seconds for block in ranks]}
    step = np.concatenate([block.first + np.arange(len(block.seconds)) for block in blocks])
    found = {"step": step}
    for name, series in own.items():
        values = np.concatenate([np.asarray(values, dtype=np.float64) for values in series]) if series else np.empty(0)
        found[name] = np.concatenate([values, np.full(max(0, len(step) - len(values)), np.nan)])[:len(step)]
    return found
