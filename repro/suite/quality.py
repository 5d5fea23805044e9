"""Words and derived figures of the quality by which trials are judged: accuracy, loss with its perplexity, tokens."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from repro.seams.training import Direction, TokenKind, Workload

Noun = Literal["accuracy", "loss", "quality"]
STEPS = "steps"
"""Unit of a program whose suite declares no batch: its steps cannot be counted as samples."""
LARGEST = 700.0
"""Nats above which exp overflows."""


@dataclass(frozen=True, slots=True)
class Quality:
    """Words and derived figures for one metric of one workload."""

    metric: str
    noun: Noun
    direction: Direction
    unit: str
    """Plural noun of its samples."""
    token: TokenKind | None
    """Kind of token, if the metric is the mean loss of a token in nats."""
    tokens_per_sample: int | None

    @property
    def counted(self) -> str:
        """Plural noun of what the progress of a training is counted in on axes and in tables: its samples by their own
        noun where they have tokens, steps where no batch is known."""
        return self.unit if self.tokens_per_sample or self.unit == STEPS else "samples"

    def derived(self, value: float | None) -> dict[str, float]:
        """Return the figures that follow from the metric: perplexity exp(loss), of bytes loss / ln 2 bits per byte."""
        if self.token is None or value is None or not abs(value) <= LARGEST:
            return {}
        bits = {"bits per byte": value / math.log(2)} if self.token == "byte" else {}
        return {"perplexity": math.exp(value), **bits}

    def columns(self, prefix: str, value: float | None) -> dict[str, str | int | float | bool | None]:
        """Return the derived figures under the names of columns, `PREFIXperplexity`; the same ones for any value."""
        found = self.derived(value)
        return {f"{prefix}{name.replace(' ', '_')}": found.get(name) for name in self.derived(0.0)}

    def words(self, value: float | None) -> str:
        """Return the derived figures as text: `perplexity 9.03, 3.17 bits per byte`; "" if there are none."""
        return ", ".join(f"perplexity {figure:.3g}" if name == "perplexity" else f"{figure:.3g} {name}"
                         for name, figure in self.derived(value).items())

    def tokens(self, samples: float | None) -> float | None:
        """Return samples, or samples a second, in tokens."""
        return None if samples is None or self.tokens_per_sample is None else samples * self.tokens_per_sample


PLAIN = Quality("", "quality", "higher", "samples", None, None)
"""A metric from which nothing follows."""


def quality_of(workload: Workload, metric: str) -> Quality:
    """Return the words for a metric of a workload, also if only a record describes it."""
    token = workload.token_losses.get(metric)
    direction = workload.metrics.get(metric, "higher")
    bounded = tuple(workload.ranges.get(metric, ())) == (0.0, 1.0) and direction == "higher"
    noun: Noun = "loss" if token else "accuracy" if bounded else "quality"
    return Quality(metric, noun, direction, workload.unit, token, workload.tokens_per_sample)


def common_noun(found: Iterable[Quality]) -> Noun:
    """Return the noun for all of them: their own if it is the same."""
    nouns = {item.noun for item in found}
    return nouns.pop() if len(nouns) == 1 else "quality"
