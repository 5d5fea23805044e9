"""The terms of a second execution: declared before it runs, and kept in its plan."""

from __future__ import annotations

from pydantic import Field

from repro.core.frozen import Frozen
from repro.stats.replication import looks_up_to
from repro.stats.sequential import LookLevel


class Terms(Frozen):
    """The terms of a second execution."""

    record: str = Field("", pattern="^([0-9a-f]{64})?$")
    """Hash of the figures of the record that is reproduced."""
    pairs: int = Field(ge=1)
    """New pairs, or trials of one cell."""
    margin: float = Field(gt=0, le=1)
    """Relative change of the claim that counts as the same: 0.05 for 1 / 1.05 to 1.05."""
    interaction: float = Field(0.0, ge=0, le=1)
    """Standard deviation, over sessions, of a cell's own share in the log ratio."""
    power: float | None = Field(None, ge=0, le=1)
    """Least probability over the claims that an unchanged claim is found to be reproduced. None: unknown, because the
    record's figures do not spread or there is none."""
    until_settled: bool = False
    """Judged at the looks up to its pairs, and ended by the first that answers."""

    @property
    def looks(self) -> tuple[LookLevel, ...]:
        """The looks at which it is judged; (): once, with all pairs."""
        return looks_up_to(self.pairs) if self.until_settled else ()

    @property
    def look_words(self) -> str:
        """`5, 8, 10`."""
        return ", ".join(str(look.n) for look in self.looks)
