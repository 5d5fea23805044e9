"""The checks of `tests.gpu.smoke`, each run as `python -m tests.gpu.smoke_checks NAME [ARGUMENTS]` in an empty folder.

A check prints what it found in one line; it raises if the device does not do as it should.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

from repro.core.errors import Exit
from tests.gpu.smoke import SKIPPED

KFAC = {"eigen_every": 4, "factor_every": 2}
OFFLOADED = """\
suite: offloaded
seeds: 1
trial:
  workload: digits
  engine: {{kind: deepspeed, stage: {stage}, offload: {offload}}}
  batch: {{global: 64}}
  optimizer: {{kind: adamw, lr: 0.002}}
  stop: {{metric: top1, target: 0.97, max_epochs: 4}}
  evaluate_every: 720
"""
SERVED = """\
suite: served
seeds: 1
trial:
  workload: digits
  processes: 2
  batch: {global: 64}
  optimizer: {kind: sgd, lr: 0.05}
  stop: {metric: top1, target: 0.97, max_epochs: 3}
  evaluate_every: 720
matrix:
  engine: [{kind: async-server, mode: sync}, {kind: async-server, mode: async}]
"""


def skip(reason: str) -> NoReturn:
    """End this check: it cannot be made here."""
    print(reason)
    sys.exit(SKIPPED)


def kernel() -> str:
    """A product on every device is that of the processor, in float64, where no format shortens it."""
    import torch

    kind = torch.accelerator.current_accelerator().type
    one = torch.randn(512, 512, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    for index in range(torch.accelerator.device_count()):
        there = one.to(f"{kind}:{index}")
        furthest = float(((there @ there).cpu() - one @ one).abs().max())
        assert furthest < 1e-9, f"on device {index} a product is wrong by {furthest:g}"
    return f"a product is right on {torch.accelerator.device_count()} device(s), to {furthest:.1g}"


def count() -> str:
    """torch, this project without torch, and its child that computes see the same devices."""
    import torch

    from repro.core.machine import detect
    from repro.record.environment.device_facts import proven_gpus
    from repro.record.environment.gpus import interconnect, used_gpus

    found, (proven, problem), torchs = detect(), proven_gpus(), torch.accelerator.device_count()
    assert found.device == torch.accelerator.current_accelerator().type, found
    assert found.device_count == proven == torchs, (
        f"{found.device_count} planned, {proven} compute {problem}, torch has {torchs}")
    lines = used_gpus()
    assert len(lines) == torchs, f"described: {lines}"
    return f"{torchs} everywhere; {lines[0]}; {interconnect(torchs)}"


def clock() -> str:
    """Seconds of a block of steps by events are those of the host around it."""
    import torch

    from repro.core import devices
    from repro.worker.clock import make_clock

    device = devices.of_rank(devices.GPU, 0)
    devices.use(device)
    timer = make_clock(device, None).timer
    large = torch.randn(1024, 1024, device=device)

    def step(products: int) -> None:
        for _ in range(products):
            large.copy_(large @ large).clamp_(-1, 1)

    products, taken = 8, 0.0
    while taken < 0.3:  # so long that the host's part in it is small
        products *= 2
        devices.wait(device)
        began = time.perf_counter()
        timer.start()
        for _ in range(4):
            timer.mark_input()
            step(products)
            timer.mark_step()
        devices.wait(device)
        taken = time.perf_counter() - began
    steps, inputs = timer.read()
    assert len(steps) == 4 and min(steps) > 0 and min(inputs) >= 0, (steps, inputs)
    by_events = sum(steps) + sum(inputs)
    text = f"{by_events:.4f} s by events, {taken:.4f} s by the host, {products} products a step"
    assert abs(by_events - taken) < 0.05 * taken, text
    return text


def group() -> str:
    """A world of one rank: objects are gathered, a bare barrier ends, a synchronous collective overlaps nothing."""
    import torch
    import torch.distributed as dist

    from repro.comm.algorithms.ring import Ring
    from repro.core import devices
    from tests.commands import free_port

    device, comm = devices.of_rank(devices.GPU, 0), Ring()
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()), LOCAL_RANK="0")
    comm.start(0, 1, device, 60)
    gathered: list[Any] = [None]
    dist.all_gather_object(gathered, {"rank": 0})
    assert gathered == [{"rank": 0}], gathered
    dist.barrier()
    values = torch.arange(1 << 20, device=device, dtype=torch.float32)
    dist.all_reduce(values)
    comm.traffic()  # the first one connects
    for _ in range(10):
        values.mul_(1.0)
        dist.all_reduce(values)
    assert float(values[-1]) == (1 << 20) - 1
    found = comm.traffic()  # before an asynchronous one, which may overlap
    work = dist.broadcast(values, 0, async_op=True)
    work.wait()
    assert float(values[-1]) == (1 << 20) - 1
    dist.destroy_process_group()
    assert found["overlapped_seconds"] < 1e-6 + 0.01 * found["busy_seconds"], found
    return (f"{comm.effective()}; busy {found['busy_seconds']:.3g} s, exposed {found['exposed_seconds']:.3g} s, "
            f"overlapped {found['overlapped_seconds']:.3g} s")


def train(engine: str, optimizer: str, precision: str, world: str = "1", more: str = "") -> str:
    """Four steps of an engine end where the plain loop does: on the same device, and for `single` on the processor."""
    import numpy as np
    import torch

    from repro.core import registry
    from repro.core.devices import CPU, GPU
    from tests.engine_ranks import ADAMW, ON_GPU, SGD, Case, Ranks, furthest, same_bytes
    from tests.engine_ranks import train as trained
    from tests.gpu.cases import unsupported

    name, _, stage = engine.partition("-")
    options = {"stage": int(stage)} if stage else {}
    made = registry.load("engine", "deepspeed" if name == "zero" else name)(**options)
    case = Case(made, int(world), 2, SGD if optimizer == "sgd" else ADAMW, 0.5,
                registry.load("precision", precision)(), warm_up=True, steps=4, device=GPU, overlap=None)
    if more == "kfac":
        case = replace(case, preconditioner=registry.load("preconditioner", "kfac")(**KFAC))
    elif more:
        hybrid = {"alpha_seconds": 1e-4, "beta_seconds": 1e-9} if more == "hybrid" else {}
        case = replace(case, comm=registry.load("comm", more)(**hybrid))
    if reason := unsupported(case):
        skip(reason)
    plain = Case(registry.load("engine", "single")(), optimizer=case.optimizer, clip=case.clip, steps=4,
                 device=CPU if name == "single" else GPU, preconditioner=case.preconditioner.alone())
    os.environ.update(DS_ACCELERATOR=GPU, **{ON_GPU: "1"})
    if case.world > 1:
        ranks = Ranks()
        try:
            reference, found = ranks(plain)[0], ranks(case)
        finally:
            ranks.end()
    else:
        from tests.commands import free_port

        torch.set_num_threads(1)
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()), LOCAL_RANK="0")
        reference, found = trained(plain, 0), [trained(case, 0)]
    for rank in found:
        assert same_bytes(rank["weights"], found[0]["weights"]), "the ranks end with other weights"
    losses = float(np.max(np.abs(np.subtract(found[0]["losses"], reference["losses"]))))
    weights = furthest(found[0]["weights"], reference["weights"])
    whole = precision == "fp32"
    effective = found[0]["effective"]
    text = (f"losses within {losses:.1g}, weights within {weights:.1g} of the plain loop; "
            + ", ".join(f"{key} {effective[key]}" for key in ("optimizer_kernel", "comm") if key in effective))
    assert np.isfinite(found[0]["losses"]).all(), found[0]["losses"]
    assert losses < (1e-4 if whole else 0.1), text
    assert not whole or weights < 1e-3, text
    if case.comm.own_algorithm:
        traffic = found[0]["traffic"]
        assert traffic["busy_seconds"] > 0 and traffic["overlapped_seconds"] >= 0, traffic
    return text


def offload(engine: str) -> str:
    """DeepSpeed's optimizer on the processor, weights on the device; with stage 3 the weights too."""
    stage = engine.partition("-")[2]
    return suite(OFFLOADED.format(stage=stage, offload="optimizer+weights" if stage == "3" else "optimizer"))


