"""Registry of plug-ins: one literal table per seam, name -> "module:Class". A class is imported when it is first named.

To add a plug-in:

1. Write a class that derives from the seam's base class: `Workload`, `Engine`, `Comm`, `Precision` or `Optimizer` in
   `repro.seams.training`, `Preconditioner` in `repro.seams.preconditioner`, `Measurement` in
   `repro.seams.measurement`, `Launcher` in `repro.seams.launching`, `Reporter` in `repro.reporting`. Keep heavy imports
   (torch, deepspeed, mlflow) inside its methods. Its fields are its options in a suite.
2. Add one line to `BUILT_IN` under the seam; in a package of a third party, declare an entry point in the group
   `repro.SEAM` instead (`repro.engine`, `repro.comm`, ...). A built-in name cannot be replaced.

The name is what a suite writes: `engine: ddp`. The rest of the harness names a plug-in only to use that one: the page
and the MLflow reporter at the end of a run, the engine `single` as the reference of the parity gate.
"""

from __future__ import annotations

import importlib
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, get_args

from repro.core.errors import UnknownName, UsageError

BUILT_IN: dict[str, dict[str, str]] = {
    "workload": {
        "digits": "repro.workloads.digits:Digits",
        "digits-mlp": "repro.workloads.digits:DigitsMlp",
        "synthetic": "repro.workloads.synthetic:Synthetic",
        "gpt": "repro.workloads.gpt:Gpt",
        "gpt-synthetic": "repro.workloads.gpt_synthetic:GptSynthetic",
        "mnist1d": "repro.workloads.mnist1d:Mnist1d",
        "text": "repro.workloads.text:Text",
        "cifar10": "repro.workloads.cifar10:Cifar10",
        "cifar10-synthetic": "repro.workloads.cifar10:Cifar10Synthetic",
        "imagenet": "repro.workloads.imagenet:ImageNet",
        "imagenet-synthetic": "repro.workloads.imagenet:ImageNetSynthetic",
    },
    "engine": {
        "ddp": "repro.engines.torch_engines:Ddp",
        "fsdp": "repro.engines.torch_engines:Fsdp",
        "deepspeed": "repro.engines.deepspeed_zero:DeepSpeedZero",
        "single": "repro.engines.torch_engines:Single",
        "fake": "repro.engines.fake:Fake",
        "local-sgd": "repro.papers.local_sgd.local_sgd:LocalSgd",
        "async-server": "repro.papers.server.async_server:AsyncServer",
    },
    "comm": {
        "backend": "repro.comm.algorithms.backend:Backend",
        "ring": "repro.comm.algorithms.ring:Ring",
        "tree": "repro.comm.algorithms.tree:ReductionTree",
        "butterfly": "repro.comm.algorithms.doubling:Butterfly",
        "halving-doubling": "repro.comm.algorithms.doubling:HalvingDoubling",
        "parameter-server": "repro.comm.algorithms.tree:ParameterServer",
        "multicolor": "repro.comm.algorithms.tree:Multicolor",
        "hierarchical": "repro.comm.algorithms.ring:Hierarchical",
        "hybrid": "repro.papers.jizhi.hybrid:Hybrid",
    },
    "precision": {
        "fp32": "repro.engines.precisions:Fp32",
        "tf32": "repro.engines.precisions:Tf32",
        "bf16-autocast": "repro.engines.precisions:Bf16Autocast",
        "fp16-autocast": "repro.engines.precisions:Fp16Autocast",
        "bf16-master": "repro.engines.precisions:Bf16Master",
        "fp16-master": "repro.engines.precisions:Fp16Master",
    },
    "optimizer": {
        "sgd": "repro.optimizers.rules:Sgd",
        "adamw": "repro.optimizers.rules:AdamW",
        "adam": "repro.optimizers.rules:Adam",
        "rmsprop": "repro.optimizers.rules:RmsProp",
        "adaptahead": "repro.papers.adaptahead.adaptahead:AdaptAhead",
        "lars": "repro.optimizers.rules:Lars",
        "lamb": "repro.optimizers.rules:Lamb",
        "lion": "repro.optimizers.rules:Lion",
        "muon": "repro.optimizers.muon:Muon",
        "soap": "repro.optimizers.rules:Soap",
        "shampoo": "repro.optimizers.rules:Shampoo",
        "schedule-free-sgd": "repro.optimizers.rules:ScheduleFreeSgd",
        "schedule-free-adamw": "repro.optimizers.rules:ScheduleFreeAdamW",
    },
    "preconditioner": {
        "none": "repro.seams.preconditioner:Unchanged",
        "kfac": "repro.papers.kfac.kfac:Kfac",
    },
    "measurement": {
        "epoch-input": "repro.papers.in_memory.epoch_input:EpochInput",
        "tensor-layer": "repro.papers.tensor3d.tensor_layer:TensorLayer",
        "volume-inference": "repro.papers.chunkflow.volume_inference:VolumeInference",
    },
    "launcher": {
        "inline": "repro.launchers.inline:Inline",
        "local": "repro.launchers.local:Local",
        "fabric": "repro.launchers.emulated:Fabric",
        "torchrun": "repro.launchers.torchrun:Torchrun",
        "slurm": "repro.launchers.slurm:Slurm",
    },
    "reporter": {
        "html": "repro.reporters.html_page:HtmlPage",
        "mlflow": "repro.reporters.mlflow_runs:MlflowRuns",
        "markdown": "repro.reporters.markdown:MarkdownPage",
        "latex": "repro.reporters.latex:LatexPaper",
        "figures": "repro.reporters.latex:PaperFigures",
        "csv": "repro.reporters.table_files:CsvFiles",
        "parquet": "repro.reporters.table_files:ParquetFiles",
        "jsonl": "repro.reporters.table_files:JsonLines",
        "mllog": "repro.reporters.mllog_package:MllogPackage",
    },
}

