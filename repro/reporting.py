"""The class of a reporter plug-in: it reads records and writes them in another form."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from repro.compare.merge import Section
from repro.core.errors import UsageError
from repro.published.store import Published
from repro.record.store import Record
from repro.seams.plugin import Plugin


class Reporter(Plugin):
    """Writes a record somewhere else, as often as asked, with the same result each time."""

    title: ClassVar[str]
    unpublishable: ClassVar[str] = ""
    """Why it writes no published results; "": it does, where it has `write_published`."""

    @abstractmethod
    def write(self, record: Record, out: Path) -> list[str]:
        """Write what there is; the paths or URLs written.

        Raises:
            OutputError: `out` cannot be written.
            TrackingError: a server did not take it; the record is complete all the same.
        """

    def write_published(self, imports: Sequence[Published], own: Sequence[Record], out: Path) -> list[str]:
        """Write results of others, and runs of one's own apart from them.

        Raises:
            UsageError: this reporter does not.
            OutputError: `out` cannot be written.
        """
        raise UsageError(f"{type(self).__name__} writes no published results; --to html does")

    def write_sections(self, sections: Sequence[Section], out: Path) -> list[str]:
        """Write runs that do not stand in one record as one document with a section each, where the format has such a
        thing; each run's own report stands beside it in any case.

        Raises:
            OutputError: `out` cannot be written.
        """
        return []