def workers() -> str:
    """Input workers feed the same bytes as the rank, through pinned memory."""
    from tests.gpu.trials import FED, results

    said = suite(FED.format(device="cuda"))
    found = results(Path())
    assert {item.effective["input_workers"] for item in found} == {"0", "2"}, found
    assert len({item.hashes["final_weights"] for item in found}) == 1, "the weights differ"
    return f"{said}; the same weights with and without"


def server() -> str:
    """A parameter server, synchronous and asynchronous, on two devices."""
    return suite(SERVED)


def killed(engine: str) -> str:
    """A trial whose rank is killed resumes from its checkpoint, and ends with the weights of one that was not."""
    from tests.gpu.trials import KILLED, LIMIT_SECONDS, end, kill_a_rank, results, start

    name, _, stage = engine.partition("-")
    text = KILLED.format(engine=f"{{kind: deepspeed, stage: {stage}}}" if stage else name, processes=1, device="cuda",
                         epochs=20)
    runs = [start(Path("whole").resolve(), text)]
    try:
        print(*runs[0].communicate(timeout=LIMIT_SECONDS))
        runs.append(start(Path("killed").resolve(), text))
        kill_a_rank(runs[1], Path("killed"))
        print(*runs[1].communicate(timeout=LIMIT_SECONDS))
    finally:
        for run in runs:
            end(run)
    (expected,), (found,) = results(Path("whole")), results(Path("killed"))  # else what they printed is the reason
    assert found.attempt == 2 and found.resumed, f"attempt {found.attempt}: {found.reasons}"
    assert found.hashes["final_weights"] == expected.hashes["final_weights"], "the weights differ"
    return "resumed, and the same weights"