SEAMS = tuple(BUILT_IN)

PARTS: dict[str, dict[str, str]] = {
    "derivation": {"measurement": "repro.papers.measurement.derive:derive_measurement"},
    "finder": {"near-duplicates": "repro.papers.dedup.selection"},
    "published": {
        "found": "repro.published.comparison.compare:any_published",
        "compare": "repro.published.reports:compare",
        "facts": "repro.published.audit_facts:read_published_facts",
        "report": "repro.published.reports:report",
    },
    "section": {
        "controller": "repro.reporters.papers.controller:controller",
        "duplicates": "repro.reporters.papers.duplicates:duplicates",
        "layers": "repro.reporters.papers.gradient_plan:layer_rows",
        "scores": "repro.reporters.scores.page:page_scores",
        "servers": "repro.reporters.papers.servers:servers",
        "tuning": "repro.reporters.tuning.page:page_tuning",
    },
    "table": {
        "scores": "repro.scores.score_tables:scores",
        "score_times": "repro.scores.score_tables:score_times",
        "score_profiles": "repro.scores.score_tables:score_profiles",
        "tuning": "repro.reporters.tuning.tables:contenders",
        "tuning_settings": "repro.reporters.tuning.tables:settings",
        "tuning_spaces": "repro.reporters.tuning.tables:spaces",
        "gradient_plan": "repro.reporters.papers.gradient_plan:layer_table",
        "duplicates": "repro.reporters.papers.duplicates:duplicate_table",
        "phases": "repro.reporters.page.sections.clocks:phase_table",
        "trust": "repro.reporters.page.sections.clocks:trust_table",
        "traffic": "repro.reporters.page.traffic:traffic_table",
        "overlap": "repro.reporters.page.traffic:overlap_table",
        "links": "repro.reporters.page.traffic:link_table",
        "controller": "repro.reporters.papers.controller:controller_table",
        "survival": "repro.reporters.page.charts.survival:survival_table",
        "scaling": "repro.reporters.page.charts.scaling:scaling_table",
    },
    "short table": {
        "scores": "repro.scores.score_tables:short_scores",
        "score-times": "repro.scores.score_tables:short_times",
        "tuning": "repro.reporters.tuning.tables:tuning_table",
    },
    "figure": {"profiles": "repro.reporters.scores.page:profiles"},
    "sufficient factors": {
        "unsupported": "repro.papers.wait_free.gradient_plan:unsupported",
        "remark": "repro.papers.wait_free.gradient_plan:remark",
        "session": "repro.papers.wait_free.sufficient_factors:FactorSession",
    },
    "display": {"notebook": "repro.reporters.html_page:display"},
    "kind": {"measurement": "repro.papers.measurement.config:MeasurementConfig"},
    "rank": {"measurement": "repro.papers.measurement.rank:main"},
}
"""What no suite names: parts by place and name, each "module:object" or a module. The core reaches `repro.papers`,
`repro.published`, `repro.scores` and the reporters of the tuning only through this table."""


