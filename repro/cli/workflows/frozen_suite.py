"""The frozen suite of a tuned run as YAML text: what is published, read and rerun."""

from __future__ import annotations

import textwrap

import yaml

from repro.record.tuning import RULE, Tuning
from repro.suite.model import Suite


def frozen_text(suite: Suite, tuning: Tuning) -> str:
    """Return the YAML text of a suite with its chosen settings, as `repro run` reads it."""
    data = suite.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    assert suite.tuned is not None
    data["tuned"] = suite.tuned.model_dump(mode="json", by_alias=True, exclude_none=True)  # defaults may change
    first = {"suite": data.pop("suite"), **data}
    text = (f"The choice of {tuning.cost.trials} tuning trials of {sum(item.budget for item in tuning.contenders)} "
            f"settings. Of every contender {RULE}. `settings` is the choice; `tuned` says where it comes from.")
    head = textwrap.fill(text, 100, initial_indent="# ", subsequent_indent="# ")
    return f"{head}\n{yaml.safe_dump(first, sort_keys=False, allow_unicode=True, width=110)}"
