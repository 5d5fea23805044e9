"""Stated limits of precisions, optimizers and engines, and their refused options."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from repro.core import registry
from repro.engines.deepspeed_zero import DeepSpeedZero
from repro.engines.precisions import Bf16Autocast, Bf16Master, Fp16Autocast, Fp16Master, Fp32, Tf32
from repro.engines.torch_engines import Single
from repro.engines.zero.config import OWNED, deepspeed_config, merge
from repro.optimizers.rules import AdamW, Sgd
from repro.seams.plugin import Setting
from repro.seams.training import Comm, Job, Precision
from tests import plans


def setting(**changes: object) -> Setting:
    precision = registry.load("precision", str(changes["precision"]))() if changes.get("precision") in \
        registry.names("precision") else Fp32()
    return plans.setting(**{
        "own_algorithm": changes.get("comm", "backend") != "backend", "weights": precision.weights,
        "autocast": precision.autocast, "master_weights": precision.master, **changes})


class Quiet(Comm):
    def start(self, rank: int, world: int, device: str, timeout_seconds: float) -> None:
        raise AssertionError("not to be started")

    def effective(self) -> str:
        return "none"


def job(precision: Precision, clip: float | None = None) -> Job:
    return Job(0, 2, "cpu", 8, 4, clip, precision, Sgd(lr=0.1), Quiet())


@pytest.mark.parametrize("name", registry.names("precision"))
def test_every_precision_is_data_with_a_title(name: str) -> None:
    precision = registry.load("precision", name)()
    assert precision.title and precision.__doc__
    assert precision.master == (precision.weights != "float32")
    assert not (precision.autocast and precision.master)


@pytest.mark.parametrize(("precision", "changes", "word"), [
    (Tf32(), {}, "CPU"),
    (Tf32(), {"device": "cuda"}, None),
    (Fp16Master(), {}, None),
    (Fp16Autocast(), {}, None),
    (Bf16Autocast(), {}, None),
    (Bf16Master(), {"engine": "deepspeed"}, None),
    (Fp32(), {}, None),
])
def test_precision_states_unusable_devices(precision: Precision, changes: dict[str, str], word: str | None) -> None:
    reason = precision.unsupported(setting(**changes))
    assert reason is None if word is None else word in (reason or "")


@pytest.mark.parametrize(("changes", "refused"), [
    ({"weights": "float16"}, True), ({"weights": "float16", "device": "cuda"}, False), ({"weights": "bfloat16"}, False),
])
def test_deepspeed_states_the_weights_that_it_cannot_train_on_a_cpu(changes: dict[str, str], refused: bool) -> None:
    reason = DeepSpeedZero().unsupported(setting(precision="another", **changes))
    assert ("DeepSpeed refuses fp16 on CPUs" in (reason or "")) is refused


@pytest.mark.parametrize(("stage", "precision", "supported"), [
    (0, "fp16-autocast", True), (1, "fp16-autocast", False), (3, "fp16-autocast", False),
    (0, "fp16-master", False), (1, "fp16-master", True), (0, "bf16-master", True), (3, "bf16-autocast", True),
])
def test_deepspeed_refuses_loss_scaling_that_it_gets_wrong(stage: int, precision: str, supported: bool) -> None:
    reason = DeepSpeedZero(stage=stage).unsupported(setting(engine="deepspeed", device="cuda", precision=precision))  # type: ignore[arg-type]
    assert (reason is None) == supported


def test_single_is_one_process_without_communication() -> None:
    assert "2" in (Single().unsupported(setting()) or "")
    assert "ring" in (Single().unsupported(setting(processes=1, comm="ring")) or "")
    assert Single().unsupported(setting(processes=1)) is None


@pytest.mark.parametrize("key", OWNED)
def test_a_fragment_must_not_set_fields_of_the_trial(key: str) -> None:
    first, _, rest = key.partition(".")
    with pytest.raises(ValidationError) as caught:
        DeepSpeedZero(config={first: {rest: 1} if rest else 1})
    assert repr(key) in str(caught.value) and OWNED[key] in str(caught.value)


def test_a_fragment_keeps_its_other_keys() -> None:
    engine = DeepSpeedZero(stage=2, config={"zero_optimization": {"sub_group_size": 4096}, "dump_state": True})
    merged = deepspeed_config(engine.config, engine.stage, job(Fp32(), clip=0.5))
    assert merged["zero_optimization"] == {"sub_group_size": 4096, "stage": 2}
    assert merged["dump_state"] and merged["gradient_clipping"] == 0.5 and merged["train_batch_size"] == 64


def test_autocast_sends_float32_and_master_sends_the_low_type() -> None:
    autocast = deepspeed_config({}, 1, job(Bf16Autocast()))
    assert autocast["torch_autocast"]["lower_precision_safe_modules"] == []
    assert autocast["communication_data_type"] == "fp32" and "bf16" not in autocast
    master = deepspeed_config({}, 1, job(Bf16Master()))
    assert master["communication_data_type"] == master["data_types"]["grad_accum_dtype"] == "bf16"


@pytest.mark.parametrize(("precision", "elements"), [
    (Fp32(), 1 << 20), (Bf16Autocast(), 1 << 20), (Bf16Master(), 1 << 21), (Fp16Master(), 1 << 21)])
def test_a_bucket_of_deepspeed_has_the_bytes_of_one_of_ddp(precision: Precision, elements: int) -> None:
    """DeepSpeed counts elements of the gradients' type, torch bytes."""
    assert deepspeed_config({}, 2, job(precision), bucket_mib=4)["zero_optimization"]["reduce_bucket_size"] == elements


def test_merge_lets_the_upper_tree_win_and_leaves_its_inputs_alone() -> None:
    under, over = {"a": {"x": 1, "y": 2}, "b": 1}, {"a": {"x": 3}, "b": {"z": 4}}
    assert merge(under, over) == {"a": {"x": 3, "y": 2}, "b": {"z": 4}}
    assert under == {"a": {"x": 1, "y": 2}, "b": 1}


@pytest.mark.parametrize("options", [
    {"lr": 0}, {"lr": 0.1, "momentum": 1.0}, {"lr": 0.1, "momentum": 0, "nesterov": True}, {"lr": 0.1, "decay": "some"},
    {"lr": 0.1, "weight_decay": -1}, {"lr": 0.1, "dampening": 0.5},
])
def test_sgd_refuses(options: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        Sgd.model_validate(options)


@pytest.mark.parametrize("options", [{"lr": 0.1, "betas": [0.9, 1.0]}, {"lr": 0.1, "eps": 0}, {"betas": [0.9, 0.99]}])
def test_adamw_refuses(options: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        AdamW.model_validate(options)


@pytest.mark.parametrize("optimizer", [Sgd(lr=0.1, weight_decay=0.1, decay="weights"), AdamW(lr=0.1, decay="weights")])
def test_decay_of_weights_spares_vectors(optimizer: Sgd | AdamW) -> None:
    torch = pytest.importorskip("torch")
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.LayerNorm(2))
    groups = optimizer.build(model.named_parameters()).param_groups
    shapes = [[(p.ndim, group["weight_decay"]) for p in group["params"]] for group in groups]
    assert shapes == [[(2, optimizer.weight_decay)], [(1, 0.0)] * 3]
    assert len(optimizer.build([("b", model[0].bias)]).param_groups) == 1
