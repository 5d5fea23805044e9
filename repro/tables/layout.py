"""A table as its readers see it: columns with heads, laid over rows of exact values; every format prints this text."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from repro.core.markdown import escaped
from repro.core.numbers import ratio_texts, significant

from .text import shortened
from .values import Row, as_number, plain

NOTHING = "-"
SAID_ONCE = ("Figures", "Ratio of", "Division", "Record")
"""Headers of columns that become words above the table if every row says the same."""


@dataclass(frozen=True, slots=True)
class TextTable:
    """A table of text; the `numeric` columns are right-aligned."""

    title: str
    headers: tuple[str, ...]
    numeric: tuple[bool, ...]
    rows: tuple[tuple[str, ...], ...]

    def without(self, heads: Collection[str]) -> TextTable:
        """Return the table without some of its columns."""
        return self._of([place for place, head in enumerate(self.headers) if head not in heads])

    def first(self, count: int) -> TextTable:
        """Return the table with its first rows only."""
        return replace(self, rows=self.rows[:count])

    def _of(self, places: Sequence[int]) -> TextTable:
        return TextTable(self.title, tuple(self.headers[place] for place in places),
                         tuple(self.numeric[place] for place in places),
                         tuple(tuple(row[place] for place in places) for row in self.rows))


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its head, and the text that it shows of a row of exact values."""

    head: str
    text: Callable[[Row], str]
    numeric: bool = True


def laid(title: str, columns: Sequence[Column], rows: Iterable[Row]) -> TextTable:
    """Show rows in columns."""
    return TextTable(title, tuple(item.head for item in columns), tuple(item.numeric for item in columns),
                     tuple(tuple(item.text(row) for item in columns) for row in rows))


def words(head: str, key: str) -> Column:
    """Return a column of text: labels on one line, shortened; a dash for none."""
    return Column(head, lambda row: name(str(row[key])) if row[key] else NOTHING, numeric=False)


def sentence(head: str, key: str) -> Column:
    """Return a column of text that is never shortened; a dash for none."""
    return Column(head, lambda row: str(row[key] or NOTHING), numeric=False)


def figure(head: str, key: str, digits: int = 3) -> Column:
    """Return a column of numbers with so many significant digits."""
    return Column(head, lambda row: rounded(as_number(row[key]), digits))


def decimals(head: str, key: str, places: int) -> Column:
    """Return a column of numbers with so many decimals."""
    return Column(head, lambda row: NOTHING if row[key] is None else f"{row[key]:.{places}f}")


def count(head: str, key: str, of: str = "") -> Column:
    """Return a column of counts: `5`, or `5/6` with the key of what they are counted of."""
    return Column(head, lambda row: NOTHING if row[key] is None else f"{row[key]}/{row[of]}" if of else str(row[key]))


def ends(head: str, key: str) -> Column:
    """Return a column of intervals: `0.81 to 0.93 (95 %)` from the low, high and level of `key`."""
    return Column(head, lambda row: span([rounded(as_number(row[f"{key}_{end}"])) for end in ("low", "high")],
                                         as_number(row[f"{key}_level"])))


def ratio_and_ends(head: str, key: str) -> tuple[Column, Column]:
    """Return the columns of a ratio and of its interval, with as many decimals as each needs to differ from 1."""
    def texts(row: Row) -> list[str]:
        known = (as_number(row[name]) for name in (key, f"{key}_low", f"{key}_high"))
        return ratio_texts([value for value in known if value is not None])

    def ratio(row: Row) -> str:
        return next(iter(texts(row)), "no result" if row.get("refused") else NOTHING)

    return Column(head, ratio), Column("Interval", lambda row: span(texts(row)[1:], as_number(row[f"{key}_level"])))


def span(texts: Sequence[str], level: float | None) -> str:
    """Format the ends of an interval as `0.81 to 0.93 (95 %)`; a dash without one."""
    return NOTHING if level is None else f"{' to '.join(texts)} ({100 * level:.3g} %)"


def compact(table: TextTable) -> tuple[TextTable, str]:
    """Move what every row repeats into words, and drop the columns in which no row has a value.

    Returns:
        The table, and the words: `Figures: measured.`; "" if nothing was left out.
    """
    keep, said, blank, headers = [], [], [], list(table.headers)
    rows = [list(row) for row in table.rows]
    for place, header in enumerate(table.headers):
        values = {row[place] for row in rows}
        if values == {NOTHING}:
            blank.append(header)
            continue
        if header in SAID_ONCE and len({value.removesuffix(" *") for value in values}) == 1:
            said.append(f"{header}: {min(values).removesuffix(' *')}.")
            if any(value.endswith(" *") for value in values):
                for row in rows:
                    row[0] += " *" if row[place].endswith(" *") else ""
            continue
        levels = {value.rpartition(" (")[2] for value in values if value.endswith(" %)")}
        if header == "Interval" and len(levels) == 1 and all(
                value == NOTHING or value.endswith(" %)") for value in values):
            headers[place] = f"Interval ({min(levels)}".replace(" %", "\N{NO-BREAK SPACE}%")
            for row in rows:
                row[place] = row[place].rpartition(" (")[0] or row[place]
        keep.append(place)
    said += [f"Columns left out, which no row fills: {', '.join(dict.fromkeys(blank))}."] if blank else []
    short = TextTable(table.title, tuple(headers), table.numeric, tuple(tuple(row) for row in rows))
    return short._of(keep), " ".join(said)


def name(text: str) -> str:
    """Shorten a label to one line."""
    return shortened(" ".join(plain(text).split()))


def rounded(value: float | None, digits: int = 3) -> str:
    """Round to three significant digits; a dash if unknown."""
    return NOTHING if value is None else significant(value, digits)


def as_markdown(table: TextTable, safe: Callable[[str], str] = escaped) -> str:
    """Return a pipe table.

    Args:
        safe: escapes a text.
    """
    rule = ["---:" if flush else "---" for flush in table.numeric]
    lines = [[safe(head) for head in table.headers], rule, *([safe(cell) for cell in row] for row in table.rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
