"""What is rehearsed on the emulated device, as data: suites that the command line runs from the gate to the page."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

from tests.plans import suite

SCATTERED = "{kind: deepspeed, stage: 3, config: {zero_optimization: {stage3_param_persistence_threshold: 0}}}"
"""ZeRO 3 that gathers small tensors too; by default it keeps tensors of this size complete on every rank."""
ENGINES = {
    "single": "single", "ddp": "ddp", "fsdp": "fsdp", "fsdp-model": "{kind: fsdp, wrap: model}",
    **{f"zero{stage}": f"{{kind: deepspeed, stage: {stage}}}" for stage in range(4)}, "zero3-scattered": SCATTERED,
}
OPTIMIZERS = {"sgd": "{kind: sgd, lr: 0.05, momentum: 0.9, nesterov: true, weight_decay: 0.0005}",
              "adamw": "{kind: adamw, lr: 0.002, weight_decay: 0.1}"}
PRECISIONS = ("fp32", "tf32", "bf16-autocast", "bf16-master", "fp16-autocast", "fp16-master")
ALGORITHMS = {
    "ring": "ring", "tree": "{kind: tree, arity: 2}", "butterfly": "butterfly", "halving-doubling": "halving-doubling",
    "parameter-server": "parameter-server", "two-servers": "{kind: parameter-server, shards: 2}",
    "multicolor": "{kind: multicolor, colors: 2, arity: 2}", "masters": "{kind: hierarchical, group: 2, form: masters}",
    "torus": "{kind: hierarchical, group: 2, form: torus}",
    "hybrid": "{kind: hybrid, alpha_seconds: 1.0e-4, beta_seconds: 1.0e-9}",
}
SCATTERING = ("ring", "halving-doubling", "hybrid")
"""Algorithms that run what FSDP sends; under the others the plan refuses it."""
SMALL = "{kind: digits-mlp, hidden: 32, depth: 1}"
KFAC = "{kind: kfac, damping: 0.03}"
KFAC_LW = "{kind: kfac, damping: 0.03, placement: lw}"


@dataclass(frozen=True)
class Rehearsed:
    """A run of a suite on emulated devices."""

    name: str
    text: str
    """The suite, as YAML; or a bundled suite's name and options, as a command line."""
    trials: int
    """How many trials must end, each with a record that verifies."""
    devices: int = 2
    refused: int = 0
    """How many cells the plan leaves out, with a reason."""
    fast: bool = False
    """Part of `make test`."""
    bundled: bool = False


def small(name: str, matrix: dict[str, Any], trials: int, *, devices: int = 2, refused: int = 0,
          fast: bool = False, **trial: object) -> Rehearsed:
    """A suite of one short trial a cell: one pass over the digits, two evaluations."""
    rows = "".join(f"  {key}: [{', '.join(map(str, values))}]\n" for key, values in matrix.items())
    stated: dict[str, object] = {"workload": SMALL, "optimizer": OPTIMIZERS["sgd"], "device": None,
                                 "stop": "{metric: top1, target: 0.5, max_epochs: 1}", "evaluate_every": 720,
                                 "timeout_seconds": 120}
    return Rehearsed(name, suite("rehearsed", f"matrix:\n{rows}", **stated | trial), trials, devices, refused,
                     fast)


def precisions(engine: str, processes: tuple[int, ...]) -> tuple[int, int]:
    """Return how many cells of an engine over all precisions run, and how many the plan refuses (docs/method.md)."""
    refused = {"zero0": ("fp16-master",), "zero1": ("fp16-autocast",), "zero2": ("fp16-autocast",),
               "zero3": ("fp16-autocast",)}.get(engine.partition("-")[0], ())
    return (len(PRECISIONS) - len(refused)) * len(processes), len(refused) * len(processes)


def engines() -> Iterator[Rehearsed]:
    for (name, engine), optimizer in product(ENGINES.items(), OPTIMIZERS):
        processes = (1,) if name == "single" else (1, 2)
        trials, refused = precisions(name, processes)
        yield small(f"{name}-{optimizer}", {"precision": PRECISIONS, "processes": processes}, trials, refused=refused,
                    engine=engine, optimizer=OPTIMIZERS[optimizer])


def algorithms() -> Iterator[Rehearsed]:
    for name, comm in ALGORITHMS.items():
        for devices in (2, 4):
            scattered = name in SCATTERING
            yield small(f"{name}-{devices}", {"engine": ["ddp", "{kind: deepspeed, stage: 1}", "fsdp"]}, 2 + scattered,
                        refused=1 - scattered, devices=devices, comm=comm, processes=devices,
                        optimizer=OPTIMIZERS["adamw"])
    yield small("ring-zero", {"engine": [f"{{kind: deepspeed, stage: {stage}}}" for stage in (0, 2, 3)]}, 3,
                comm="ring", processes=2)


