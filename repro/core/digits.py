"""Digits as words, for names that have letters only."""

from __future__ import annotations

DIGITS = ("Zero", "One", "Two", "Three", "Four", "Five", "Six", "Seven", "Eight", "Nine")


def spelled(number: int) -> str:
    """Return the digits of a number that is not negative as words: 12 is `OneTwo`."""
    return "".join(DIGITS[int(digit)] for digit in str(number))
