"""A model in training under DeepSpeed; all code that depends on DeepSpeed's internals is in this file."""

from __future__ import annotations

import json
import logging
import os
import warnings
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import deepspeed
import deepspeed.comm
import numpy as np
import torch
import torch.distributed as dist
from deepspeed.accelerator import cuda_accelerator
from deepspeed.runtime import torch_autocast
from deepspeed.runtime.zero.linear import zero3_linear_wrap
from deepspeed.utils import (
    safe_get_full_fp32_param,
    safe_get_full_grad,
    safe_get_local_grad,
    safe_set_full_fp32_param,
    safe_set_local_fp32_param,
)

from repro.core import devices
from repro.core.devices import SELECTORS, on_gpu
from repro.core.errors import TrialError
from repro.engines.plain.numerics import make_scaler, name_of
from repro.engines.plain.session import TorchSession, as_array, size_of
from repro.engines.plain.state import GroupNumbers, class_of, options_of, start_momentum
from repro.engines.zero import extension
from repro.engines.zero.checkpoint_files import TAG, SafeFiles, refuse_unreadable
from repro.seams.training import Batch, Held, Job, TrainingParts
from repro.seams.workload import call_model

LINEAR = torch.nn.functional.linear
"""torch's own, which ZeRO 3 replaces in the whole process."""


