"""The record in MLPerf's results layout: logs and system descriptions for the tools of MLCommons.

``mllog/results/<cell>/<workload>/result_<seed>.txt`` and ``mllog/systems/<cell>.json``. A log contains the
log of its trial line by line. Lines and fields that the MLPerf rules require are added, and each addition is marked.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from repro.compare.findings import findings
from repro.core.devices import on_gpu
from repro.core.events import EVALUATION_KEYS, Event, read_events
from repro.core.files import is_deep, write_text
from repro.core.markdown import escaped
from repro.record.folder.store import Record
from repro.record.result.results import Result
from repro.record.result.status import meaning
from repro.reporting import Reporter
from repro.suite.kinds.training import TrainingConfig
from repro.suite.planning.cell import Cell
from repro.tables.tables import about
from repro.tables.text import gibibytes
from repro.tables.values import plain

from .page.document import finite_data

FOLDER = "mllog"
PROGRESS = ("block_start", "block_stop", "epoch_start", "epoch_stop", "eval_start", "eval_stop")
"""Keys whose metadata must have a samples_count or an epoch_num by the common rules."""
MAX_DEPTH = 32
"""Most levels of a value; logs of this tool have three."""
ADDED = "x_added"
"""Metadata key that marks additions: true for a line, or the names of the added fields."""
TYPES = {"float64": "fp64", "float32": "fp32", "bfloat16": "bfloat16", "float16": "fp16", "tf32": "tf32"}
"""Number formats: name in torch -> name in MLPerf."""


class MllogPackage(Reporter):
    """A package that `mlperf_logging`'s parser, package checker and this tool's own `repro import mlperf` read."""

    title: ClassVar[str] = "MLPerf's results layout: result_N.txt and systems/*.json, for MLCommons' tools"
    unpublishable: ClassVar[str] = ("published results have their own logs, and an import does not keep all that was "
                                    "submitted; use the original logs")

    def write(self, record: Record, out: Path) -> list[str]:
        """Write the folder `mllog` into `out`."""
        root = out / FOLDER
        paths, left_out = [root / "README.md"], []
        for cell in record.plan.cells:
            if not isinstance(cell.choices, TrainingConfig):
                left_out += [(item.trial_id, "a program of a user, whose log is not MLPerf's")
                             for item in record.of_cell(cell.cell_id)]
                continue
            found = list(_logs(record, cell))
            left_out += [(item.trial_id, why) for item, why, _ in found if why]
            logs = [(item, text) for item, why, text in found if not why]
            if not logs:
                continue
            slug = folder_name(cell.cell_id)
            paths.append(root / "systems" / f"{slug}.json")
            write_text(paths[-1], json.dumps(system(record, cell, slug), indent=1) + "\n")
            for item, text in logs:
                place = root / "results" / slug / folder_name(cell.choices.task)
                paths.append(place / f"result_{item.repeat}.txt")
                write_text(paths[-1], text)
        write_text(paths[0], readme(record, left_out))
        return [str(path) for path in paths]


def folder_name(text: str) -> str:
    """Return a valid name of one folder, never `..`."""
    return re.sub(r"[^A-Za-z0-9._-]", "_", plain(text)).lstrip(".")[:120] or "_"


def _logs(record: Record, cell: Cell) -> Iterator[tuple[Result, str, str]]:
    """Yield (result, reason for its exclusion, text of its log)."""
    for item in record.of_cell(cell.cell_id):
        path = record.folder.log(item.trial_id, item.attempt)
        events = read_events(path)[0]
        keys = {event.key for event in events}
        if meaning(item.status).failed:
            yield item, f"{item.status.replace('_', ' ')}: {plain(item.reason) or 'no reason given'}", ""
        elif not {"run_start", "run_stop"} <= keys:
            yield item, "its log is missing or has no run_start and run_stop", ""
        elif damage := find_damage(path.read_bytes(), events):
            yield item, f"its log is damaged: {damage}", ""
        else:
            try:
                text = "".join(line(event) for event in export(events, disclosure(cell, item)))
            except (TypeError, ValueError, OverflowError, RecursionError) as error:  # a log from elsewhere
                yield item, f"its log is damaged: {plain(str(error))}", ""
            else:
                yield item, "", text


def find_damage(content: bytes, events: Sequence[Event]) -> str:
    """Describe the damage of a log that was complete when its trial ended; "" if there is none.

    Args:
        events: events of `content`; a line with the token but without an event is damaged.
    """
    lost = content.count(b":::MLLOG") - len(events)
    if lost:
        return f"{lost} of its events cannot be read"
    if b"\0" in content:
        return "it holds NUL bytes"
    for key in ("run_start", "run_stop"):
        if (count := sum(event.key == key for event in events)) != 1:
            return f"{count} {key}"
    if any(is_deep(part, MAX_DEPTH) for event in events for part in (event.value, event.metadata)):
        return f"an event is nested deeper than {MAX_DEPTH} levels"
    start, stop = (next(event.time_ms for event in events if event.key == key) for key in ("run_start", "run_stop"))
    return "" if start <= stop < float("inf") else "its run_stop is not after its run_start"


def line(event: Event) -> str:
    """Format an event as a line of strict JSON: values that are not finite become null."""
    return replace(event, value=finite_data(event.value), metadata=finite_data(dict(event.metadata))).line()


def disclosure(cell: Cell, item: Result) -> dict[str, Any]:
    """Return the settings that the rules of round 6.1 require, by MLPerf's keys, if the session read them back.

    The precision in attention is missing: it is not recorded, and most models here have no attention.
    """
    choices, effective = cell.training, item.effective
    linear = "tf32" if effective.get("tf32") == "on" else effective.get("matmul_dtype", "")
    found: dict[str, Any] = {
        "lowest_numerical_precision_in_linear": TYPES.get(linear),
        "lowest_numerical_precision_in_comm": TYPES.get(effective.get("comm_dtype", "")),
        "micro_batch_size": choices.batch.global_ // (choices.processes * choices.batch.accumulation),
        "config_filename": "suite.yaml",
    }
    found |= {f"{kind}_parallelism": 1 for kind in ("tensor", "pipeline", "context", "expert")}
    return {key: value for key, value in found.items() if value is not None}


def export(events: Sequence[Event], disclosed: dict[str, Any]) -> Iterator[Event]:
    """Yield the events of the log with the additions of MLPerf's common rules, in the order of the log."""
    ahead = _samples_ahead(events)
    keys, samples = {event.key for event in events}, 0
    for event, following in zip(events, ahead, strict=True):
        known = event.metadata.keys() & {"samples_count", "epoch_num", "epoch_count"}
        count = samples if event.key.endswith("_start") and event.key != "eval_start" else following
        if event.key in PROGRESS and not known and count is not None:
            yield replace(event, metadata={**event.metadata, "samples_count": count, ADDED: ["samples_count"]})
        else:
            yield event
        if event.key == "eval_error" and "eval_accuracy" not in keys:  # the only quality key in the rules
            yield replace(event, key="eval_accuracy", metadata={**event.metadata, ADDED: True})
        if event.key in EVALUATION_KEYS:
            samples = _count(event) or samples
        if event.key == "init_start":
            yield from (Event(key, value, "POINT_IN_TIME", event.time_ms, {ADDED: True})
                        for key, value in disclosed.items() if key not in keys)


