"""Shares that exceed a limit are shown above it."""

from __future__ import annotations

import pytest

from repro.core.numbers import percent_above


@pytest.mark.parametrize(("share", "limit", "decimals", "text"), [
    (0.0052, 0.005, 1, "0.52 %"), (0.00501, 0.005, 1, "0.501 %"), (0.007, 0.005, 1, "0.7 %"),
    (0.0204, 0.02, 0, "2.04 %"), (0.25, 0.02, 0, "25 %"), (0.005 + 1e-12, 0.005, 1, "0.500000 %"),
])
def test_a_share_above_its_limit_is_seen_to_be(share: float, limit: float, decimals: int, text: str) -> None:
    assert percent_above(share, limit, decimals) == text