class DeepSpeedSession(TorchSession):
    """One DeepSpeed engine and the read-outs of its state.

    Args:
        config: the complete DeepSpeed configuration, by `deepspeed_config`.
        offload: what lies in the host's memory.
        hpz: ranks that keep a whole second copy of the weights between them; 1: none.
    """

    writes_alike = True

    def __init__(self, parts: TrainingParts, job: Job, config: dict[str, Any], offload: str, hpz: int) -> None:
        super().__init__(parts, job)
        self.config = config
        self.model.train()
        self.prepare_blocks()
        _silence_deepspeed()
        divided = config["zero_optimization"]["stage"] == 3
        if not divided:
            self.model.to(self.device)
        # On the host: copies on the device would add to the memory that ZeRO saves.
        initial = {name: parameter.detach().to("cpu", torch.float32, copy=True) for name, parameter in self.trained()
                   } if job.precision.master else {}
        with self._stand_ins() if divided else nullcontext():
            self.optimizer = job.optimizer.build(self.trained())
        if offload != "none":
            self.optimizer = for_host(self.optimizer)
        if divided:
            self._partition()
        self._initialize()
        self.stage = int(self.engine.zero_optimization_stage())
        if offload != "none" and self._offload() != offload:
            raise TrialError(f"offload {offload} was asked for, but DeepSpeed keeps {self._offload()} on the host")
        if self._hpz() != hpz:
            raise TrialError(f"hpz {hpz} was asked for, but DeepSpeed keeps weights in groups of {self._hpz()}")
        if job.precision.master:
            self._set_masters(initial)
        self._order_gathers()

    @contextmanager
    def _stand_ins(self) -> Iterator[None]:
        """Inside, every trained parameter has its shape on the device, in the memory of one element.

        Optimizers form groups by shapes and choose kernels by the device; partitioned parameters have neither.
        """
        values = [(parameter, parameter.data) for _, parameter in self.trained()]
        for parameter, value in values:
            parameter.data = torch.zeros((), dtype=value.dtype, device=self.device).expand(value.shape)
        try:
            yield
        finally:
            for parameter, value in values:
                parameter.data = value

    def _partition(self) -> None:
        """Divide the weights over the ranks one by one, as DeepSpeed does for a model that it did not build.

        `deepspeed.initialize` would do it only after it has moved the whole model to the device.
        """
        deepspeed.init_distributed(deepspeed.accelerator.get_accelerator().communication_backend_name(),
                                   dist_init_required=False)
        self.numerics.cast_parameters(self.model)
        deepspeed.zero.Init(module=self.model, config_dict_or_path=self.config, dtype=self.numerics.weights)
        for buffer in self.model.buffers():
            buffer.data = buffer.data.to(self.device)

    def _initialize(self) -> None:
        # An earlier autocast trial in this process left its type in DeepSpeed's module.
        torch_autocast.TORCH_AUTOCAST_INITIALIZED, torch_autocast.TORCH_AUTOCAST_DTYPE = False, None
        # Stage 0 with low-precision weights steps the optimizer once on zero gradients during initialisation: rate 0
        # keeps the weights, and the state that it leaves (AdamW's step count, decay in the momentum) is cleared below.
        numbers = GroupNumbers(self.optimizer)
        self.set_rate(0.0)
        self.engine, *_ = deepspeed.initialize(
            model=self.model, optimizer=self.optimizer, config=self.config, dist_init_required=False
        )
        if self.numerics.channels_last and self.config["zero_optimization"]["stage"] == 0:  # others keep weights flat
            self._order_channels()
        self.files = self.engine.checkpoint_engine = SafeFiles()
        self.engine._copy_recovery_script = lambda _: None  # it would copy a Python script into the checkpoint
        self.optimizer.state.clear()
        numbers.restore()
        if self.engine.basic_optimizer is not self.optimizer:
            raise TrialError(f"DeepSpeed steps {type(self.engine.basic_optimizer).__name__}, not the trial's optimizer")
        if (scaling := self.job.precision.loss_scaling) and self.engine.torch_autocast_z0_gradscaler is not None:
            self.engine.torch_autocast_z0_gradscaler = make_scaler(scaling, self.device.type)
            start_momentum(self.optimizer)

    def _set_masters(self, initial: dict[str, torch.Tensor]) -> None:
        """Set the master weights to the float32 initial weights; DeepSpeed starts from rounded ones."""
        for name, parameter in self.trained():
            value = initial.pop(name).to(self.device)
            if self.stage == 3:
                # DeepSpeed's setter for a full value fails if the number of ranks does not divide the size.
                size = parameter.ds_tensor.numel()  # type: ignore[attr-defined]
                padded = torch.nn.functional.pad(value.flatten(), (0, size * self.job.world - value.numel()))
                safe_set_local_fp32_param(parameter, padded.narrow(0, self.job.rank * size, size))
            elif self.stage > 0:
                safe_set_full_fp32_param(parameter, value)
            else:
                self._stage_0_masters()[id(parameter)].detach().copy_(value)

    def _order_channels(self) -> None:
        """Give weights and masters of convolutions the memory format of the images. Not before DeepSpeed has sent the
        initial weights: it views them as bytes, which torch does not do in this format.
        """
        masters = self._stage_0_masters().values() if self.job.precision.master else ()
        for tensor in (*self.model.parameters(), *masters):
            if tensor.ndim == 4:
                tensor.data = tensor.data.contiguous(memory_format=torch.channels_last)

    def _stage_0_masters(self) -> dict[int, torch.Tensor]:
        """Return parameter id -> master copy, for stage 0."""
        wrapper = self.engine.optimizer
        return {
            id(parameter): copy
            for group, copies in zip(wrapper.fp16_groups, wrapper.fp32_groups, strict=True)
            for parameter, copy in zip(group, copies, strict=True)
        }

    # ---- training

    def forward(self, inputs: Any) -> Any:
        return self.numerics.outputs(call_model(self.engine, self.numerics.inputs(inputs)))

    def backward(self, batches: Sequence[Batch]) -> torch.Tensor:
        losses = []
        for index, batch in enumerate(batches):
            if index:
                # Between micro-batches DeepSpeed's step only increments a counter.
                self.engine.step()
            loss = self.micro_loss(batch)
            self.engine.backward(loss)
            losses.append(loss.detach())
        return losses[0] if len(losses) == 1 else torch.stack(losses).mean()

    def update(self, rate: float) -> None:
        self.set_rate(rate)
        if self.preconditioning is not None:  # stage 0 only: gradients are whole and averaged
            gradients = {name: parameter.grad for name, parameter in self.trained()}
            self.preconditioning.apply(gradients, rate, self.loss_scale())
        self.engine.step()
        self._order_gathers()

    def _order_gathers(self) -> None:
        """Let ZeRO 3 gather weights after all that has been written into them: DeepSpeed gathers on a stream that waits
        for no other, so a host that runs ahead would gather weights of before an update.
        """
        if self.stage == 3 and on_gpu(self.device):
            stream = self.engine.optimizer.parameter_offload._DeepSpeedZeRoOffload__allgather_stream
            if stream is not None:
                stream.wait_stream(devices.current_stream(self.device))

    def forward_is_collective(self) -> bool:
        return self.stage == 3 and not self.alone  # a forward pass gathers weights

    # ---- checkpoints

    def save_state(self, folder: Path) -> dict[str, Any]:
        self.engine.save_checkpoint(str(folder), tag=TAG, save_latest=False)
        self.files.raise_failure(folder / TAG)
        return {}

    def load_state(self, folder: Path, own: Mapping[str, Any]) -> None:
        with refuse_unreadable(folder / TAG):
            # The saved state is copied into the optimizer state that the warm-up has created.
            path, _ = self.engine.load_checkpoint(str(folder), tag=TAG)
            if path is None:
                raise FileNotFoundError(f"DeepSpeed finds no checkpoint in {folder.name}")
        self._order_gathers()

    # ---- read-outs

    def state_memory(self) -> dict[str, int]:
        return self.states().deepspeed(self.stage)

    def loss_scale(self) -> float:
        """Return the factor of the loss before backward; 1 without loss scaling."""
        if not self.job.precision.loss_scaling:
            return 1.0
        scaler = self.engine.torch_autocast_z0_gradscaler
        return float(scaler.get_scale() if scaler else self.engine.optimizer.loss_scale)

    def gradients(self) -> dict[str, np.ndarray]:
        if self._offload() != "none":
            devices.wait(self.device)
        scale = self.loss_scale()
        return {name: as_array(safe_get_full_grad(parameter), scale) for name, parameter in self.trained()}

    def held_gradients(self) -> list[Held] | None:
        """Return the parts that `gradients` adds up over the ranks; in ZeRO 1 and 2 some parameters have none here."""
        if self._offload() != "none":
            devices.wait(self.device)  # DeepSpeed copies gradients to the host on a stream of its own
        scale, found = self.loss_scale(), []
        for name, parameter in self.trained():
            part, start = self._own_gradient(parameter)
            values = as_array(part, scale).ravel()[:size_of(parameter) - start]
            found.append(Held(name, values, start))
        return found

    def _own_gradient(self, parameter: Any) -> tuple[torch.Tensor, int]:
        """Return this rank's part of a gradient, flat, and the place where it starts."""
        if parameter.grad is not None:
            return parameter.grad.flatten(), 0
        if self.stage == 3:
            part = safe_get_local_grad(parameter).flatten()
            return part, self.job.rank * part.numel()
        mapping = parameter._hp_mapping
        if mapping is None:
            return torch.empty(0), 0
        part = mapping.get_lp_grad_fragment(parameter._index_in_param_group).flatten()
        place = mapping.lp_fragment_address
        # As in DeepSpeed's own getter: with bfloat16 weights every rank keeps a whole gradient.
        whole = part.numel() == parameter.numel()
        return part.narrow(0, place.start, place.numel) if whole else part, place.start

    def stepped_gradients(self) -> list[Held] | None:
        known = self.given()
        memory = {tensor.untyped_storage().data_ptr(): tensor for tensor in known.values()}
        masters = self._stage_0_masters() if self.stage == 0 and self.job.precision.master else {}
        wrapper, scale, found = self.engine.optimizer, self.unapplied_scale(), []
        for name, parameter in self.trained():
            owned: Any = parameter
            if self.stage == 0:
                tensor = known.get(id(masters.get(id(parameter), parameter)))
                offset, size, start = 0, parameter.numel(), 0
            elif self.stage == 3:
                group, offset, size = wrapper.grad_position[wrapper.get_param_id(owned)]
                tensor, start = known.get(id(wrapper.fp32_partitioned_groups_flat[group])), self.job.rank * size
            elif (mapping := owned._hp_mapping) is not None:
                tensor = memory.get(mapping.hp_fragment.untyped_storage().data_ptr())
                place = mapping.hp_fragment_address
                offset, size, start = place.start, place.numel, mapping.lp_fragment_address.start
            else:
                continue
            if tensor is not None:
                values = as_array(tensor.grad.reshape(-1).narrow(0, offset, size), scale)
                found.append(Held(name, values[:max(0, size_of(parameter) - start)], start))
        return found

    def weights(self) -> dict[str, np.ndarray]:
        if self.stage > 0:
            return {name: as_array(safe_get_full_fp32_param(parameter)) for name, parameter in self.trained()}
        masters = self._stage_0_masters() if self.job.precision.master else {}
        return {name: as_array(masters.get(id(parameter), parameter)) for name, parameter in self.trained()}

    def held(self) -> list[Held] | None:
        """In stage 3 a rank's partition of every parameter, and the whole of those that DeepSpeed keeps everywhere."""
        if self.stage < 3:
            return super().held()
        found = []
        for name, parameter in self.trained():
            size = size_of(parameter)
            part = as_array(parameter.ds_tensor).ravel()  # type: ignore[attr-defined]
            start = self.job.rank * part.size
            found.append(Held(name, part[:max(0, size - start)], start))
            if parameter.data.numel() == size:
                found.append(Held(name, as_array(parameter.data).ravel()))
        return found

    def scaler_state(self) -> dict[str, Any]:
        scaler = self.engine.torch_autocast_z0_gradscaler
        if scaler:
            return dict(scaler.state_dict())
        return dict(vars(self.engine.optimizer.loss_scaler)) if self.job.precision.loss_scaling else {}

    def load_scaler_state(self, state: dict[str, Any]) -> None:
        scaler = self.engine.torch_autocast_z0_gradscaler
        if scaler:
            scaler.load_state_dict(state)
        elif state:
            vars(self.engine.optimizer.loss_scaler).update(state)

    def effective(self) -> dict[str, str]:
        with torch_autocast.autocast_if_enabled(self.engine), torch.no_grad():
            ones = torch.ones(2, 2, dtype=self.numerics.weights, device=self.device)
            product = name_of((ones @ ones).dtype)
        wrapper = self.engine.optimizer
        accumulated = getattr(wrapper, "gradient_accumulation_dtype", self.trained()[0][1].dtype)
        masters = [tensor for group in self.optimizer.param_groups for tensor in group["params"]]
        masters = masters or list(getattr(wrapper, "fp32_partitioned_groups_flat", []))
        bucket = getattr(wrapper, "reduce_bucket_size", None)  # None: without ZeRO all gradients are sent at once
        return {
            **super().effective(),
            "matmul_dtype": product,
            "zero_stage": str(self.stage),
            "wrapper": type(wrapper).__name__,
            "master_dtype": name_of(masters[0].dtype),
            "gradient_dtype": name_of(accumulated),
            "overlap": self._overlap(),
            "offload": self._offload(),
            "hpz": str(self._hpz()),
            "communication_data_type": name_of(self.engine.communication_data_type),
            **describe(self.optimizer),
            "buckets": "unknown",
            "bucket_bytes": "all" if bucket is None else str(int(bucket) * self.numerics.weights.itemsize),
            "loss_scale": f"{self.loss_scale():g}" if self.job.precision.loss_scaling else "none",
            "deepspeed_config": json.dumps(self.config, sort_keys=True, separators=(",", ":")),
        }

    def _overlap(self) -> str:
        """Return "on" if communication overlaps: DeepSpeed uses CUDA streams, on a CPU its collectives always block."""
        configured = bool(getattr(self.engine.optimizer, "overlap_comm", False))
        return "on" if configured and on_gpu(self.device) else "off"

    def _offload(self) -> str:
        """Return what DeepSpeed keeps on the host, as its optimizer says."""
        wrapper = self.engine.optimizer
        on_host = bool(getattr(wrapper, "cpu_offload", False) or getattr(wrapper, "offload_optimizer", False))
        weights = bool(getattr(wrapper, "offload_param", False))
        return "optimizer+weights" if weights else "optimizer" if on_host else "none"

    def _hpz(self) -> int:
        """Return the ranks of a group that keeps a second copy of the weights, as the parameters say; 1: there is none.
        """
        parameter: Any = self.trained()[0][1]
        grouped = getattr(parameter, "ds_zero_param_process_group", None) is not None
        return int(parameter.ds_secondary_tensor_group_size) if grouped else 1

    def close(self) -> None:
        try:
            self.engine.destroy()
        finally:
            if self.compiler:
                self.compiler.close()
            end_group()


