"""The numeric formats: what is computed, kept and sent in which type.

The same name means the same thing in every engine. Two rules hold for all of them: the loss and the metrics are
computed in float32 on the model's outputs, and evaluation runs in the format of training.
"""

from __future__ import annotations

from typing import ClassVar

from repro.seams.plugin import Setting
from repro.seams.training import LossScaling, Precision


class Fp32(Precision):
    """Everything in IEEE float32: weights, products, gradients, communication, optimizer; TensorFloat-32 is off."""

    title: ClassVar[str] = "float32"


class Tf32(Precision):
    """Float32, with the inputs of matrix products and convolutions rounded to TensorFloat-32 (10 bits of mantissa)."""

    title: ClassVar[str] = "TensorFloat-32"
    tf32: ClassVar[bool] = True

    def unsupported(self, setting: Setting) -> str | None:
        if setting.device == "cpu":
            return "tf32 is a mode of NVIDIA's matrix units; a CPU computes plain float32"
        return None


class Bf16Autocast(Precision):
    """Weights, gradients, what is sent and optimizer in float32; products and convolutions in bfloat16 by autocast."""

    title: ClassVar[str] = "bfloat16 autocast"
    autocast: ClassVar[str | None] = "bfloat16"


class Fp16Autocast(Precision):
    """The same as bf16-autocast, with float16 products and a dynamically scaled loss (`LossScaling`)."""

    title: ClassVar[str] = "float16 autocast"
    autocast: ClassVar[str | None] = "float16"
    loss_scaling: ClassVar[LossScaling | None] = LossScaling()


class Bf16Master(Precision):
    """Model in bfloat16, optimizer on a float32 master copy.

    Weights, activations and gradients are bfloat16; gradients are accumulated over micro-batches and averaged over
    ranks in bfloat16. The optimizer clips and steps in float32 on the master copy, which starts from the float32
    initial weights and is rounded into the model after each step. Buffers (batch-norm statistics) stay float32.
    """

    title: ClassVar[str] = "bfloat16 with float32 master weights"
    weights: ClassVar[str] = "bfloat16"
    master: ClassVar[bool] = True


class Fp16Master(Precision):
    """The same as bf16-master, with float16 and a dynamically scaled loss (`LossScaling`)."""

    title: ClassVar[str] = "float16 with float32 master weights"
    weights: ClassVar[str] = "float16"
    master: ClassVar[bool] = True
    loss_scaling: ClassVar[LossScaling | None] = LossScaling()
