"""Time to import, report and open a full round of published results: a round made up, or a sample repeated, each
command in a separate process.
"""

from __future__ import annotations

import json
import math
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any, Literal

from benchmarks.command import CommandCost, timed
from repro.core.errors import UsageError
from repro.core.frozen import Frozen
from repro.published.untrusted.files import walk

IMPORT_SECONDS, MEBIBYTES, OPEN_SECONDS, PAGE_MEGABYTES = 60.0, 1024.0, 3.0, 15.0
"""Limits promised by the project for a full round of about 2,000 logs and 0.3 to 0.5 GB on two cores."""
SPEEDRUN_SECONDS, SPEEDRUN_MEBIBYTES = 30.0, 500e6 / (1 << 20)
"""Limits for all records of the speed-run: 1,500 logs, 230 MB."""
RUNS = 5
"""Logs of one made-up system."""
RECORD_RUNS = 10
"""Logs of one arm; a record has two."""
STEPS, EVERY = 1400, 250
RULE = "=" * 100 + "\n"
START_MS = 1_700_000_000_000
BROWSERS = ("chromium", "chromium-browser", "google-chrome")


class ImportScale(Frozen):
    """Size of a round, the cost of reading it, and the size of its page."""

    made_of: str
    logs: int
    systems: int
    megabytes: float
    """Size of all files, 10^6 bytes."""
    steps: tuple[CommandCost, ...]
    page_megabytes: float
    open_seconds: float | None
    """Time from the request for the page to its `load` event in headless Chromium, median of three windows that share
    nothing; None: not measured."""
    not_opened: str = ""
    """Reason why the page was not opened."""
    import_seconds: float = IMPORT_SECONDS
    """Promised."""
    mebibytes: float = MEBIBYTES
    """Promised."""

    def text(self) -> str:
        """Format the result for the terminal."""
        opened = f"not measured: {self.not_opened}" if self.open_seconds is None else f"{self.open_seconds:.2f} s"
        return "\n".join([
            f"{self.logs:,} logs in {self.systems:,} folders, {self.megabytes:,.0f} MB, made of "
            f"{self.made_of}",
            *(f"  {step.command:<14} {step.seconds:>7.2f} s  {step.peak_mebibytes:>6.0f} MiB at most"
              for step in self.steps),
            f"  the page       {self.page_megabytes:>7.2f} MB; opens in Chromium: {opened}",
            f"promised: import in {self.import_seconds:g} s within {self.mebibytes:.0f} MiB, a page of less than "
            f"{PAGE_MEGABYTES:g} MB that opens within {OPEN_SECONDS:g} s",
            *(f"not held: {text}" for text in self.broken()),
            "measured on this machine, now",
        ])

    def broken(self) -> tuple[str, ...]:
        """Return the promises that did not hold; a page that was not opened breaks none."""
        step = self.steps[0]
        found = ((step.seconds < self.import_seconds, f"the import took {step.seconds:.1f} s"),
                 (max(item.peak_mebibytes for item in self.steps) < self.mebibytes, "more memory than promised"),
                 (self.page_megabytes < PAGE_MEGABYTES, f"the page has {self.page_megabytes:.1f} MB"),
                 ((self.open_seconds or 0.0) < OPEN_SECONDS, "the page opens too late"))
        return tuple(text for held, text in found if not held)