def end_group() -> None:
    """End the process group, if there is one, and make DeepSpeed forget it; take back what ZeRO 3 has replaced.

    A later trial in this process starts a new group; DeepSpeed would otherwise continue with the old one, and models of
    every engine would compute their fully connected layers by DeepSpeed's Python.
    """
    if torch.nn.functional.linear is zero3_linear_wrap:
        torch.nn.functional.linear = LINEAR
    if dist.is_initialized():
        if deepspeed.comm.comm.cdb is not None:
            deepspeed.comm.destroy_process_group()
        else:  # the trial failed before DeepSpeed registered the group
            dist.destroy_process_group()
    deepspeed.comm.comm.cdb = None


def _silence_deepspeed() -> None:
    """Keep DeepSpeed from printing, and from compiling an extension that training does not use."""
    # It warns about every optimizer but its own, although any optimizer works; real problems are raised.
    logging.getLogger("DeepSpeed").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"torch\.distributed\..*")
    # One of them is a shared-memory all-reduce for inference on CPUs: compiled with g++ at the first start (45 s) and
    # never used here. An empty table says no to all; DeepSpeed's own is filled by starting compilers.
    deepspeed.ops.__compatible_ops__ = defaultdict(bool)
    # It asks NVML for free memory by the numbers of CUDA_VISIBLE_DEVICES, and fails where these are UUIDs.
    if any(part.strip() and not part.strip().lstrip("-").isdecimal()
           for name in SELECTORS for part in os.environ.get(name, "").split(",") if name.endswith("VISIBLE_DEVICES")):
        cuda_accelerator.pynvml = None


