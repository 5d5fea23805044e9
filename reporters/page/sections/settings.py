"""Settings of a run: hyper-parameters, requested and effective settings, machine, suite file."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import yaml

import repro
from repro.core.numbers import spans
from repro.core.pattern import flat
from repro.core.source_code import PLACE_DIGITS, is_file_kind
from repro.record.derive.effective import requested
from repro.record.environment.nodes import Link, NodeRecord, Nodes
from repro.record.environment.plugin_code import PROGRAM, PluginCode
from repro.record.folder import registration
from repro.record.folder.store import Record
from repro.record.folder.stored_code import classes_from_files
from repro.record.result.results import Result
from repro.suite.kinds.training import TrainingConfig
from repro.suite.planning.cell import Cell
from repro.tables.text import gibibytes, moment, seconds, visible

from ..cells import CellMark, marks

Fact = tuple[str, object]


@dataclass(frozen=True, slots=True)
class Settings:
    """Hyper-parameters: those that differ, by cell, and those that all cells share."""

    differing: tuple[str, ...]
    rows: tuple[tuple[CellMark, tuple[str, ...]], ...]
    common: tuple[Fact, ...]


@dataclass(frozen=True, slots=True)
class EffectiveSetting:
    """One effective setting, and the cells that have this value."""

    name: str
    requested: str
    found: str
    cells: str
    steady: bool
    """False if trials of one cell differ in it."""
    differs: bool = False
    """True if cells differ in it."""


def settings(record: Record) -> Settings:
    """Return all fields of every cell, flattened, with the derived learning rate."""
    known = marks(record)
    fields_of = {}
    for cell in record.plan.cells:
        fields = flat(cell.choices.model_dump(mode="json", by_alias=True))
        fields_of[known[cell.cell_id]] = {key: plain(value) for key, value in fields.items()} | {
            f"{name.replace('_', ' ')} after scaling (derived)": value for name, value in cell.choices.settings.items()}
    keys = list(dict.fromkeys(key for fields in fields_of.values() for key in fields))
    differing = tuple(key for key in keys if len({fields.get(key) for fields in fields_of.values()}) > 1)
    first = next(iter(fields_of.values()), {})
    return Settings(
        differing=differing,
        rows=tuple((mark, tuple(fields.get(key, "-") for key in differing)) for mark, fields in fields_of.items()),
        common=tuple((key, first[key]) for key in keys if key not in differing))


def plain(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else value if isinstance(value, str) else json.dumps(value)


def effective(record: Record) -> list[EffectiveSetting]:
    """Return the effective settings of the trials; cells with one value share a line, differing ones first."""
    return _lines(record, lambda result: result.effective, _requested)


def rank_settings(record: Record) -> list[EffectiveSetting]:
    """Return the environment variables of the ranks in the same form; empty in records that do not have them."""
    names = {name for item in record.results for name in item.settings}
    return _lines(record, lambda result: {name: result.settings.get(name, "not set") for name in sorted(names)}
                  if result.settings else {}, lambda _: {})


def _lines(
    record: Record, read: Callable[[Result], Mapping[str, str]], asked: Callable[[Cell], Mapping[str, str]]
) -> list[EffectiveSetting]:
    known = marks(record)
    lines: dict[tuple[str, str, str, bool], list[int]] = {}
    for cell in record.plan.cells:
        wanted = asked(cell)
        seen: dict[str, list[str]] = {}
        for result in record.of_cell(cell.cell_id):
            for name, value in read(result).items():
                seen.setdefault(name, []).append(value)
        for name, values in seen.items():
            kinds = list(dict.fromkeys(values))
            key = (name, wanted.get(name, "-"), " / ".join(kinds), len(kinds) == 1)
            lines.setdefault(key, []).append(known[cell.cell_id].number)
    order = {name: place for place, name in enumerate(dict.fromkeys(key[0] for key in lines))}
    several = {name for name in order if len({key[2] for key in lines if key[0] == name}) > 1}
    found = [
        EffectiveSetting(name, wanted, found, spans(cells), steady, name in several)
        for (name, wanted, found, steady), cells in sorted(lines.items(), key=lambda item: order[item[0][0]])
    ]
    return sorted(found, key=lambda line: not (line.differs or not line.steady))


def _requested(cell: Cell) -> dict[str, str]:
    """Return what the suite requested, under the names that engines use for effective settings."""
    if not isinstance(cell.choices, TrainingConfig):
        return {item.seam: item.label for item in cell.choices.plugins() if item.seam == "comm"}
    choices = cell.choices
    found = requested(choices)
    return found | {"comm": choices.comm.label, "optimizer": choices.optimizer.label, "engine": choices.engine.label,
                    "autocast": found["matmul_dtype"]}


def machine(record: Record) -> list[Fact]:
    """Return hardware and system as (name, value); unknown values say so."""
    environment = record.environment
    dirty = {True: "with uncommitted changes", False: "clean", None: "state unknown"}[environment.dirty]
    return [
        ("Started", moment(environment.started_ms)),
        ("CPU", f"{environment.cpu}, {environment.cores} cores usable"),
        ("Memory", gibibytes(environment.memory_bytes) or "unknown"),
        *((f"Node {item.node}",
           f"{visible(item.host)}: {visible(item.environment.cpu)}, {item.environment.cores} cores, "
           f"{gibibytes(item.environment.memory_bytes) or 'unknown'}; its clock {clock(item)}")
          for item in record.nodes.nodes),
        *_job(record),
        *_places(record),
        ("Training device", environment.device),
        ("Devices", "; ".join(environment.devices) or "none, CPU only"),
        ("Interconnect of node 0" if record.nodes.nodes else "Interconnect", environment.interconnect),
        *_cuda(record),
        ("Operating system", environment.system),
        ("Python", environment.python),
        ("repro", environment.repro_version),
        ("Commit", f"{environment.commit} ({dirty})" if environment.commit else "not from a checkout"),
        *((_code_name(item), visible(item.text())) for item in environment.plugins),
        ("Plan registered before the first trial", "registration.json says so; a copy that others kept shows it: "
         "repro verify RUN --registered FILE, or --signer KEY" if (record.folder.root / registration.NAME).exists() else
         "no registration in this record, which alone says that its question was declared before "
         "(repro run --register FILE)"),
        ("Load before the run (1 min)", "unknown" if environment.load_1min is None else f"{environment.load_1min:g}"),
        *([] if environment.busy_cores is None else [
            ("Cores that were busy when the run began", f"{environment.busy_cores:.2g}")]),
        ("Loading libraries, once per run, not on the clock of a trial",
         seconds(record.nodes.preload_seconds) or "unknown"),
    ]


def _job(record: Record) -> list[Fact]:
    facts: list[Fact] = []
    if record.nodes.links:
        facts.append(("Links between nodes (TCP by gloo, measured before the first trial)", _links(record.nodes)))
    if later := [f"from {moment(item.at_ms)} on {_links(item)}" for item in record.node_history[1:] if item.links]:
        facts.append(("Links between nodes, with those of new nodes", "; ".join(later)))
    found = record.nodes.allocation
    if found is None:
        return facts
    queued = "an unknown time" if found.queued_seconds is None else f"{found.queued_seconds:.0f} s"
    task = f" (array task {found.array_task})" if found.array_task else ""
    shares = {True: "nodes not shared", False: "nodes shared with other jobs", None: ""}[found.exclusive]
    again = f"started again {found.restarts} time{'s' * (found.restarts != 1)}" if found.restarts else ""
    where = f"partition {found.partition}" if found.partition else ""
    more = "".join(f"; {text}" for text in (where, found.resources, shares, again) if text)
    facts.append(("Job", visible(f"{found.scheduler} {found.job}{task} on {', '.join(found.nodes)}{more}; "
                                 f"queued for {queued}, not on the clock of a trial")))
    return facts


def _places(record: Record) -> list[Fact]:
    """Return the places that the run was put on, from which moment on; nothing of an early record."""
    found = [f"from {moment(item.at_ms)} on {visible(' + '.join(item.names()))}" for item in record.node_history
             if item.here]
    return [("Placement", "; ".join(found))] if found else []


def _links(nodes: Nodes) -> str:
    return "; ".join(f"{link.sender} to {link.receiver}: {_rate(link)}, {link.latency_seconds * 1e6:,.0f} us"
                     for link in nodes.links)


def _rate(link: Link) -> str:
    return "rate not measurable" if link.bytes_per_second is None else f"{link.bytes_per_second / 1e6:,.1f} MB/s"


def clock(item: NodeRecord) -> str:
    """Return the offset of a node's clock in words."""
    if item.clock_bound_ns is None:
        return "not compared"
    return f"{item.clock_offset_ns / 1e9:+.6f} s against node 0's, within {item.clock_bound_ns / 1e6:.3g} ms"


