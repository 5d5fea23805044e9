"""The traced steps of one start of a program: files of its ranks, and what they are together."""

from __future__ import annotations

import base64
import re
import zipfile
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from repro.core.errors import OutputError, ParityError
from repro.core.frozen import Frozen

Name = Annotated[str, Field(max_length=1000)]
Quantity = Literal["gradient", "clipping", "update"]
Types = dict[Annotated[str, Field(max_length=40)], int]
LARGEST = 256 << 20
"""Most bytes of one rank's file."""
MEMBER = re.compile(r"(run|null)/(rank\d{1,6}-\d{1,12}\.jsonl)")
UNTRACED = ("the program left no trace: it must call watch.trace(model, optimizer) before its first step, or use one "
            "of the callbacks (docs/watch.md)")
SAME = 1e-6
"""Relative difference of a tensor on two ranks that is none: of sums in another order."""


class Part(Frozen):
    """The measurement by one rank of its part of a tensor."""

    part: Name
    square: float
    sketch: str = Field(min_length=344, max_length=344)


class DeepSpeed(Frozen):
    """Version and clipping of an engine of DeepSpeed."""

    version: Name
    clipping: float
    clipping_stated: bool


class Header(Frozen):
    """Wrapper, formats and initial weights of the training of one rank."""

    rank: int = Field(ge=0)
    world: int = Field(ge=1)
    wrapper: Name
    chain: tuple[Name, ...]
    optimizer: Name
    torch: Name
    problem: str = Field(max_length=1000)
    """Why nothing is traced; "" if it is."""
    shapes: dict[Name, tuple[int, ...]] = Field(default_factory=dict)
    frozen: tuple[Name, ...] = ()
    formats: dict[str, Types] = Field(default_factory=dict)
    """weights: what the optimizer updates; model: what the model computes with."""
    dropout: dict[Name, float] = Field(default_factory=dict)
    deepspeed: DeepSpeed | None = None
    initial: dict[Name, Part] = Field(default_factory=dict)
    untrained: dict[Name, Part] = Field(default_factory=dict)
    """Frozen weights and buffers before step 1, if the rank holds all of them."""


class RankStep(Frozen):
    """One optimizer step of one rank."""

    step: int = Field(ge=1)
    fed: tuple[tuple[str, ...], ...]
    """Of each micro-step, a hash of every sample."""
    kinds: tuple[Name, ...]
    """Type and shape of a sample in each tensor of the first micro-step."""
    resting: tuple[Name, ...]
    """Modules that were called in evaluation mode."""
    autocast: Name
    draws: bool
    """The forward pass drew random numbers, though dropout layers are at 0."""
    loss: tuple[float, ...]
    """As differentiated, of each micro-step."""
    scale: float
    groups: tuple[dict[Name, Any], ...]
    settings: dict[Name, int]
    """Tensor -> index of its group."""
    gradient: dict[Name, Part]
    clipped: dict[Name, Part]
    weights: dict[Name, Part]
    """Before the update."""
    update: dict[Name, Part]
    state: Types


@dataclass(frozen=True, slots=True)
class Measured:
    """A whole tensor: its norm, and its sketch [64] float64."""

    norm: float
    sketch: np.ndarray


@dataclass(frozen=True, slots=True)
class Tensors:
    """One quantity (a gradient, an update) of all tensors."""

    whole: Mapping[str, Measured]
    apart: tuple[str, ...]
    """Tensors of which two ranks hold the same part with other values."""

    @property
    def norm(self) -> float:
        """Return the norm of all tensors together."""
        return float(np.sqrt(sum(item.norm ** 2 for item in self.whole.values())))


@dataclass(frozen=True, slots=True)
class Step:
    """One optimizer step over all ranks."""

    number: int
    ranks: Sequence[RankStep]
    gradient: Tensors
    clipped: Tensors
    weights: Tensors
    update: Tensors

    @property
    def fed(self) -> list[Counter[str]]:
        """Return the samples that each rank was fed, as multisets of hashes."""
        return [Counter(sample for call in rank.fed for sample in call) for rank in self.ranks]

    @property
    def loss(self) -> float:
        """Return the loss as optimised: summed over micro-steps, averaged over ranks, without the loss scale."""
        return sum(sum(rank.loss) / rank.scale for rank in self.ranks) / len(self.ranks)

    @property
    def settings(self) -> dict[str, Mapping[str, Any]]:
        """Return tensor -> settings of the optimizer by which it is updated."""
        return {name: rank.groups[index] for rank in self.ranks for name, index in rank.settings.items()
                if index < len(rank.groups)}

    @property
    def tensors(self) -> dict[Quantity, Tensors]:
        """Return the measured quantities, causes before effects."""
        return {"gradient": self.gradient, "clipping": self.clipped, "update": self.update}