def _count(event: Event) -> int | None:
    """Return the samples seen by an event, if they are a valid count."""
    found = event.metadata.get("samples_count")
    whole = isinstance(found, int | float) and not isinstance(found, bool) and 0 <= found < 1 << 63
    return int(found) if whole and found is not None else None


def _samples_ahead(events: Sequence[Event]) -> list[int | None]:
    """Return, for each event, the samples seen by the next evaluation."""
    found: list[int | None] = []
    following: int | None = None
    for event in reversed(events):
        if event.key in EVALUATION_KEYS:
            following = following if _count(event) is None else _count(event)
        found.append(following)
    return found[::-1]


TEXT = """\
# {suite}: logs in MLPerf's results layout

Figures: **{origin}**. Generated by repro {version}; suite digest `{digest}`, method {method}.

This is **not an MLPerf submission and not an MLPerf result**: name and rules belong to MLCommons. Layout and lines
follow theirs, so that their tools can read these logs:

    python -m mlperf_logging.package_checker . training 5.1.0
    repro import mlperf . --out imported

- `results/CELL/WORKLOAD/result_SEED.txt`: one run per file; each cell of the suite is a system. All lines come from the
  log of the trial, except the additions.
- Additions, which the common rules require: `samples_count` in the metadata of lines without one (from the next
  evaluation, or from the one before a block), the keys of precision and parallelism of round 6.1, and an
  `eval_accuracy` for each `eval_error` (lower is better there). Each addition is marked with `x_added`.
- `systems/CELL.json`: what the record says about the machine; an empty string is unknown.

## Checks of MLCommons

- The parser reads every line. The logs meet the common rules of round 5.1.0 (`training_5.1.0/common.yaml`) except one:
  `submission_benchmark` must be a benchmark of that round, and these workloads are not. Round 6.1.0 also requires the
  precision in attention, which is not recorded.
- Rules of a benchmark (targets, hyper-parameters, number of runs, reference convergence points) do not apply: the
  package checker skips unknown workloads and says so.
- An MLPerf score needs the number of runs that its benchmark requires. These workloads have no such number.

## Excluded

{left_out}
"""


