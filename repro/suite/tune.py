"""Declaration of a tuning in a suite: contenders, the search, one space for each contender, the rule of the choice.

A suite with `tune:` has two phases. The tuning tries settings of every contender, drawn beforehand; the scored phase
runs every contender with its best setting. Both are runs of their own, with seeds of their own.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np
from pydantic import Field, GetJsonSchemaHandler, StrictInt, model_validator

from repro.core.errors import nearest
from repro.core.random_streams import SEEDS_BELOW, Streams
from repro.suite.field_problem import FieldProblem, SuitePart, as_text
from repro.suite.metrics import METRICS

MOST_TRIALS = 1000
MOST_CHOICES = 1000
MOST_SETTINGS = 5000
LEAST_SEARCHES = 6
"""Fewest pairs that the exact sign-flip test can find a difference in: 2 / 2^6 is below 5 %."""
LARGEST_INT = 1 << 53
"""Largest whole number of a range: a share of a range is a float, which reaches no further one by one."""
Search = Literal["random", "halton", "grid"]
Ends = tuple[float, float]


TUNABLE = ("optimizer", "preconditioner", "schedule", "scaling", "batch", "engine", "comm", "parameters")
"""Parts of a trial whose fields may be tuned, but for the kind of a plug-in, which would be another contender."""
TUNABLE_ALONE = ("gradient_clip", "workload.label_smoothing")
TUNABLE_TEXT = f"fields of {', '.join(TUNABLE)}, and {', '.join(TUNABLE_ALONE)}"


class Axis(SuitePart):
    """The values of one field: a range, or a list of choices. A range has one of `log`, `linear` and `int`."""

    log: Ends | None = Field(None, description="[lowest, highest], uniform in the logarithm")
    linear: Ends | None = Field(None, description="[lowest, highest], uniform")
    int_: tuple[StrictInt, StrictInt] | None = Field(None, alias="int", description="[lowest, highest], whole numbers")
    choices: tuple[Any, ...] | None = Field(None, description="the values themselves; a plain list is the same")
    points: int | None = Field(None, ge=2, le=MOST_TRIALS, description="search: grid: values of a range, ends included")

    @classmethod
    def __get_pydantic_json_schema__(cls, core: Any, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """Return the schema for editors: a list of choices, or a range."""
        return {"anyOf": [{"type": "array", "minItems": 1}, handler(core)]}

    @model_validator(mode="before")
    @classmethod
    def _list(cls, data: Any) -> Any:
        return {"choices": data} if isinstance(data, list | tuple) else data

    @model_validator(mode="after")
    def _one_form(self) -> Axis:
        forms = [name for name in ("log", "linear", "int_", "choices") if getattr(self, name) is not None]
        if len(forms) != 1:
            raise FieldProblem("must be a list of choices, or a range: {log: [lo, hi]}, {linear: [lo, hi]} or "
                               "{int: [lo, hi]}")
        if self.choices is not None:
            self._check_choices(self.choices)
            return self
        name, (low, high) = forms[0].rstrip("_"), self.ends
        if name == "int" and max(abs(low), abs(high)) > LARGEST_INT:
            raise FieldProblem(f"a search cannot draw whole numbers beyond 2^53 = {LARGEST_INT:,}; give smaller ends",
                               (name, int(abs(high) > LARGEST_INT)))
        if name == "log" and low <= 0:
            raise FieldProblem(f"{low:g} has no logarithm: both ends must be above 0", ("log", 0))
        if not low < high:
            raise FieldProblem(f"is empty: {low:g} is not below {high:g}", (name,))
        if not math.isfinite(high / low if name == "log" else high - low):
            raise FieldProblem(f"is too wide: {'the ratio' if name == 'log' else 'the difference'} of its ends "
                               f"{low:g} and {high:g} is no finite number; give a narrower range", (name,))
        return self

    def _check_choices(self, choices: tuple[Any, ...]) -> None:
        if self.points is not None:
            raise FieldProblem("a list of choices has no points between them", ("points",))
        if not choices:
            raise FieldProblem("is empty: list at least one choice")
        if len(choices) > MOST_CHOICES:
            raise FieldProblem(f"lists {len(choices):,} choices; at most {MOST_CHOICES:,} are allowed")
        if twice := [item for place, item in enumerate(choices) if item in choices[:place]]:
            raise FieldProblem(f"lists {twice[0]!r} twice")

    @property
    def ends(self) -> tuple[float, float]:
        """Lowest and highest value of a range."""
        found = self.log or self.linear or self.int_
        assert found is not None, "validated"
        return found

    @property
    def width(self) -> str:
        """Return its width in words: `3 decades`, `5 choices`."""
        if self.choices is not None:
            return f"{len(self.choices)} choice{'s' if len(self.choices) > 1 else ''}"
        low, high = self.ends
        if self.log:
            decades = math.log10(high / low)
            return f"{decades:.3g} decade{'' if decades == 1 else 's'}"
        return f"{high - low + 1:,.0f} values" if self.int_ else f"{high - low:.4g} wide"

    def text(self) -> str:
        """Return the axis as people read it: `log 0.001 to 1`."""
        if self.choices is not None:
            return ", ".join(map(str, self.choices))
        low, high = self.ends
        name = "log" if self.log else "linear" if self.linear else "int"
        return f"{name} {low:g} to {high:g}" + (f" in {self.points} points" if self.points else "")


class Space(SuitePart):
    """The settings that contenders of one kind may get, and where this range comes from."""

    for_: dict[str, Any] = Field(default_factory=dict, alias="for", description="the contenders that the space "
                                 "is for: a pattern; a contender gets the first space that matches; none: all")
    origin: str = Field(min_length=1, description="where the range comes from: a paper, a default widened by how much, "
                                                  "a pilot")
    space: dict[str, Axis] = Field(description="field of a trial (dotted path) -> {log: [lo, hi]}, {linear: [lo, hi]}, "
                                               "{int: [lo, hi]} or a list of choices")
    trials: int | None = Field(None, ge=1, le=MOST_TRIALS, description="another number of settings than the others "
                                                                       "get; needs `unequal`")
    unequal: str = Field("", description="why these contenders get another number of settings")

    @model_validator(mode="after")
    def _not_empty(self) -> Space:
        if not self.origin.strip():
            raise FieldProblem("is empty: say where the range comes from", ("origin",))
        if not self.space:
            raise FieldProblem("is empty: name at least one field to tune", ("space",))
        for name in self.space:
            part, _, rest = name.partition(".")
            kind = rest == "kind" and part != "schedule"  # a schedule is no plug-in
            if name not in TUNABLE_ALONE and (part not in TUNABLE or not rest or kind):
                raise FieldProblem("is not tuned: the contenders must train the same task, to one target, in one "
                                   f"budget, on the same machine; a space may hold {TUNABLE_TEXT}", ("space", name))
        if self.trials is not None and not self.unequal.strip():
            raise FieldProblem("gives these contenders another number of settings; say why in `unequal`", ("trials",))
        if self.unequal and self.trials is None:
            raise FieldProblem("is the reason for another number of trials; give trials too", ("unequal",))
        return self


class Hopeless(SuitePart):
    """Rule by which a tuning trial is abandoned: at a share of its budget its quality is worse than a median.

    The median is that of the same contender's earlier trials at the same number of samples. After the median stopping
    rule of Golovin et al. 2017, section 3.2.2, which compares the best value so far with the median of running averages
    at every point; here one value is compared with the median of values, at one point.
    """

    at: float = Field(gt=0, lt=1, description="share of the budget of epochs at which a trial is judged, once")
    after: int = Field(3, ge=1, le=MOST_TRIALS, description="finished trials of the contender before any is judged")


class Tune(SuitePart):
    """Tuning of the contenders of a suite, before they are scored."""

    contenders: tuple[str, ...] | None = Field(
        None, description="factors of the matrix whose levels compete, each tuned separately; null: every cell")
    at: dict[str, Any] = Field(default_factory=dict, description="the cell in which a contender is tuned, if it has "
                                                                 "several: a pattern")
    trials: int = Field(ge=1, le=MOST_TRIALS, description="settings of every contender")
    search: Search = Field("halton", description="how settings are drawn, all of them before the first trial")
    seeds: int = Field(1, ge=1, le=100, description="trials of every setting")
    searches: int = Field(1, ge=1, le=100, description="independent searches, each a run of its own with seeds of its "
                          "own, compared together by `repro compare RUN RUN ...`, so that a verdict is about the "
                          "contenders; 1: it is about the settings that one search finds")
    metric: str = Field(json_schema_extra={"enum": [*METRICS]},
                        description="the figure by which settings of a contender are ranked; those that miss the "
                                    "target come after all that reach it, by their best quality")
    hopeless: Hopeless | None = Field(None, description="abandon hopeless trials by this rule; null: none")
    master_seed: int | None = Field(None, ge=0, lt=SEEDS_BELOW, description="seed of every random number of the "
                                    "tuning; null: derived from that of the scored trials")
    spaces: tuple[Space, ...] = Field(max_length=200, description="what is searched")

    @model_validator(mode="after")
    def _consistent(self) -> Tune:
        if self.contenders == ():
            raise FieldProblem("is empty, so no contender would be tuned; name factors of the matrix, or leave it "
                               "out: every cell competes then", ("contenders",))
        if 1 < self.searches < LEAST_SEARCHES:
            raise FieldProblem(f"{self.searches} searches can never decide: give at least {LEAST_SEARCHES}, or 1 for a "
                               "verdict about the settings of one", ("searches",))
        if self.searches > 1 and self.master_seed is not None:
            raise FieldProblem("every search draws its own; leave it out", ("master_seed",))
        if self.metric not in METRICS:
            raise FieldProblem(f"no metric named {self.metric!r}{nearest(self.metric, METRICS)}", ("metric",))
        if not self.spaces:
            raise FieldProblem("is empty: every contender needs a space", ("spaces",))
        same = next((place for place, space in enumerate(self.spaces) if space.trials == self.trials), None)
        if same is not None:
            raise FieldProblem(f"is what every contender gets ({self.trials}); leave it and `unequal` out",
                               ("spaces", same, "trials"))
        return self

    def trials_of(self, space: Space) -> int:
        """Return how many settings a contender with this space gets."""
        return self.trials if space.trials is None else space.trials


class Setting(SuitePart):
    """The values that the cells of one contender get in addition to their factors."""

    where: dict[str, Any] = Field(description="factor -> its level, exactly as the matrix has it")
    set_: dict[str, Any] | None = Field(
        alias="set", description="field of a trial (dotted path) -> value; null: no trial of its tuning could be "
        "judged, so its cells are not scored")

    @property
    def values(self) -> dict[str, Any]:
        """Field -> value; empty if its cells are not scored."""
        return self.set_ or {}


class Tuned(SuitePart):
    """Origin of the settings of a frozen suite. It defines no cell, so it is no part of the suite's digest."""

    tune: Tune
    """As declared: search, budget, spaces with their origins, rule of the choice."""
    master_seed: int = Field(ge=0, lt=SEEDS_BELOW, description="the one of the tuning trials")
    scored_seed: int = Field(ge=0, lt=SEEDS_BELOW, description="the one of the scored trials of that run")
    record: str = Field(pattern="^[0-9a-f]{64}$", description="sha256 over plan and results of the tuning")