HYPER = ("lr", "betas", "eps", "weight_decay")
KERNEL = "deepspeed.ops.adam.cpu_adam.DeepSpeedCPUAdam"


def for_host(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """Return DeepSpeed's Adam with the groups of `optimizer`; other optimizers than AdamW unchanged."""
    if type(optimizer) is not torch.optim.AdamW:
        return optimizer
    extension.load()
    from deepspeed.ops.adam import DeepSpeedCPUAdam

    groups = [{"params": group["params"], **{name: group[name] for name in HYPER}} for group in optimizer.param_groups]
    made: torch.optim.Optimizer = DeepSpeedCPUAdam(groups, adamw_mode=True)
    return made


def describe(optimizer: torch.optim.Optimizer) -> dict[str, str]:
    """Return update rule and hyper-parameters in torch's names, and the code that computes them."""
    found = {"optimizer": class_of(optimizer), "optimizer_options": options_of(optimizer)}
    if found["optimizer"] != KERNEL or not optimizer.adam_w_mode:  # type: ignore[attr-defined]
        return found
    groups: list[dict[str, Any]] = [{"params": [torch.zeros(1)], **{name: group[name] for name in HYPER}}
                                    for group in optimizer.param_groups]
    same = torch.optim.AdamW(groups)
    return {"optimizer": class_of(same), "optimizer_options": options_of(same), "optimizer_kernel": KERNEL}
