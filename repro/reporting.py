"""The class of a reporter plug-in, which writes a record in another form; loading reporters by name and using them."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from repro.compare.findings import findings
from repro.compare.runs.merge import Section
from repro.core import registry
from repro.core.errors import OutputError, ReproError, UsageError
from repro.record.folder.store import Record, read_record
from repro.seams.plugin import Plugin


class Reporter(Plugin):
    """Writes a record in another form; may be called at any time and gives the same result for the same record."""

    title: ClassVar[str]
    unpublishable: ClassVar[str] = ""
    """Reason why it writes no published results; "": its format is in `repro.reporters.published.formats`, or it has a
    method `write_published(imports, own, out)`, which writes imports, and own runs separately, and returns the paths.
    """

    narrows: ClassVar[bool] = False
    """True: it has an option `only`, whose value "primary" leaves out what does not belong to the declared contrast."""

    of_each_phase: ClassVar[bool] = False
    """True: a run that was tuned is written as two records, its tuning first; False: as the scored one, which shows it.
    """

    @abstractmethod
    def write(self, record: Record, out: Path) -> list[str]:
        """Write the record, complete or not, and return the paths or URLs.

        Raises:
            OutputError: `out` cannot be written.
            TrackingError: a server did not accept it; the record on disk is not affected.
        """

    def write_sections(self, sections: Sequence[Section], out: Path) -> list[str]:
        """Write runs that cannot be merged as one document with a section each, if the format has such a document.

        The report of each run is written in addition.

        Raises:
            OutputError: `out` cannot be written.
        """
        return []


def write_reports(
    run: Path, targets: Sequence[str], out: Path | None, only: str | None = None, prefix: str = "",
    changed: str = "",
) -> list[str]:
    """Write the record of `run` with each of the reporters `targets`; return the paths and URLs written.

    Args:
        only: option of reporters that narrow.
        changed: in what the record contradicts itself; told with the files that changed since it was sealed.
        prefix: letters for reporters with an option `prefix`, which keep the names of several records apart.

    Raises:
        UnknownName: there is no such reporter.
        OutputError: `run` is no run folder, or `out` cannot be written.
        TrackingError: a tracking server rejected the record.
    """
    named = reporters(targets, only, prefix)
    record = read_record(run)
    if changed:
        record.derived["alterations"] = changed
    return [place for name, item in named.items()
            for part in (findings(record).phases if item.of_each_phase else (record,))
            for place in _written(name, item, part, out or part.folder.reports)]


def _written(name: str, item: Reporter, record: Record, out: Path) -> list[str]:
    """Write a record; whatever a third party's reporter raises, the user learns whose it is."""
    try:
        return list(item.write(record, out))
    except Exception as error:
        if isinstance(error, ReproError) or registry.entry_point("reporter", name) is None:
            raise
        package = registry.distribution("reporter", name)
        raise OutputError(f"reporter {name!r} of package {package}: {type(error).__name__}: {error}") from error


def reporters(targets: Sequence[str], only: str | None = None, prefix: str = "") -> dict[str, Reporter]:
    """Load the reporters of --to, by name, as `reporter` does.

    Raises:
        UsageError: --to names none.
    """
    names = [name.strip() for name in targets if name.strip()]
    if not names:
        raise UsageError("--to names no reporter; see `repro list reporters`")
    return {name: reporter(name, only, prefix) for name in names}


def reporter(name: str, only: str | None = None, prefix: str = "") -> Reporter:
    """Load a reporter with its default options, and with `only` and `prefix` if it knows them.

    Raises:
        UsageError: the prefix has other characters than letters.
    """
    if prefix and not re.fullmatch("[A-Za-z]+", prefix):
        raise UsageError(f"--prefix {prefix}: names of macros have letters only, as in --prefix Large")
    kind: Any = registry.load("reporter", name)
    options = {"only": only} if only and kind.narrows else {}
    options |= {"prefix": prefix} if prefix and "prefix" in kind.model_fields else {}
    found = kind(**options)
    assert isinstance(found, Reporter)
    return found