@cache
def _third_party() -> dict[str, dict[str, EntryPoint]]:
    """Return the plug-ins of installed packages by seam and name: one look at all packages, which takes tens of
    milliseconds.
    """
    installed = entry_points()
    return {seam: {point.name: point for point in installed.select(group=f"repro.{seam}")
                   if point.name not in BUILT_IN[seam]} for seam in SEAMS}


def names(seam: str) -> list[str]:
    """Return all names of a seam: built-in ones first, then third parties' in alphabetical order."""
    if seam not in BUILT_IN:
        raise UnknownName("seam", seam, SEAMS)
    return [*BUILT_IN[seam], *sorted(_third_party()[seam])]


def entry_point(seam: str, name: str) -> EntryPoint | None:
    """Return the entry point of a third party's plug-in; None if it is built in or not installed."""
    return _third_party().get(seam, {}).get(name)


def distribution(seam: str, name: str) -> str:
    """Return name and version of the package that a third party's plug-in comes from; "" if unknown."""
    point = entry_point(seam, name)
    return f"{point.dist.name} {point.dist.version}" if point and point.dist else ""


def part(place: str, name: str) -> Any:
    """Import and return what `PARTS` names."""
    module, _, attribute = PARTS[place][name].partition(":")
    found = importlib.import_module(module)
    return getattr(found, attribute) if attribute else found


def parts(place: str) -> dict[str, Any]:
    """Import and return all parts of a place, by name."""
    return {name: part(place, name) for name in PARTS[place]}


def load(seam: str, name: str) -> Any:
    """Import and return the class registered as `name`.

    Raises:
        UnknownName: no such seam or name; the message names the nearest valid one.
        UsageError: a third party's entry point names a class that cannot be imported, no class of a plug-in, or one
            with an option that has an alias.
    """
    if name not in names(seam):
        raise UnknownName(seam, name, names(seam))
    point = entry_point(seam, name)
    target = point.value if point else BUILT_IN[seam][name]
    module, _, attribute = target.partition(":")
    package = f" of package {distribution(seam, name)}" if distribution(seam, name) else ""
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (Exception, SystemExit) as error:  # the code is another's: whatever it raises, the user learns whose it is
        if point is None and not isinstance(error, ImportError | AttributeError):
            raise
        kind = "" if isinstance(error, ImportError | AttributeError) else f"{type(error).__name__}: "
        raise UsageError(f"{seam} {name!r} ({target}){package} cannot be imported: {kind}{error}") from error
    if not hasattr(found, "model_validate"):
        raise UsageError(f"{seam} {name!r} ({target}){package} is no class of a plug-in; see docs/extending.md")
    if option := aliased(found):
        raise UsageError(f"{seam} {name!r} ({target}){package}: option {option!r} has an alias, but options are stored "
                         "and read by the name of their field; name the field as suites write it")
    return found


@cache
def aliased(model: Any) -> str:
    """Return the first option with an alias, dotted if it is one of a model in an option; "" if there is none."""
    waiting, seen = [("", model)], set()
    while waiting:
        place, kind = waiting.pop()
        waiting += [(place, inner) for inner in get_args(kind)]
        if not hasattr(kind, "model_fields") or kind in seen:
            continue
        seen.add(kind)
        for name, field in kind.model_fields.items():
            if field.alias or field.validation_alias or field.serialization_alias:
                return f"{place}{name}"
            waiting.append((f"{place}{name}.", field.annotation))
    return ""
