"""Reference convergence points of MLCommons (`rcps_<benchmark>.json`): the cost of the reference by batch size.

Source: mlcommons/logging, `mlperf_logging/rcp_checker/training_X.Y.Z/`; one object per batch size, with the costs of
every run of the reference.
"""

from __future__ import annotations

import hashlib
import re
from typing import Any, Literal

from repro.published.mlperf.rules import ALIASES, Version, epoch_unit
from repro.published.record import PublishedReference
from repro.published.untrusted.strict_json import parse
from repro.published.untrusted.text import DamagedInput, number, plain

FILE_NAME = re.compile(r"rcps_(.{1,100})\.json", re.DOTALL)
MAX_POINTS, MAX_RUNS = 500, 1000


def read_references(content: bytes, name: str, round_name: str, version: Version | None, source: str
                    ) -> list[PublishedReference]:
    """Read the points of one file, smallest batch first.

    Args:
        name: name of the file, which contains the benchmark.

    Raises:
        DamagedInput: not of that form, or its unit is neither epochs nor samples.
    """
    match = FILE_NAME.fullmatch(name)
    data = parse(content)
    if match is None or not isinstance(data, dict) or not data or len(data) > MAX_POINTS:
        raise DamagedInput("no reference convergence points: expected a JSON object of batch sizes")
    benchmark = ALIASES.get(match[1], plain(match[1]))
    digest = hashlib.sha256(content).hexdigest()
    found = [PublishedReference(
        benchmark=benchmark, round=round_name, name=plain(key), source=source, sha256=digest,
        **_point(key, point, benchmark, version)) for key, point in data.items()]
    return sorted(found, key=lambda item: (item.global_batch_size, item.name))


def _point(key: str, point: Any, benchmark: str, version: Version | None) -> dict[str, Any]:
    fields = {name.lower(): value for name, value in point.items()} if isinstance(point, dict) else {}
    batch = number(fields.get("bs"))
    unit: Literal["epochs", "samples"] = "samples" if "samples to converge" in fields else "epochs"
    costs, each = fields.get(f"{unit} to converge"), 1.0
    if unit == "epochs" and (counted := epoch_unit(benchmark, version)) != "epochs":
        if counted not in ("samples", "steps"):
            raise DamagedInput(f"{plain(key, 40)!r} counts {counted}, which is not supported")
        unit, each = "samples", (batch or 0.0) if counted == "steps" else 1.0
    values = [number(value) for value in costs] if isinstance(costs, list) and len(costs) <= MAX_RUNS else []
    known = [value for value in values if value is not None and value > 0]
    if batch is None or not batch.is_integer() or not 0 < batch < 1 << 62 or not known or len(known) < len(values):
        raise DamagedInput(f"{plain(key, 40)!r} has no batch size (BS) or no list of costs")
    return {"global_batch_size": int(batch), "unit": unit, "costs": tuple(value * each for value in known)}
