"""Targets for untrusted files: one function an input, its valid seeds, and their mutations.

A target takes bytes and does with them what the commands do, short of starting processes. What may come out is a
result, or a ReproError of one line; everything else is a defect.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from repro.audit.audit import audit
from repro.audit.mapping import read_mapping
from repro.bundle.difference import RecordDiff, differences
from repro.bundle.source import open_record
from repro.bundle.verify import verify
from repro.cli.text.suite import cell_lines, comparison_sentence, plan_text, suite_text
from repro.cli.workflows.reproduce import Wanted, choose_trials, reduce_plan
from repro.cli.workflows.tuning import plan_phases
from repro.compare.cells import read_pattern
from repro.compare.design.calibration import calibration_of
from repro.compare.runs.merge import Source, merge
from repro.compare.runs.runs import Compared, compare_runs
from repro.core.errors import ReproError
from repro.core.machine import Machine
from repro.record.folder import index as record_index
from repro.record.folder.resume import plan_differences, trials_to_run
from repro.record.folder.store import Record, read_record
from repro.reporting import reporter
from repro.suite.file import bundled, read_suite
from repro.suite.planning.cost import estimate
from repro.suite.planning.plan import Plan, make_plan
from tests.fuzz.mutations import ENDINGS, Mutator, archive, in_file, lines, raw, rows_of_json, text_or, tree, yaml_tree
from tests.fuzz.published_inputs import (
    _curve,
    _curves,
    _description,
    _descriptions,
    _imported,
    _imports,
    _line,
    _log,
    _logs,
    _system,
    _systems,
    _tolerant,
)
from tests.fuzz.speedrun_inputs import _speed_imported, _speed_imports, _speed_log, _speed_logs
from tests.records import SUITE, make_record

MACHINE = Machine("cpu", 0, 2)
SMALL = SUITE.replace("seeds: 6", "seeds: 2").replace("processes: [1, 2]", "processes: [2]")
QUICK, DRAWN = ("markdown", "csv", "jsonl", "mllog"), ("html", "figures", "latex")
"""Reporters without figures and with them: these take a hundred times as long and have a separate target."""


@dataclass
class Target:
    """One kind of input; `folder` is private and exists from its first use to `close`."""

    name: str
    seeds: Callable[[Path], list[bytes]]
    consume: Callable[[bytes, Path], None]
    mutate: Mutator

    @cached_property
    def folder(self) -> Path:
        return Path(tempfile.mkdtemp(prefix="repro-fuzz-"))

    @cached_property
    def valid(self) -> list[bytes]:
        """The inputs to begin with; every one of them is accepted."""
        return self.seeds(self.folder)

    def feed(self, data: bytes) -> str:
        """Consume one input: "" where it was taken, the message where it was refused.

        Raises:
            Exception: a defect: something else than a ReproError came out, or a message of several lines.
        """
        assert self.valid
        try:
            self.consume(data, self.folder)
        except ReproError as error:
            return _line(error)
        return ""

    def close(self) -> None:
        if "folder" in vars(self):
            shutil.rmtree(self.folder)


# ---- suites


def _suites(folder: Path) -> list[bytes]:
    from importlib.resources import files

    found = [files("repro.suites").joinpath(f"{name}.yaml").read_bytes() for name in bundled()]
    return [SMALL.encode(), *found]


def _suite(data: bytes, folder: Path) -> None:
    path = folder / "fuzz.yaml"
    path.write_bytes(data)
    source = read_suite(str(path))
    plan = plan_phases(source, ()).draft if source.suite.tune else make_plan(source.suite, MACHINE, source.problem)
    suite_text(source.suite)
    plan_text(plan, estimate(plan))
    json.dumps(plan.model_dump(mode="json", by_alias=True))


def _overrides(folder: Path) -> list[bytes]:
    (folder / "base.yaml").write_text(SMALL)
    return [
        b"processes=1,2",
        b"batch.global=64",
        b"engine={kind: deepspeed, stage: 2}",
        b"optimizer.lr=1e-3,0.1",
        b"seeds=6",
        b"comm={kind: hierarchical, group: 2}",
        b"schedule={kind: step, milestones: [1, 2], gamma: 0.1}",
    ]


def _override(data: bytes, folder: Path) -> None:
    text = data.decode("utf-8", "replace").replace("\0", "")
    source = read_suite(str(folder / "base.yaml"), [text])
    make_plan(source.suite, MACHINE, source.problem, overridden=True)


def _patterns(folder: Path) -> list[bytes]:
    return [b"engine=ddp,processes=1", b"engine.kind=deepspeed", b"batch.global=64", b"engine={kind: ddp}"]


def _pattern(data: bytes, folder: Path) -> None:
    from repro.compare.verdict.condition import parse
    from repro.published.comparison.contrast import read_factors

    text = data.decode("utf-8", "replace")
    for read in (read_pattern, parse, lambda item: read_factors(item, "--baseline")):
        _tolerant(lambda read=read: read(text))


def _mappings(folder: Path) -> list[bytes]:
    return [
        b"cell: [params.engine, params.workers]\ntime: metrics.seconds\nseed: params.seed\naccuracy: metrics.val_acc\n"
        b"target: {value: 0.9, direction: higher}\nbaseline: [ddp, 1]\nrepeats: 5\n",
        b"cell: tags.cell\ntime: {value: 12.5}\nfilter: params.x = '1'\nhyperparameters:\n  optimizer: params.opt\n"
        b"data: {name: {value: digits}, digest: tags.data, synthetic: false}\nstated: {models: 1, declared: true}\n",
    ]


def _mapping(data: bytes, folder: Path) -> None:
    path = folder / "mapping.yaml"
    path.write_bytes(data)
    read_mapping(path)


# ---- run folders


def _record(folder: Path) -> list[bytes]:
    root = folder / "run"
    made = make_record(root, SMALL)
    record_index.seal(made.folder)
    (root / "launchers.json").write_text('{"preload_seconds": 1.5}\n')
    (root / "incidents.jsonl").write_text('{"at_ms": 1.6e12, "kind": "resumed", "text": "x", "trial_id": ""}\n')
    (root / "calibration.json").write_text(json.dumps(_calibration(root)))
    trial = sorted((root / "trials").iterdir())[0].relative_to(root).as_posix()
    names = [
        "plan.json",
        "environment.json",
        "ledger.jsonl",
        "incidents.jsonl",
        "launchers.json",
        "parity.json",
        "calibration.json",
        record_index.NAME,
        f"{trial}/trial.json",
        f"{trial}/result.json",
        f"{trial}/result_1.txt",
    ]
    shutil.copytree(root, folder / "same")
    # Important seeds are listed more than once: a seed is drawn from this list.
    return [
        name.encode() + b"\n" + (root / name).read_bytes()
        for name in [*names, names[0], names[-1], names[-2], names[-2]]
    ]


def _calibration(root: Path) -> dict[str, object]:
    from repro.compare.design.calibration import machine_of
    from repro.core.frozen import FORMAT

    record = read_record(root)
    null = {
        "source": "x",
        "cell_id": "c",
        "label": "l",
        "metric": "tta_wall",
        "how": "twins",
        "n": 6,
        "ratio": 1.02,
        "p": 0.03,
        "verdict": "inconclusive",
        "pairs": [],
    }
    return {
        "format": FORMAT,
        "suite": "sample",
        "suite_digest": record.plan.digest,
        "method": record.plan.method,
        "machine": machine_of(record.environment),
        "nulls": [null],
        "false_positives": 0,
        "n": 1,
        "rate": {"low": 0.0, "high": 0.5, "level": 0.95},
    }


class _Changed:
    """One file of a run folder replaced, and put back."""

    def __init__(self, data: bytes, folder: Path) -> None:
        name, _, content = data.partition(b"\n")
        self.root, self._same = folder / "run", folder / "same"
        self._name = name.decode("utf-8", "replace")
        if not os.path.isfile(self._same / self._name):  # noqa: PTH113  # a name may be none, and is no error then
            self._name = "plan.json"
        self._content = content

    def __enter__(self) -> Path:
        (self.root / self._name).write_bytes(self._content)
        return self.root

    def __exit__(self, *_: object) -> None:
        shutil.copyfile(self._same / self._name, self.root / self._name)


def _compared(found: Compared) -> None:
    json.dumps(found.as_json())
    assert all(map(str, [*cell_lines(found.summaries), *map(comparison_sentence, found.comparisons)]))


def _read(data: bytes, folder: Path) -> None:
    with _Changed(data, folder) as root:
        found = verify(root)
        assert json.dumps(found.as_json()) and found.text()
        record = read_record(root)
        calls: list[Callable[[], object]] = [
            lambda: _compared(compare_runs([root])),
            lambda: _compared(compare_runs([root], "accuracy")),
            lambda: _compared(compare_runs([folder / "same", root], force=True)),
            lambda: audit(str(root)).model_dump_json(),
            lambda: calibration_of(record),
            lambda: RecordDiff(schema_=1, first="a", second="b", order_seeds=None, differences=tuple(
                differences(read_record(folder / "same"), record))).text(),
            lambda: trials_to_run(record, True),
            lambda: plan_differences(record.plan, MACHINE),
            lambda: [record.next_attempt(trial.trial_id) for trial in record.plan.trials()],
            lambda: _reduced(record),
        ]
        for call in calls:
            _tolerant(call)


def _reported(data: bytes, folder: Path, kinds: tuple[str, ...] = QUICK) -> None:
    with _Changed(data, folder) as root:
        record = read_record(root)
        for kind in kinds:
            _tolerant(lambda kind=kind: reporter(kind).write(record, folder / "report"))
        shutil.rmtree(folder / "report", ignore_errors=True)


def _page(data: bytes, folder: Path) -> None:
    _reported(data, folder, DRAWN)


def _merged(data: bytes, folder: Path) -> None:
    shutil.rmtree(folder / "merged", ignore_errors=True)
    with _Changed(data, folder) as root:
        merge([Source(path.name, read_record(path)) for path in (folder / "same", root)], folder / "merged")


def _reduced(record: Record) -> Plan:
    chosen, terms = choose_trials(record, "1", Wanted(undecided=True))
    return reduce_plan(record.plan, chosen, MACHINE, 0, terms)


# ---- bundles


def _bundles(folder: Path) -> list[bytes]:
    from repro.bundle.contents import write_bundle

    _record(folder)
    made = [folder / "made.zip"]
    write_bundle(folder / "same", made[0])
    few = io.BytesIO()
    with zipfile.ZipFile(made[0]) as source, zipfile.ZipFile(few, "w", zipfile.ZIP_DEFLATED) as small:
        for item in source.infolist():
            if not item.filename.startswith("trials/"):
                small.writestr(item, source.read(item))
    return [made[0].read_bytes(), few.getvalue()]


def _bundle(data: bytes, folder: Path) -> None:
    path = folder / "fuzz.zip"
    path.write_bytes(data)
    found = verify(path)
    assert json.dumps(found.as_json()) and found.text()
    with open_record(path) as root:
        assert all(item.resolve().is_relative_to(root.resolve()) for item in root.rglob("*"))
        record = read_record(root)
        _tolerant(lambda: _reduced(record))


FILES = in_file(ENDINGS)


def targets() -> Iterator[Target]:
    """All targets, each with a separate folder."""
    yield Target("suite file", _suites, _suite, text_or(yaml_tree))
    yield Target("override", _overrides, _override, text_or(raw))
    yield Target("pattern, condition", _patterns, _pattern, text_or(raw))
    yield Target("audit mapping", _mappings, _mapping, text_or(yaml_tree))
    yield Target("MLPerf log", _logs, _log, text_or(rows_of_json))
    yield Target("system description", _systems, _system, text_or(tree))
    yield Target("DAWNBench curve", _curves, _curve, text_or(lines))
    yield Target("DAWNBench description", _descriptions, _description, text_or(tree))
    yield Target("import", _imports, _imported, FILES)
    yield Target("log of a speed-run", _speed_logs, _speed_log, text_or(lines))
    yield Target("import of speed-runs", _speed_imports, _speed_imported, FILES)
    yield Target("run folder: verify, compare, audit, resume", _record, _read, FILES)
    yield Target("run folder: tables", _record, _reported, FILES)
    yield Target("run folder: page, figures", _record, _page, FILES)
    yield Target("run folders: merged", _record, _merged, FILES)
    yield Target("bundle", _bundles, _bundle, archive)
