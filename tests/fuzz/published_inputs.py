"""Published results as inputs: logs, systems, curves, imports."""

from __future__ import annotations

import hashlib
import json
import shutil
import unicodedata
from collections.abc import Callable
from pathlib import Path

from repro.reporters.published.view import write

from repro.audit.audit import audit
from repro.core.errors import ReproError
from repro.published import importing
from repro.published.comparison.compare import compare_published
from repro.published.store import RECORD, RESULTS, read_published
from tests.unit.published.made_logs import entry, log_lines, repository, v05_log, v06_log


def _line(error: ReproError) -> str:
    """The message of a refusal: one line, of bounded length, that does nothing to a terminal."""
    text = str(error)
    if (
        not text.strip()
        or len(text.splitlines()) != 1
        or len(text) > 2000
        or any(unicodedata.category(sign)[0] == "C" for sign in text)
    ):
        raise AssertionError(f"not one line that can be shown: {text[:300]!a}") from error
    return text


def _tolerant(call: Callable[[], object]) -> None:
    """Continues after a refusal, which is an answer, to reach the rest of the target."""
    try:
        call()
    except ReproError as error:
        _line(error)


# ---- published results


def _import(program: importing.Program, root: Path, folder: Path) -> None:
    out = folder / "out"
    shutil.rmtree(out, ignore_errors=True)
    made = importing.import_results(program, root, out)
    assert read_published(out).results == made.results
    json.dumps(importing.import_json(made), allow_nan=False)
    audit(str(out))


def _logs(folder: Path) -> list[bytes]:
    repository(folder / "in", {})
    return [
        "".join(log_lines()).encode(),
        v06_log().encode(),
        v05_log().encode(),
        "".join(log_lines(status="aborted")).encode(),
    ]


def _log(data: bytes, folder: Path) -> None:
    (folder / "in/training_v4.0/Acme/results/box/resnet/result_0.txt").write_bytes(data)
    _import("mlperf", folder / "in", folder)


def _systems(folder: Path) -> list[bytes]:
    repository(folder / "in", {"result_0.txt": "".join(log_lines())})
    return [(folder / "in/training_v4.0/Acme/systems/box.json").read_bytes()]


def _system(data: bytes, folder: Path) -> None:
    (folder / "in/training_v4.0/Acme/systems/box.json").write_bytes(data)
    _import("mlperf", folder / "in", folder)


def _curves(folder: Path) -> list[bytes]:
    return [entry(folder / "in").read_bytes()]


def _curve(data: bytes, folder: Path) -> None:
    (folder / "in/ImageNet/train/fast.tsv").write_bytes(data)
    _import("dawnbench", folder / "in", folder)


def _descriptions(folder: Path) -> list[bytes]:
    return [entry(folder / "in").with_suffix(".json").read_bytes()]


def _description(data: bytes, folder: Path) -> None:
    (folder / "in/ImageNet/train/fast.json").write_bytes(data)
    _import("dawnbench", folder / "in", folder)


def _imports(folder: Path) -> list[bytes]:
    repository(folder / "in")
    repository(folder / "in", system="other")
    importing.import_results("mlperf", folder / "in", folder / "made")
    return [name.encode() + b"\n" + (folder / "made" / name).read_bytes() for name in (RECORD, RESULTS)]


def _imported(data: bytes, folder: Path, baseline: str = "system=box") -> None:
    """A file of an import, with the hash in its record made to fit: what a forger would do."""
    name, _, content = data.partition(b"\n")
    other = folder / "other"
    shutil.copytree(folder / "made", other, dirs_exist_ok=True)
    if name == RESULTS.encode():
        (other / RESULTS).write_bytes(content)
        record = json.loads((folder / "made" / RECORD).read_bytes())
        record["results_sha256"] = hashlib.sha256(content).hexdigest()
        content = json.dumps(record).encode()
    (other / RECORD).write_bytes(content)
    for call in (
        lambda: compare_published([other], baseline=baseline).as_json(),
        lambda: compare_published([folder / "made", other]).as_json(),
        lambda: audit(str(other)).model_dump_json(),
        lambda: write([read_published(other)], [], folder / "page"),
    ):
        _tolerant(call)
    shutil.rmtree(other)