def measure(
    logs: int = 2000, megabytes: float = 400.0, sample: Path | None = None,
    program: Literal["mlperf", "speedrun"] = "mlperf",
) -> ImportScale:
    """Make at least `logs` logs of about `megabytes` (10^6 bytes) in all, import them, report them, open the page.

    Args:
        sample: a folder of MLPerf result logs to repeat; None: made-up logs.

    Raises:
        UsageError: no log below `sample`, or it is to be repeated as records of the speed-run.
        ReproError: a command failed.
    """
    if sample is not None and program != "mlperf":
        raise UsageError("a sample is of logs of MLPerf; leave it out for the speed-run")
    with tempfile.TemporaryDirectory(prefix="repro-bench-") as name:
        root = Path(name)
        if program == "speedrun":
            make_records(root / "round", logs, megabytes)
        elif sample is None:
            make_round(root / "round", logs, megabytes)
        else:
            repeat_sample(sample, root / "round", logs, megabytes)
        files = [path for path in (root / "round").rglob("*") if path.is_file()]
        found = [path for path in files if path.suffix == ".txt"]
        steps = (timed("import", ["import", program, str(root / "round"), "--out", str(root / "out")]),
                 timed("report to html", ["report", str(root / "out"), "--out", str(root / "page")]))
        page = root / "page" / "published.html"
        seconds, why = opened(page)
        return ImportScale(
            made_of="made-up logs" if sample is None else "a sample repeated", logs=len(found),
            systems=len({path.parent for path in found}), megabytes=sum(path.stat().st_size for path in files) / 1e6,
            steps=steps, page_megabytes=page.stat().st_size / 1e6, open_seconds=seconds, not_opened=why,
            **({"import_seconds": SPEEDRUN_SECONDS, "mebibytes": SPEEDRUN_MEBIBYTES} if program == "speedrun" else {}),
        )


def make_round(root: Path, logs: int, megabytes: float) -> None:
    """Write a round of closed ResNet results; logs are filled with lines of other programs up to the size."""
    each = int(megabytes * 1e6 / max(1, logs))
    for system in range(math.ceil(logs / RUNS)):
        home = root / "training_v4.0" / f"Org{system % 40:02d}"
        folder = home / "results" / f"box{system:04d}" / "resnet"
        folder.mkdir(parents=True)
        (home / "systems").mkdir(exist_ok=True)
        (home / "systems" / f"box{system:04d}.json").write_text(json.dumps({
            "submitter": f"Org{system % 40:02d}", "division": "closed", "status": "onprem",
            "number_of_nodes": 1 + system, "accelerators_per_node": 8,
            "accelerator_model_name": f"Chip {system % 9}", "framework": "Frame 1.0"}))
        for run in range(RUNS):
            (folder / f"result_{run}.txt").write_text(filled("".join(_lines(system, run)), each))


