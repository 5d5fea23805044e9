"""32 emulated nodes on whatever machine this is, as root and as an ordinary user: bytes equal the formulas."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from repro.comm.algorithms.ring import Ring
from repro.launchers.netns.probe import ability
from repro.papers.jizhi.hybrid import Hybrid
from repro.record.result.parts import Network
from tests.other_users import environment_of, ordinary_users

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(ability().problem), reason=ability().problem),
    pytest.mark.skipif(not shutil.which("setpriv"), reason="no setpriv to become an ordinary user with"),
]
RANKS, SIZES, ITEM = 32, (4 << 10, 1 << 20), 4
LINKS = {"alpha_seconds": 1e-3, "beta_seconds": 1.6e-7, "among": ["direct", "butterfly", "ring", "tree"]}
"""Given, so that hybrid picks by the model and leaves nothing to the backend, which does not count."""


def reduce(folder: str, payload: Mapping[str, Any]) -> None:
    """Entry: all-reduces of all sizes by one algorithm; bytes, open files and memory of this rank."""
    import torch
    import torch.distributed as dist

    algorithm = Hybrid(**LINKS) if payload["hybrid"] else Ring()  # type: ignore[arg-type]  # read by pydantic
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    algorithm.start(rank, world, "cpu", 120)
    algorithm.traffic()
    for size in SIZES:
        tensor = torch.full((size // ITEM,), float(rank))
        dist.all_reduce(tensor)
        assert float(tensor[-1]) == world * (world - 1) / 2
    sent = sum(line["sent_bytes"] for line in algorithm.traffic()["lines"])
    memory = next(int(line.split()[1]) for line in Path("/proc/self/smaps_rollup").read_text().splitlines()
                  if line.startswith("Pss:"))
    found = {"sent": sent, "files": len(list(Path("/proc/self/fd").iterdir())), "pss_kib": memory}
    (Path(folder) / f"found{rank}.json").write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


PARENT = """\
import json, sys
from pathlib import Path
from repro.launchers.emulated import Fabric
from repro.seams.launching import LaunchRequest

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    fabric = Fabric(rate="200mbit", monitor_seconds=0.02)
    fabric.open(("torch", "pyroute2", "tests.flow.test_many_nodes"), "cpu")
    try:
        for name in ("ring", "hybrid"):
            (folder / name).mkdir()
            done = fabric.launch(LaunchRequest("tests.flow.test_many_nodes:reduce", {"hybrid": name == "hybrid"},
                                               32, "cpu", folder / name, 200.0))
            assert done.ok, done.failure_text()
            (folder / name / "network.json").write_text(json.dumps(done.network))
    finally:
        fabric.close()
"""


@pytest.mark.parametrize(("prefix", "python"), ordinary_users())
def test_the_bytes_of_32_nodes_are_the_formulas(tmp_path: Path, prefix: tuple[str, ...], python: str) -> None:
    tmp_path.chmod(0o777)
    for folder in tmp_path.parents[:2]:
        folder.chmod(0o755)
    (tmp_path / "parent.py").write_text(PARENT)
    done = subprocess.run([*prefix, python, str(tmp_path / "parent.py"), str(tmp_path)], env=environment_of(tmp_path),
                          cwd=tmp_path, capture_output=True, text=True, check=False, timeout=400)
    assert done.returncode == 0, done.stderr
    for name, algorithm in (("ring", Ring()), ("hybrid", Hybrid(**LINKS))):  # type: ignore[arg-type]
        ranks = [json.loads((tmp_path / name / f"found{rank}.json").read_text()) for rank in range(RANKS)]
        print(f"{name}: open files {max(item['files'] for item in ranks)} a rank, memory (PSS) "
              f"{sum(item['pss_kib'] for item in ranks) / 1024:.0f} MiB of {RANKS} ranks")
        by_rank = [0] * RANKS
        for size in SIZES:
            for item in algorithm.all_reduce(RANKS, size // ITEM, ITEM):
                by_rank[item.source] += (item.stop - item.start) * ITEM
        assert [item["sent"] for item in ranks] == by_rank
        network = Network.model_validate_json((tmp_path / name / "network.json").read_text())
        # Headers, acknowledgements, connections of 31 neighbours and the barrier come on top.
        for sent, out in zip(by_rank, network.sent_bytes, strict=True):
            assert sent < out < 1.05 * sent + 200_000
