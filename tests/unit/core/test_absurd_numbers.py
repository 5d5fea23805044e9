"""Numbers that no run writes are refused wherever they stand, and nothing else is taken for one."""

from __future__ import annotations

import json

import pytest

from repro.core.errors import OutputError
from repro.core.files import refuse_absurd

TEXT = r'"hash": "8e12345678901234567890", "quoted": "a \" 1e999 \\", "after": 1'


@pytest.mark.parametrize("number", [
    "NaN", "Infinity", "-Infinity", "1e101", "1E+101", "-2.5e999", "1e0100000", "9223372036854775809",
    "-92233720368547758070", "1" + "0" * 101 + ".0"])
@pytest.mark.parametrize("around", ["{%s, \"x\": #}", "{\"x\": [1, #], %s}", "[#]", "#"])
def test_an_absurd_number_is_refused(number: str, around: str) -> None:
    with pytest.raises(OutputError, match="a number that no run writes"):
        refuse_absurd("file", around.replace("%s", TEXT).replace("#", number).encode())


@pytest.mark.parametrize("number", [
    "1e-300", "0.00033333333333333335", "-0.12345678901234567890123", "9223372036854775807", "1e100", "0." + "3" * 60,
    "4611686018427387904", "1.7976931348623157e+99"])
def test_a_number_of_a_run_is_not(number: str) -> None:
    text = f"{{{TEXT}, \"x\": [{number}]}}"
    assert json.loads(text)["after"] == 1
    refuse_absurd("file", text.encode())
