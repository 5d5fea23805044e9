"""What `repro bundle`, `repro verify` and `repro diff` do, without the command line."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from repro.bundle.contents import Bundled, bundle, default_name
from repro.bundle.difference import Difference, differences, text_of
from repro.bundle.verify import Verified, opened, verify
from repro.core.errors import OutputError, RecordModified
from repro.record.store import read_record


def make_bundle(run: Path, out: Path | None, licence: str) -> Bundled:
    """Verify the run, pack it, verify the bundle.

    Raises:
        RecordModified: the run was altered: a bundle would give it a new, valid index.
        OutputError: it cannot be read or written, or cannot leave the machine whole.
    """
    before = verify(run)
    if not before.sound:
        raise RecordModified(f"{run}: {before.problems[0].text()}; {len(before.problems)} problems in all, nothing was "
                         "bundled (`repro verify` says all)")
    if not run.is_dir():
        raise OutputError(f"{run}: is a bundle already")
    target = out or Path(default_name(read_record(run)))
    made = bundle(run, target, licence)
    after = verify(target)
    if not after.sound:
        target.unlink()
        raise OutputError(f"{run}: a credential or a path stands where the record needs it "
                          f"({after.problems[0].text()}); nothing was bundled")
    return made


@dataclass(frozen=True, slots=True)
class Compared:
    """What differs between two records."""

    first: str
    second: str
    found: tuple[Difference, ...]

    def as_json(self) -> dict[str, Any]:
        return {"schema": 1, "first": self.first, "second": self.second,
                "differences": [item.as_json() for item in self.found]}

    def text(self) -> str:
        return text_of(self.found, self.first, self.second)


def diff(first: Path, second: Path) -> Compared:
    """Of two run folders or bundles.

    Raises:
        OutputError: one of them is none.
    """
    with opened(first) as one, opened(second) as other:
        return Compared(str(first), str(second), tuple(differences(read_record(one), read_record(other))))


__all__ = ["Bundled", "Compared", "Verified", "diff", "make_bundle", "verify"]
