"""Bugs planted in the project's own code, each in a copy, that a run on a CPU forgives: does the rehearsal see them?"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from tests.emulated_cuda.rehearsed import OPTIMIZERS, Rehearsed, small

ROOT = Path(__file__).parents[2]
PARTS = ("repro", "reporters", "suites", "templates")
DDP = small("ddp", {"engine": ["ddp"]}, 1, processes=2)
RING = small("ring", {"engine": ["ddp"]}, 1, processes=2, comm="ring")
FED = small("fed", {"input.workers": (2,)}, 1, processes=1, workload="text", batch="{global: 16}",
            optimizer=OPTIMIZERS["adamw"], stop="{design: fixed_steps, steps: 12, warmup: 4}", evaluate_every=None)


@dataclass(frozen=True)
class Mutant:
    """A text of one file and what a bug makes of it."""

    name: str
    path: str
    before: str
    after: str
    run: Rehearsed
    """What shows it."""
    words: str
    """In what the run says."""

    def plant(self, folder: Path) -> Path:
        """Copy the project into `folder` with the bug; return the copy's root."""
        for part in PARTS:
            shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
        file = folder / self.path
        text = file.read_text()
        assert text.count(self.before) == 1, f"{self.path} has changed: plant {self.name!r} again"
        file.write_text(text.replace(self.before, self.after))
        return folder


MUTANTS = [
    Mutant("every rank on the first device", "repro/core/devices.py", 'f"{kind}:{local_rank}" if', 'f"{kind}:0" if',
           DDP, "Duplicate GPU detected"),
    Mutant("DDP on the first device", "repro/engines/plain/ddp_session.py", "devices.gpus_of(self.device) or None",
           "[0] if devices.on_gpu(self.device) else None", DDP, "at least two devices"),
    Mutant("batches left on the CPU", "repro/seams/workload.py", "if not on_gpu(device):\n        return batch",
           "if True:\n        return batch", FED, "aten::record_stream"),
    Mutant("sums of ranks on the CPU", "repro/engines/plain/session.py",
           "dtype=torch.float64, device=self.device)\n        dist.all_reduce(sums)",
           "dtype=torch.float64)\n        dist.all_reduce(sums)", DDP, "device type cpu"),
    Mutant("copies of batches not joined", "repro/worker/input/pipeline.py",
           "        computing.wait_stream(self._stream)\n", "", FED, "race"),
    Mutant("batches freed while they are read", "repro/worker/input/pipeline.py", "tensor.record_stream(computing)",
           "pass", FED, "was freed while"),
    Mutant("collectives that start too early", "repro/comm/runtime/meter.py",
           "            self.stream.wait_event(mark)\n", "", RING, "race"),
    Mutant("results of collectives used too early", "repro/comm/runtime/meter.py",
           "devices.current_stream(self.device).wait_event(mark)", "pass", RING, "race"),
]
