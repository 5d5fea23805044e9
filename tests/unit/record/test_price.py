"""The declared price of a run: read at its start, shown as cost to the target."""

from __future__ import annotations

import re
from dataclasses import replace
from html import unescape
from pathlib import Path

import pytest
from repro.reporters.html_page import render

from repro.compare import summarize
from repro.core.errors import UsageError
from repro.record.environment.environment import VARIABLE, Price, declared_price
from tests.records import make_record


def test_a_price_is_a_number_and_a_currency() -> None:
    assert declared_price({}) is None and declared_price({VARIABLE: " "}) is None
    assert declared_price({VARIABLE: "3.06 USD"}) == Price(per_hour=3.06, currency="USD")
    assert Price(per_hour=3.6, currency="EUR").text(100.0) == "0.1 EUR"


@pytest.mark.parametrize("stated", ["3.06", "USD", "-1 USD", "0 USD", "3.06 usd", "1e3 USD", "nan USD", "$3.06"])
def test_another_form_is_refused_with_an_example(stated: str) -> None:
    with pytest.raises(UsageError, match=r"REPRO_PRICE_PER_HOUR='3\.06 USD'"):
        declared_price({VARIABLE: stated})


def test_the_page_shows_the_cost_to_the_target_of_both_arms(tmp_path: Path) -> None:
    record = make_record(tmp_path / "run")
    assert "Cost to target" not in render(record)
    priced = replace(record, environment=record.environment.model_copy(
        update={"price": Price(per_hour=3600.0, currency="USD")}))  # a second costs one
    page = unescape(re.sub(r"<[^>]+>", " ", render(priced)))
    assert "Cost to target" in page and "at a declared 3600 USD an hour" in page
    primary = record.plan.suite.primary
    assert primary is not None
    medians = [summarize(cell, record.of_cell(cell.cell_id)).median for cell in record.plan.cells]
    assert sum(f"{median:.3g} USD" in page for median in medians if median) >= 2