DIGITS = 4
"""Significant digits of a drawn number: what people copy is what ran."""
BLOCK = 64
"""Points of a low-discrepancy sequence that are drawn at once."""
MAX_DRAWS = 100_000
MAX_GRID = 100_000
Settings = dict[str, Any]
"""Field (dotted path) -> value."""


def setting_text(values: Mapping[str, Any]) -> str:
    """Return a setting as people read it: `optimizer.lr 0.1, batch.global 64`."""
    return ", ".join(f"{name} {as_text(value)}" for name, value in sorted(values.items()))


def draw_settings(
    space: Mapping[str, Axis], search: Search, trials: int, master_seed: int, contender: str
) -> tuple[Settings, ...]:
    """Return `trials` different settings; the same for the same arguments, whatever else a suite holds.

    random: every field on its own. halton: the Halton sequence, one prime a field, rotated by a random vector
    (Cranley and Patterson 1976). grid: the points of the grid in a random order, the first `trials` of them.

    Args:
        master_seed: of the tuning.
        contender: text that identifies the contender; two contenders draw from two streams.

    Raises:
        FieldProblem: the space has fewer settings than `trials`, or search grid and a range without points.
    """
    names = sorted(space)  # the order of writing has no effect
    size = space_size(space, search)
    if size < trials:
        noun = "the grid" if search == "grid" else "the space"
        raise FieldProblem(f"{trials} trials are more than {noun} has settings: {size:,.0f}", ("trials",))
    generator = Streams(master_seed, 0).generator(f"tuning {contender}")
    if search == "grid":
        values = [grid_values(space[name]) for name in names]
        chosen = np.unravel_index(generator.permutation(int(size))[:trials], [len(item) for item in values])
        return tuple({name: item[place] for name, item, place in zip(names, values, places, strict=True)}
                     for places in zip(*(axis.tolist() for axis in chosen), strict=True))
    axes = [space[name] for name in names]
    found: dict[str, Settings] = {}
    for point in itertools.islice(_points(search, len(names), generator), MAX_DRAWS):
        setting = {name: value_at(axis, float(at)) for name, axis, at in zip(names, axes, point, strict=True)}
        found.setdefault(json.dumps(setting, sort_keys=True), setting)
        if len(found) == trials:
            return tuple(found.values())
    raise FieldProblem(f"{MAX_DRAWS:,} draws gave {len(found)} different settings of {trials}; use search: grid, or "
                       "fewer trials", ("trials",))