def readme(record: Record, left_out: Sequence[tuple[str, str]]) -> str:
    """Render the file; `left_out`: (trial, reason)."""
    row = about(findings(record))
    missing = [(trial.trial_id, "has not run") for trial in record.missing()]
    listed = "\n".join(f"- {escaped(trial)}: {escaped(why)}" for trial, why in (*left_out, *missing))
    return TEXT.format(
        suite=escaped(str(row["suite"])), origin=escaped(str(row["origin"])), digest=row["suite_digest"],
        version=escaped(str(row["repro_version"])), method=escaped(str(row["method"])),
        left_out=listed or "None: every planned trial ran to the end.",
    )


STATUS = "Research, Development, or Internal (RDI)"
"""The only status of MLPerf's checker without a promise of availability."""
UNKNOWN = (
    "host_processor_vcpu_count", "host_processor_frequency", "host_processor_caches", "host_processor_interconnect",
    "host_storage_type", "host_storage_capacity", "host_memory_configuration", "accelerator_host_interconnect",
    "accelerator_frequency", "accelerator_on-chip_memories", "accelerator_memory_configuration",
    "accelerator_memory_capacity", "accelerator_interconnect", "accelerator_interconnect_topology", "cooling",
)
"""Required fields that a record does not contain."""


def system(record: Record, cell: Cell, name: str) -> dict[str, str]:
    """Return all fields that `mlperf_logging.system_desc_checker` requires; all values are text, as there."""
    environment, choices = record.environment, cell.choices
    gpus = environment.devices if on_gpu(choices.device) else ()
    emulated = next((item.network for item in record.of_cell(cell.cell_id) if item.network is not None), None)
    network = environment.interconnect
    if emulated is not None:
        rates = sorted({rate / 1e6 for rate in emulated.stated_bits_per_second})
        network = (f"{emulated.origin}: {len(emulated.stated_bits_per_second)} network namespaces on one machine, "
                   f"links shaped to {' and '.join(f'{rate:g}' for rate in rates)} Mbit/s")
    libraries = {name: number for name, number in environment.libraries.items() if name != "torch"}
    known = {
        "submitter": "repro-harness", "division": "open", "status": STATUS, "system_name": name,
        "number_of_nodes": "1", "host_processors_per_node": "", "host_processor_model_name": environment.cpu,
        "host_processor_core_count": str(environment.cores),
        "host_memory_capacity": str(gibibytes(environment.memory_bytes) or "").replace("\N{NO-BREAK SPACE}", " "),
        "host_networking": network, "host_networking_topology": "",
        "accelerators_per_node": str(min(len(gpus), choices.processes)),
        "accelerator_model_name": "; ".join(dict.fromkeys(gpus)),
        "hw_notes": f"{environment.cores} cores usable by the run; {choices.processes} processes",
        "framework": f"PyTorch {environment.libraries.get('torch', 'of unknown version')}",
        "other_software_stack": "; ".join(f"{name} {number}" for name, number in sorted(libraries.items())),
        "operating_system": environment.system,
        "sw_notes": f"{cell.label}; figures are {record.origin_of(cell)}; repro {environment.repro_version}, "
                    f"suite digest {record.plan.digest}",
    }
    return {name: plain(known.get(name, "")) for name in (*known, *UNKNOWN)}