def _code_name(item: PluginCode) -> str:
    name = visible(item.plugin)
    return name[:1].upper() + name[1:] if item.distribution == PROGRAM else f"Plug-in {name}"


def _cuda(record: Record) -> list[Fact]:
    """Return the versions of CUDA and its libraries as rank 0 read them; nothing of a build without CUDA."""
    found = {tuple(item.build.get(name, "unknown") for name in ("torch_cuda", "torch_cudnn", "torch_nccl"))
             for item in record.results if "torch_cudnn" in item.build}
    return [("CUDA, cuDNN, NCCL of torch", "; ".join(map(", ".join, sorted(found))))] if found else []


def suite_text(record: Record) -> str:
    """Return the suite as it ran, overrides included, as YAML for `repro run`, next to the folder `code` of the run.

    The master seed is a comment: a copy of the suite must not draw the same data again by accident.
    """
    data = record.plan.suite.model_dump(mode="json", by_alias=True, exclude_defaults=True,
                                        exclude={"seeds", "master_seed"})
    data = {"suite": data.pop("suite"), **_located(data), "seeds": record.plan.suite.seeds}
    drawn = f"# master_seed: {record.plan.master_seed} (of this run; `repro reproduce` draws its data again)\n"
    text = yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=100) + drawn
    if visible(text) == text:
        return text
    return yaml.safe_dump(data, sort_keys=False, allow_unicode=False, width=100) + drawn  # hidden characters as escapes