def _points(search: Search, fields: int, generator: np.random.Generator) -> Iterator[np.ndarray]:
    """Yield points of the unit cube, one coordinate a field."""
    if search == "random":
        while True:
            yield generator.random(fields)
    from scipy.stats import qmc  # takes a second, which commands that draw nothing need not wait

    shift = generator.random(fields)
    sequence = qmc.Halton(fields, scramble=False)  # scrambling may differ between versions of scipy
    while True:
        yield from (sequence.random(BLOCK) + shift) % 1.0


def space_size(space: Mapping[str, Axis], search: Search) -> float:
    """Return how many different settings a space has; infinity if a range is continuous.

    Raises:
        FieldProblem: search grid, and a continuous range without points, or a grid beyond any use.
    """
    size = math.prod(_axis_size(name, axis, search) for name, axis in space.items())
    if search == "grid" and size > MAX_GRID:
        raise FieldProblem(f"its grid has {size:,.0f} settings; at most {MAX_GRID:,} are allowed", ("space",))
    return size


def _axis_size(name: str, axis: Axis, search: Search) -> float:
    if axis.choices is not None:
        return len(axis.choices)
    if search == "grid" and axis.points is None and axis.int_ is None:
        raise FieldProblem("search: grid needs the number of points of a range, for example {log: [0.001, 1], "
                           "points: 7}", ("space", name))
    if search != "grid" and axis.points is not None:
        raise FieldProblem(f"points belong to search: grid, not to {search}", ("space", name, "points"))
    if search == "grid" and axis.points is not None:
        return len(grid_values(axis))
    return axis.int_[1] - axis.int_[0] + 1 if axis.int_ is not None else math.inf


def grid_values(axis: Axis) -> Sequence[Any]:
    """Return the values of an axis in a grid, ends included."""
    if axis.choices is not None:
        return axis.choices
    if axis.points is None:
        assert axis.int_ is not None, "checked"
        return range(axis.int_[0], axis.int_[1] + 1)
    shares = [place / (axis.points - 1) for place in range(axis.points)]
    if axis.int_ is not None:
        low, high = axis.int_
        return list(dict.fromkeys(round(low + share * (high - low)) for share in shares))
    return list(dict.fromkeys(_between(axis, share) for share in shares))


def value_at(axis: Axis, at: float) -> Any:
    """Return the value of an axis at a share in [0, 1)."""
    if axis.choices is not None:
        return axis.choices[int(at * len(axis.choices))]
    if axis.int_ is not None:
        low, high = axis.int_
        return low + int(at * (high - low + 1))
    return _between(axis, at)


def _between(axis: Axis, share: float) -> float:
    low, high = axis.ends
    value = low * (high / low) ** share if axis.log else low + share * (high - low)
    return min(high, max(low, float(f"{value:.{DIGITS}g}")))