@dataclass(frozen=True)
class Trace:
    """All ranks of one start."""

    headers: Sequence[Header]
    steps: Sequence[Step]

    @property
    def header(self) -> Header:
        return self.headers[0]

    @cached_property
    def initial(self) -> Tensors:
        """Return the weights before step 1."""
        return merged([header.initial for header in self.headers])

    @property
    def numbers(self) -> list[int]:
        """Return the traced steps."""
        return [step.number for step in self.steps]

    @cached_property
    def untrained(self) -> Tensors:
        """Return frozen weights and buffers before step 1."""
        return merged([header.untrained for header in self.headers])

    @property
    def width(self) -> float:
        """Return the relative distance of two neighbouring numbers in the narrowest type that computes."""
        return max(self.stored_width, WIDTHS.get(self.computes, 0.0))

    @property
    def stored_width(self) -> float:
        """Return the same of the narrowest type in which weights are held, by the model or by the optimizer."""
        types = {*self.header.formats.get("model", ()), *self.header.formats.get("weights", ())}
        return max((WIDTHS.get(name, 0.0) for name in types), default=0.0)

    @property
    def weight_width(self) -> float:
        """Return the same of the type that the optimizer updates."""
        return max((WIDTHS.get(name, 0.0) for name in self.header.formats.get("weights", ())), default=0.0)

    @property
    def computes(self) -> str:
        """Return the type in which most of the forward pass computes."""
        model = self.header.formats.get("model", {"": 0})
        return next((step.ranks[0].autocast for step in self.steps if step.ranks[0].autocast), "") or \
            max(model, key=lambda name: model[name])


WIDTHS = {"float64": 2.0 ** -52, "float32": 2.0 ** -23, "float16": 2.0 ** -10, "bfloat16": 2.0 ** -7}


@np.errstate(invalid="ignore")
def merged(ranks: Sequence[Mapping[str, Part]]) -> Tensors:
    """Return the tensors of which ranks measured parts: each part counts once, though several ranks may hold it."""
    parts: dict[str, dict[str, Measured]] = {}
    apart: dict[str, None] = {}
    for rank in ranks:
        for name, part in rank.items():
            found = Measured(float(np.sqrt(part.square)), decoded(part.sketch))
            known = parts.setdefault(name, {}).setdefault(part.part, found)
            if np.abs(known.sketch - found.sketch).max() > SAME * max(known.norm, found.norm):
                apart[name] = None
    return Tensors({name: Measured(float(np.sqrt(sum(item.norm ** 2 for item in found.values()))),
                                   np.sum([item.sketch for item in found.values()], axis=0))
                    for name, found in parts.items()}, tuple(apart))


def decoded(text: str) -> np.ndarray:
    """Return a sketch from its text."""
    return np.frombuffer(base64.b64decode(text), "<f4").astype(np.float64)


def read_folder(folder: Path) -> dict[str, bytes]:
    """Return the files of one start by name."""
    return {path.name: path.read_bytes() for path in sorted(folder.glob("rank*.jsonl"))}


def read_trace(files: Mapping[str, bytes]) -> Trace:
    """Read the files of the ranks of one start; steps that not all of them have ended are left out.

    Raises:
        ParityError: there are none, or one is damaged, or the training could not be traced.
    """
    headers, steps = [], []
    for name, content in sorted(files.items()):
        lines = content.split(b"\n")[:-1]  # a last line without its end is still being written
        try:
            if lines:
                headers.append(Header.model_validate_json(lines[0]))
                steps.append({item.step: item for item in map(RankStep.model_validate_json, lines[1:])})
        except ValueError as error:
            raise ParityError(f"{name}: no readable trace: {str(error).splitlines()[0]}") from error
    if not headers:
        raise ParityError(UNTRACED)
    if problem := next((header.problem for header in headers if header.problem), ""):
        raise ParityError(f"the program cannot be traced: {problem}")
    order = sorted(range(len(headers)), key=lambda index: headers[index].rank)
    headers, steps = [headers[index] for index in order], [steps[index] for index in order]
    return Trace(headers, [_step(number, [rank[number] for rank in steps])
                           for number in sorted(set.intersection(*map(set, steps)))])


def write_zip(path: Path, starts: Mapping[str, Mapping[str, bytes]]) -> None:
    """Write the starts of one variant (run, null) into a file to compare others with.

    Raises:
        OutputError: it cannot be written.
    """
    try:
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for start, files in starts.items():
                for name, content in files.items():
                    archive.writestr(f"{start}/{name}", content)
    except OSError as error:
        raise OutputError(f"{path}: cannot be written: {error.strerror}") from error


def read_zip(path: Path) -> dict[str, Trace]:
    """Return the starts that `write_zip` wrote.

    Raises:
        OutputError: it cannot be read, or is no such file.
        ParityError: as `read_trace`.
    """
    starts: dict[str, dict[str, bytes]] = {}
    try:
        with zipfile.ZipFile(path) as archive:
            for item in archive.infolist():
                if not (match := MEMBER.fullmatch(item.filename)) or item.file_size > LARGEST:
                    raise OutputError(f"{path}: holds {item.filename[:80]!r}, which no trace has")
                starts.setdefault(match[1], {})[match[2]] = archive.read(item)
    except (OSError, zipfile.BadZipFile, RuntimeError, NotImplementedError, zlib.error) as error:
        raise OutputError(f"{path}: no readable trace: {error}") from error
    return {start: read_trace(files) for start, files in starts.items()}


def _step(number: int, ranks: Sequence[RankStep]) -> Step:
    gradient, clipped, weights, update = (merged([getattr(rank, what) for rank in ranks])
                                          for what in ("gradient", "clipped", "weights", "update"))
    if (scale := ranks[0].scale) != 1:
        gradient = Tensors({name: Measured(item.norm / scale, item.sketch / scale)
                            for name, item in gradient.whole.items()}, gradient.apart)
    return Step(number, ranks, gradient, clipped, weights, update)