def class_files(record: Record) -> list[str]:
    """Return the files of the classes that the suite takes from files, as paths in the run folder."""
    return list(dict.fromkeys(f"{_place(item.code)}/{item.kind.partition(':')[0]}"
                              for item in classes_from_files(record.plan)))


def _place(code: str) -> str:
    return f"code/{code[:PLACE_DIGITS]}"


def _located(item: Any) -> Any:
    """Return part of a suite with the paths of its classes from files in place of their hashes."""
    if isinstance(item, list):
        return [_located(each) for each in item]
    if not isinstance(item, dict):
        return item
    found = {key: _located(each) for key, each in item.items()}
    if isinstance(kind := found.get("kind"), str) and is_file_kind(kind) and "code" in found:
        found["kind"] = f"{_place(found.pop('code'))}/{kind}"
    return found


MESSAGE = ("If you use this software in a publication, please cite it with the version and the suite digest of your "
           "runs.")
TITLE = "repro-harness: time-to-accuracy benchmarks with verdicts that can be checked and re-run"
AUTHOR = "The repro-harness contributors"
LICENSE = "Apache-2.0"
RELEASED = "2026-11-30"
"""Date of this version; a record of another version is cited without a date. A test compares all with CITATION.cff."""


def citation(record: Record) -> str:
    """Return the CITATION.cff of the version that made the run."""
    version = record.environment.repro_version
    date = f"date-released: {RELEASED}\n" if version == repro.__version__ else ""
    return (f'cff-version: 1.2.0\nmessage: "{MESSAGE}"\ntitle: "{TITLE}"\ntype: software\nauthors:\n'
            f'  - name: "{AUTHOR}"\nversion: {version}\n{date}license: {LICENSE}\n')


def bibtex(record: Record) -> str:
    """Return the BibTeX entry.

    It is `@misc`, which every style knows. The note has the digits of the digest that the reports show, because no line
    of a column holds all 64; the field `digest`, which styles ignore, has all. Keys of two suites
    differ: a paper may cite both.
    """
    version = record.environment.repro_version
    year = f"  year = {{{RELEASED[:4]}}},\n" if version == repro.__version__ else ""
    key = re.sub("[^0-9A-Za-z.]", "", version)
    return (f"@misc{{repro-harness-{key}-{record.plan.digest[:8]},\n"
            f"  title = {{{{{TITLE}}}}},\n  author = {{{{{AUTHOR}}}}},\n{year}"
            f"  version = {{{version}}},\n  license = {{{LICENSE}}},\n"
            f"  note = {{Suite digest {record.plan.digest[:16]}, method {record.plan.method}}},\n"
            f"  digest = {{{record.plan.digest}}},\n}}\n")
