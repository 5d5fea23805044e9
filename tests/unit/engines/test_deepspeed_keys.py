"""Misspelt keys of a DeepSpeed fragment are found when a suite is read; the table is what DeepSpeed really reads."""

from __future__ import annotations

import ast
import importlib
from importlib.util import find_spec
from pathlib import Path

import pytest
from click.testing import CliRunner

from repro.cli.main import cli
from repro.core.errors import SuiteError
from repro.engines.zero.config import OPEN, OWNED, REFUSED, ZERO

SUITE = """\
suite: keys
trial:
  workload: digits
  engine:
    kind: deepspeed
    stage: 3
    config:
      {0}
  batch: 64
  optimizer: {{kind: sgd, lr: 0.1}}
  stop: {{metric: top1, target: 0.9, max_epochs: 2}}
  evaluate_every: 1437
  device: cpu
"""


def planned(tmp_path: Path, fragment: str) -> object:
    path = tmp_path / "keys.yaml"
    path.write_text(SUITE.format(fragment))
    return CliRunner().invoke(cli, ["plan", str(path)], standalone_mode=False).exception


@pytest.mark.parametrize(("fragment", "line", "field", "meant"), [
    ("gradient_predivide_facto: 2", 8, "gradient_predivide_facto", "gradient_predivide_factor"),
    ("zero_optimisation: {reduce_bucket_size: 1}", 8, "zero_optimisation", "zero_optimization"),
    ("zero_optimization:\n        reduce_buket_size: 1", 9, "zero_optimization.reduce_buket_size",
     "reduce_bucket_size"),
    ("zero_optimization: {offload_optimizer: {devise: cpu}}", 8, "zero_optimization.offload_optimizer.devise",
     "device"),
    ("compile: {deepcompil: true}", 8, "compile.deepcompil", "deepcompile"),
])
def test_a_misspelt_key_is_named_with_its_place(
    tmp_path: Path, fragment: str, line: int, field: str, meant: str
) -> None:
    error = planned(tmp_path, fragment)
    assert isinstance(error, SuiteError)
    assert int(error.exit_code) == 2
    assert (error.line, error.field) == (line, f"trial.engine.config.{field}")
    assert error.problem == f"DeepSpeed has no key {field!r}; did you mean {meant!r}?"


@pytest.mark.parametrize("fragment", [
    "zero_optimization: {stage3_param_persistence_threshold: 0, offload_optimizer: {device: cpu}}",
    "aio: {block_size: 1048576}", "hybrid_engine: {enabled: false}",
])
def test_keys_that_exist_pass(tmp_path: Path, fragment: str) -> None:
    assert planned(tmp_path, fragment) is None


@pytest.mark.parametrize(("fragment", "line", "field", "said"), [
    ("autotuning: {enabled: true, metric_path: /any/file}", 8, "autotuning", "writes its results to files"),
    ("autotuning:\n        metric_path: /any/file", 8, "autotuning", "allowed: zero_optimization, "),
    ("checkpoint: {use_node_local_storage: true}", 8, "checkpoint", "keeps its own checkpoints"),
    ("datastates_ckpt: {enabled: true}", 8, "datastates_ckpt", "names files"),
    ("nebula: {persistent_storage_path: /x}", 8, "nebula", "names a folder"),
    ("data_efficiency: {data_sampling: {}}", 8, "data_efficiency", "reads and writes files"),
    ("elasticity: {enabled: true}", 8, "elasticity", "changes the batch size"),
    ("zero_optimization:\n        offload_optimizer:\n          nvme_path: x", 10,
     "zero_optimization.offload_optimizer.nvme_path",
     "names a folder to write in; allowed below zero_optimization.offload_optimizer: device, buffer_count"),
    ("zero_optimization: {offload_param: {device: nvme}}", 8, "zero_optimization.offload_param.device",
     "takes one of none, cpu, not 'nvme'"),
    ("prescale_gradients: ../x", 8, "prescale_gradients", "takes a number, true or false, not '../x'"),
    ("compile: {passes: [z1, ../x]}", 8, "compile.passes", "takes one of z1, z3"),
    ("zero_optimization: {leaf_module: {classes: [a/b]}}", 8, "zero_optimization.leaf_module.classes", "names of"),
    ("dump_state: {metric_path: /any/file}", 8, "dump_state", "takes a number, true or false"),
])
def test_keys_that_name_a_file_or_a_program_are_refused(
    tmp_path: Path, fragment: str, line: int, field: str, said: str
) -> None:
    error = planned(tmp_path, fragment)
    assert isinstance(error, SuiteError)
    assert (error.line, error.field) == (line, f"trial.engine.config.{field}")
    assert said in error.problem and repr(field) in error.problem