def make_records(root: Path, logs: int, megabytes: float) -> None:
    """Write records of two arms; the text of the program fills each log up to the size."""
    each = int(megabytes * 1e6 / max(1, logs))
    for index in range(logs):
        record, place = divmod(index, 2 * RECORD_RUNS)
        arm = ("baseline", "this_pr")[place // RECORD_RUNS]
        date = f"{2024 + record // 48}-{1 + record // 4 % 12:02d}-{1 + record % 4:02d}"
        folder = root / "track_1_short" / f"{date}_Record{record}"
        (folder / arm).mkdir(parents=True, exist_ok=True)
        lines = "".join(_record_lines(record, place, faster=0.99 if arm == "this_pr" else 1.0))
        line = "    x = F.rms_norm(x, (x.size(-1),)) @ self.weight.bfloat16()  # a line of the program\n"
        program = line * max(1, (each - len(lines)) // len(line))
        (folder / arm / f"{index:08d}.txt").write_text(program + lines)


def repeat_sample(sample: Path, root: Path, logs: int, megabytes: float) -> None:
    """Write copies of every file of `sample`, each under separate organisations, filled with lines of other programs.

    Raises:
        UsageError: no log below `sample`.
    """
    found = [item for item in walk(sample) if not item.refusal]
    counted = sum(item.parts[-1].startswith("result_") for item in found)
    if not counted:
        raise UsageError(f"{sample}: no result log (result_N.txt) below it")
    copies = math.ceil(logs / counted)
    each = int(megabytes * 1e6 / (copies * counted))
    for copy in range(copies):
        for item in found:
            org, *rest = item.path.relative_to(sample).parts
            target = root / sample.resolve().name / f"{org}-{copy:03d}" / Path(*rest)
            target.parent.mkdir(parents=True, exist_ok=True)
            if item.parts[-1].startswith("result_"):
                content = item.path.read_bytes()
                target.write_bytes(content + filled("", each - len(content)).encode())
            else:
                shutil.copyfile(item.path, target)


def filled(text: str, size: int) -> str:
    """Append lines of another program to `text` until it has at least `size` characters."""
    line = "[12:00:00] INFO step 1000 loss 0.693147 images/s 20480 lr 0.1\n"
    return text + line * max(0, math.ceil((size - len(text)) / len(line)))


def _lines(system: int, run: int) -> Iterator[str]:
    seconds, evaluations = 300.0 + 3 * system + run, 35 + system % 40
    for key, value in (("submission_org", f"Org{system % 40:02d}"), ("submission_benchmark", "resnet"),
                       ("submission_division", "closed"), ("submission_status", "onprem"),
                       ("seed", 1000 * system + run), ("global_batch_size", 1024 << system % 6), ("opt_name", "lars"),
                       ("train_samples", 1_281_167), ("opt_base_learning_rate", 10.0), ("opt_weight_decay", 5e-5)):
        yield _event(key, value, -20.0)
    yield _event("run_start", None, 0.0)
    for index in range(1, evaluations + 1):
        at = (seconds - 1) * index / evaluations
        yield _event("epoch_start", None, at - 0.5, epoch_num=index)
        yield _event("eval_accuracy", 0.1 + 0.66 * index / evaluations, at, epoch_num=index)
        yield _event("epoch_stop", None, at, epoch_num=index)
    yield _event("run_stop", None, seconds, status="success")


def _record_lines(record: int, place: int, faster: float) -> Iterator[str]:
    yield RULE
    yield "Running Python 3.12.3 (main)\nRunning PyTorch 2.10.0+cu128 compiled for CUDA 12.8\n"
    yield "Fri Jul 17 11:47:52 2026\n| NVIDIA-SMI 580.1      Driver Version: 580.1      CUDA Version: 13.0   |\n"
    for gpu in range(8):
        yield f"|   {gpu}  NVIDIA H100 80GB HBM3      On  |   00000000:{16 + gpu:02X}:00.0 Off |         0 |\n"
    yield RULE
    seconds = faster * 1300 * 0.96**record * (1 + 1e-4 * (place * 7 % 11))
    for step in range(STEPS + 1):
        at = seconds * 1e3 * step / STEPS
        tail = f"train_time:{at:.0f}ms step_avg:{seconds * 1e3 / STEPS:.2f}ms\n"
        if step % EVERY == 0 or step == STEPS:
            loss = 3.278 + 2e-4 * (place * 3 % 10) if step == STEPS else 10.8 - 7 * step / STEPS
            yield f"step:{step}/{STEPS} val_loss:{loss:.4f} {tail}"
        yield f"step:{step}/{STEPS} {tail}"


def _event(key: str, value: Any, at: float, **metadata: Any) -> str:
    data = {"namespace": "", "time_ms": START_MS + round(at * 1000), "event_type": "POINT_IN_TIME", "key": key,
            "value": value, "metadata": {"file": "train.py", "lineno": 1, **metadata}}
    return f":::MLLOG {json.dumps(data)}\n"


def opened(page: Path) -> tuple[float | None, str]:
    """Open a page in headless Chromium; return (seconds to its `load` event, reason why it was not opened)."""
    try:
        from playwright.sync_api import Error, sync_playwright
    except ImportError:
        return None, "playwright is not installed"
    browser = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    with sync_playwright() as playwright:
        try:
            started = playwright.chromium.launch(executable_path=browser, args=["--no-sandbox", "--disable-gpu"])
        except Error as error:
            return None, f"Chromium does not start: {str(error).splitlines()[0]}"
        seconds = []
        for _ in range(3):
            tab = started.new_page(viewport={"width": 1280, "height": 900})
            began = time.perf_counter()
            tab.goto(page.as_uri(), wait_until="load")
            seconds.append(time.perf_counter() - began)
            tab.close()
        started.close()
    return median(seconds), ""