def quickstart(*more: str) -> str:
    """The bundled quickstart, one pair of trials in one process."""
    return repro_run("quickstart", "--seeds", "1", "-o", "sequential=null", "-o", "processes=1", *more)


def quickstart_cpu() -> str:
    """The quickstart on the processor of a machine that has a GPU: what who has one GPU tries for two processes."""
    return repro_run("quickstart", "--seeds", "1", "-o", "sequential=null", "-o", "device=cpu", device="cpu")


def doctor() -> str:
    """What `repro doctor --device` measures, as JSON."""
    from repro.record.environment.device_facts import measure

    found = measure()
    print(found.model_dump_json())
    if found.problem or not all(copy.intact for copy in found.copies):
        raise RuntimeError(found.problem or "copies arrive changed")
    return ""


def suite(text: str) -> str:
    """Run a suite; return what its trials did."""
    Path("suite.yaml").write_text(text)
    return repro_run("suite.yaml", "--master-seed", "7")


def repro_run(*arguments: str, device: str = "cuda") -> str:
    """Run `repro run` into the folder `run`; return its statuses and times a trial, all of them on `device`."""
    from tests.gpu.trials import results

    answer, said = Path("answer.json"), ""
    with answer.open("w") as handle:
        process = subprocess.Popen([sys.executable, "-m", "repro", "run", *arguments, "--out", "run", "--no-mlflow",
                                    "--json"], stdout=handle, stderr=subprocess.PIPE, text=True)
        assert process.stderr is not None
        for line in process.stderr:
            print(line, end="", flush=True)  # what a check that has no end said last
            said = line.strip() or said
    code = process.wait()
    if code not in (Exit.DONE, Exit.NOT_REPRODUCED):  # the second: a target was missed
        raise RuntimeError(f"repro run ended with code {code}: {said or 'it said nothing'}")
    statuses = json.loads(answer.read_text())["trials"]
    found = results(Path())
    assert set(statuses) <= {"ok", "missed"}, (statuses, [item.reasons for item in found])
    recorded = json.loads(Path("run/environment.json").read_text())["devices"] if device != "cpu" else [device]
    assert recorded, "no device in the record"
    names = dict.fromkeys(item.partition(",")[0] for item in recorded)
    return f"{len(found)} trial(s) {' and '.join(dict.fromkeys(statuses))}, on {', '.join(names)}"


CHECKS: dict[str, Callable[..., str]] = {
    item.__name__: item for item in (kernel, count, clock, group, train, offload, workers, server, killed, quickstart,
                                     quickstart_cpu, doctor)}

if __name__ == "__main__":
    print(CHECKS[sys.argv[1]](*sys.argv[2:]))
