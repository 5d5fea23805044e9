"""The class of a reporter plug-in: it reads records and writes them in another form."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from repro.compare.runs.merge import Section
from repro.record.folder.store import Record
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
