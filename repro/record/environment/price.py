"""The declared price of the machines of a run; a cost is this price times a measured time."""

from __future__ import annotations

import re
from collections.abc import Mapping

from pydantic import Field

from repro.core.errors import UsageError
from repro.core.frozen import Frozen

VARIABLE = "REPRO_PRICE_PER_HOUR"
FORM = re.compile(r"(\d{1,9}(?:\.\d{1,9})?) *([A-Z]{3})")


class Price(Frozen):
    """The price of all machines of a run together, declared by the user."""

    per_hour: float = Field(gt=0, allow_inf_nan=False)
    currency: str = Field(pattern=r"^[A-Z]{3}$")
    """ISO 4217."""

    def of(self, seconds: float) -> float:
        """Return the cost of some seconds, in the currency, as in DAWNBench: time times the machine's price."""
        return self.per_hour * seconds / 3600

    def text(self, seconds: float) -> str:
        """Return the cost of some seconds with its currency: `0.042 USD`."""
        return f"{self.of(seconds):.3g} {self.currency}"


def declared_price(environment: Mapping[str, str]) -> Price | None:
    """Return the price that the environment declares; None if there is none.

    Raises:
        UsageError: it has another form than `3.06 USD`, or is not positive.
    """
    stated = environment.get(VARIABLE, "").strip()
    if not stated:
        return None
    found = FORM.fullmatch(stated)
    if found is None or not float(found[1]) > 0:
        raise UsageError(f"{VARIABLE}={stated}: must be a price and a currency, as in {VARIABLE}='3.06 USD'")
    return Price(per_hour=float(found[1]), currency=found[2])
