"""A made-up folder of all records of a speed-run, as large as the public one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

RUNS = 10
"""Logs of one arm; a record has two."""
STEPS, EVERY = 1400, 250
RULE = "=" * 100 + "\n"


def make_records(root: Path, logs: int, megabytes: float) -> None:
    """Write records of two arms; the text of the program fills each log up to the size."""
    each = int(megabytes * 1e6 / max(1, logs))
    for index in range(logs):
        record, place = divmod(index, 2 * RUNS)
        arm = ("baseline", "this_pr")[place // RUNS]
        date = f"{2024 + record // 48}-{1 + record // 4 % 12:02d}-{1 + record % 4:02d}"
        folder = root / "track_1_short" / f"{date}_Record{record}"
        (folder / arm).mkdir(parents=True, exist_ok=True)
        lines = "".join(_lines(record, place, faster=0.99 if arm == "this_pr" else 1.0))
        line = "    x = F.rms_norm(x, (x.size(-1),)) @ self.weight.bfloat16()  # a line of the program\n"
        program = line * max(1, (each - len(lines)) // len(line))
        (folder / arm / f"{index:08d}.txt").write_text(program + lines)


def _lines(record: int, place: int, faster: float) -> Iterator[str]:
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