def rest() -> Iterator[Rehearsed]:
    both = ["ddp", "{kind: deepspeed, stage: 1}"]
    yield small("both-engines", {"engine": both}, 2, fast=True, processes=2)
    yield small("both-engines-and-processes", {"engine": both, "processes": (1, 2)}, 4)
    yield small("kfac", {"engine": ["ddp", "{kind: deepspeed, stage: 0}"], "preconditioner": [KFAC, KFAC_LW],
                         "comm": ["backend", "ring"]}, 8, processes=2)
    yield small("local-sgd", {"engine": ["{kind: local-sgd, every: 4}", "{kind: local-sgd, every: 4, outer: {lr: 0.7, "
                              "momentum: 0.9, nesterov: true}}"], "comm": ["backend", "ring"]}, 4, processes=2)
    servers = ["{kind: async-server, mode: sync, shards: 2}", "{kind: async-server, mode: async, shards: 2}",
               "{kind: async-server, mode: ssp, staleness: 1}", "{kind: async-server, mode: sync, servers: own}",
               "{kind: async-server, mode: async, servers: own}"]
    for number, engine in enumerate(servers):
        yield small(f"server-{number}", {"engine": [engine]}, 1, devices=4, processes=2,
                    optimizer="{kind: sgd, lr: 0.02}")
    yield small("compression", {"engine": ["ddp"], "compression": ["fp16", "bf16", "powersgd"]}, 3, processes=2)
    yield small("sends", {"engine": [f"{{kind: ddp, send: {send}}}" for send in ("layerwise", "blocking")] +
                          ["{kind: ddp, send: layerwise, sufficient_factors: all}"], "comm": ["backend", "ring"]}, 6,
                processes=2)
    yield small("offload", {"engine": ["{kind: deepspeed, stage: 1, offload: optimizer}"]}, 1, processes=2,
                optimizer=OPTIMIZERS["adamw"])
    yield small("offload-weights", {"engine": ["ddp", "{kind: deepspeed, stage: 3, offload: optimizer+weights}"]}, 2,
                processes=2, optimizer=OPTIMIZERS["adamw"])
    # Long enough for steps that are kept and repeated; fused optimizers, which divide by the loss scale themselves.
    long: dict[str, object] = {"processes": 2, "optimizer": OPTIMIZERS["adamw"], "gradient_clip": 1.0, "stop": (
        "{metric: top1, target: 0.99, max_epochs: 6}")}
    zero = [f"{{kind: deepspeed, stage: {stage}}}" for stage in range(4)]
    yield small("kept-steps", {"engine": ["ddp", "fsdp", *zero], "precision": ["fp32", "bf16-master"]}, 12, **long)
    yield small("kept-steps-scaled", {"engine": ["ddp", "fsdp", zero[0]]}, 3, precision="fp16-autocast", **long)
    yield small("kept-steps-unclipped", {"engine": ["ddp", "fsdp", zero[0]]}, 3, precision="fp16-autocast", **(
        long | {"gradient_clip": None}))
    yield small("kept-steps-scaled-masters", {"engine": ["ddp", "fsdp", *zero[1:]]}, 5, precision="fp16-master", **long)
    yield small("kept-steps-offload", {"engine": [f"{{kind: deepspeed, stage: {stage}, offload: optimizer}}"
                                                  for stage in (1, 2, 3)]}, 3, **long)
    yield small("zero-plus-plus", {"engine": ["{kind: deepspeed, stage: 3, hpz: 2}"]}, 1, processes=2)
    yield small("input-workers", {"input.workers": (0, 2), "engine": ["ddp", "{kind: deepspeed, stage: 2}"]}, 4,
                processes=2, workload="text", batch="{global: 16}", optimizer=OPTIMIZERS["adamw"],
                stop="{design: fixed_steps, steps: 12, warmup: 4}", evaluate_every=None)
    yield small("inline", {"engine": ["single", "{kind: deepspeed, stage: 1}"]}, 2, launcher="inline", processes=1)
    yield small("model-options", {"activation_checkpointing": ("true", "false"), "engine": [
        "ddp", "fsdp", "{kind: deepspeed, stage: 3}"]}, 6, processes=2, workload="digits")
    yield small("batch-norm", {"engine": ["ddp", "fsdp", "{kind: deepspeed, stage: 2}"]}, 3, processes=2,
                workload="{kind: digits, norm: batch}", optimizer=OPTIMIZERS["adamw"])
    yield small("accumulation", {"engine": ["ddp", "fsdp", "{kind: deepspeed, stage: 2}"]}, 3, processes=2,
                batch="{global: 64, accumulation: 2}", gradient_clip=1.0, optimizer=OPTIMIZERS["adamw"])


def suites() -> Iterator[Rehearsed]:
    short = "--seeds 1 -o stop.max_epochs=1"
    yield Rehearsed("quickstart", "quickstart --seeds 2 -o sequential=null", 8, bundled=True)
    yield Rehearsed("engines", f"engines {short}", 12, bundled=True)
    yield Rehearsed("comm", f"comm {short} -o launcher=local -o engine=ddp", 10, devices=4, bundled=True)
    yield Rehearsed("precision", f"precision {short}", 11, refused=1, bundled=True)
    yield Rehearsed("text", "text --seeds 1 -o stop.max_epochs=0.1", 3, bundled=True)
    yield Rehearsed("throughput", "throughput --seeds 1", 5, bundled=True)
    yield Rehearsed("cifar10", "cifar10 --seeds 1 -o engine=ddp,fsdp -o workload=cifar10-synthetic -o "
                    "workload.model=resnet20 -o stop.max_epochs=0.02 -o batch.global=32 -o gate.micro=4 -o "
                    "gate.eval_samples=64", 2, bundled=True)


CASES = [*engines(), *algorithms(), *rest(), *suites()]