@pytest.mark.parametrize(("fragment", "said"), [
    ("zero_optimization: {stage: 2}", "is decided by the engine's `stage`"),
    ("zero_optimization: {zero_hpz_partition_size: 2}", "is decided by the engine's `hpz`"),
    ("zero_optimization: {zero_quantized_gradients: true}", "is decided by the engine's `quantized`"),
    ("wandb: {enabled: true, output_path: /any}", "key 'wandb' is decided by the harness"),
])
def test_settings_decided_elsewhere_are_marked(tmp_path: Path, fragment: str, said: str) -> None:
    error = planned(tmp_path, fragment)
    assert isinstance(error, SuiteError) and said in error.problem


@pytest.mark.slow
def test_the_table_equals_the_keys_of_the_installed_deepspeed() -> None:
    pytest.importorskip("deepspeed")
    zero = importlib.import_module("deepspeed.runtime.zero.config").DeepSpeedZeroConfig
    assert set(ZERO) == names(zero)
    offload = importlib.import_module("deepspeed.runtime.zero.offload_config")
    compiled = importlib.import_module("deepspeed.compile.config").CompileConfig
    assert {*below(ZERO, "offload_param"), "nvme_path"} == names(offload.DeepSpeedZeroOffloadParamConfig)
    assert {*below(ZERO, "offload_optimizer"), "nvme_path"} == names(offload.DeepSpeedZeroOffloadOptimizerConfig)
    assert set(below(OPEN, "compile")) == names(compiled)
    config = importlib.import_module("deepspeed.runtime.config")
    removed = set(config._REMOVED_TOP_LEVEL_CONFIG_KEYS)
    read = top_level_keys(config) - removed
    assert len(read) > 30
    assert read - set(OPEN) - set(OWNED) - set(REFUSED) == set()
    assert not set(OPEN) & (set(REFUSED) | set(OWNED))
    assert not set(OPEN) & removed


def below(table: object, key: str) -> dict[str, None]:
    assert isinstance(table, dict) and isinstance(table[key], dict)
    found: dict[str, None] = table[key]
    return found


def names(model: type) -> set[str]:
    fields = model.model_fields
    return set(fields) | {field.alias for field in fields.values() if field.alias}


def top_level_keys(config: object) -> set[str]:
    """Every key that DeepSpeed's runtime/config.py reads from its dictionary."""
    place = find_spec("deepspeed.runtime.config")
    assert place is not None and place.origin is not None
    found: set[str] = set()

    def note(node: ast.expr) -> None:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.add(node.value)
        elif isinstance(node, ast.Name) and isinstance(getattr(config, node.id, None), str):
            found.add(getattr(config, node.id))

    def whole(node: ast.expr) -> bool:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "keys":
            return whole(node.func.value)
        return ast.unparse(node) in ("param_dict", "self._param_dict")

    for node in ast.walk(ast.parse(Path(place.origin).read_text())):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "get_scalar_param" and whole(node.args[0]):
            note(node.args[1])
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "get":
            if whole(node.func.value):
                note(node.args[0])
        elif isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.In) and whole(node.comparators[0]):
            note(node.left)
    return found
