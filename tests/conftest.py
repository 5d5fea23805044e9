"""Tests that import nothing from `tests` have its environment, too."""

import tests  # noqa: F401
