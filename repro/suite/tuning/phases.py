"""The two phases of a suite with `tune`: the suite of the tuning trials, and the suite of the scored trials."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from repro.core.random_streams import Streams
from repro.suite.model import Suite
from repro.suite.tune import Setting, Tuned
from repro.suite.tuning.contenders import Contender


def tuning_seed(suite: Suite) -> int:
    """Return the master seed of the tuning trials: as declared, else from a stream of that of the scored trials.

    No two master seeds share a stream, so no tuning trial has the weights or data of a scored one.
    """
    assert suite.tune is not None and suite.master_seed is not None
    if suite.tune.master_seed is not None:
        return suite.tune.master_seed
    return Streams(suite.master_seed, 0).seed("tuning-master-seed")


def tuning_suite(suite: Suite) -> Suite:
    """Return the suite whose trials tune the contenders of `suite`: it asks for no comparison.

    Args:
        suite: as declared, with the master seed of the scored trials.
    """
    assert suite.tune is not None
    return suite.model_copy(update={
        "master_seed": tuning_seed(suite), "seeds": suite.tune.seeds, "baseline": {}, "primary": None,
        "contrasts": (), "sequential": None, "horizon": None,
        "tune": suite.tune.model_copy(update={"master_seed": None}),  # the suite's own now
    })


def scored_suite(
    suite: Suite, chosen: Sequence[tuple[dict[str, Any], dict[str, Any] | None]], record: str = ""
) -> Suite:
    """Return the suite that scores every contender with the setting chosen for it.

    Args:
        suite: as declared, with the master seed of the scored trials.
        chosen: (levels, setting) of every contender; without a setting it is not scored.
        record: sha256 of the tuning that chose them; "": they are a draft, for a plan.
    """
    assert suite.tune is not None and suite.master_seed is not None
    tuned = Tuned(tune=suite.tune, master_seed=tuning_seed(suite), scored_seed=suite.master_seed, record=record) \
        if record else None
    settings = tuple(Setting(where=levels, set=setting) for levels, setting in chosen)  # type: ignore[call-arg]
    return suite.model_copy(update={"tune": None, "settings": settings, "tuned": tuned})


def drafted(found: Sequence[Contender]) -> list[tuple[dict[str, Any], dict[str, Any] | None]]:
    """Return the first setting of every contender: which will be chosen is not known before the tuning."""
    return [(item.levels, item.settings[0]) for item in found]
