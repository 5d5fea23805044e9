"""Peak arithmetic rates that vendors state for GPUs: what model FLOPs utilisation (MFU) is a share of.

Dense rates, without structured sparsity, of matrix products that accumulate in float32. A name is matched whole, as
torch and nvidia-smi give it: a slice of a GPU (MIG) or a virtual one has another name and gets no peak.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Peak(NamedTuple):
    """The stated peak of one device in one format."""

    flops: float
    """Floating-point operations a second."""
    source: str


class _Rates(NamedTuple):
    """TFLOP/s by format; None: the device has no such format, or no figure is stated."""

    float32: float
    tf32: float | None
    float16: float
    bfloat16: float | None
    source: str


_V100 = "NVIDIA V100 data sheet, 2020"
_A100 = "NVIDIA A100 data sheet, 2021"
_H100 = "NVIDIA H100 data sheet, dense: half of its figures with sparsity"
_H200 = "NVIDIA H200 data sheet, dense: half of its figures with sparsity"
_L4 = "NVIDIA L4 data sheet, dense: half of its figures with sparsity"
_ADA = "NVIDIA Ada GPU architecture white paper, accumulation in float32"
_AMPERE = "NVIDIA Ampere GA102 GPU architecture white paper, accumulation in float32"
RATES: Mapping[str, _Rates] = {
    **dict.fromkeys(("Tesla V100-SXM2-16GB", "Tesla V100-SXM2-32GB"), _Rates(15.7, None, 125.0, None, _V100)),
    **dict.fromkeys(("Tesla V100-PCIE-16GB", "Tesla V100-PCIE-32GB"), _Rates(14.0, None, 112.0, None, _V100)),
    "Tesla T4": _Rates(8.1, None, 65.0, None, "NVIDIA T4 data sheet"),
    **dict.fromkeys(
        ("NVIDIA A100-SXM4-40GB", "NVIDIA A100-SXM4-80GB", "NVIDIA A100-PCIE-40GB", "NVIDIA A100 80GB PCIe"),
        _Rates(19.5, 156.0, 312.0, 312.0, _A100)),
    "NVIDIA H100 80GB HBM3": _Rates(67.0, 494.5, 989.5, 989.5, _H100),
    "NVIDIA H100 PCIe": _Rates(51.0, 378.0, 756.5, 756.5, _H100),
    "NVIDIA H100 NVL": _Rates(60.0, 417.5, 835.5, 835.5, _H100),
    "NVIDIA H200": _Rates(67.0, 494.5, 989.5, 989.5, _H200),
    "NVIDIA L4": _Rates(30.3, 60.0, 121.0, 121.0, _L4),
    "NVIDIA L40S": _Rates(91.6, 183.0, 362.0, 362.0, "NVIDIA L40S data sheet, dense"),
    "NVIDIA GeForce RTX 4090": _Rates(82.6, 82.6, 165.2, 165.2, _ADA),
    "NVIDIA GeForce RTX 3090": _Rates(35.6, 35.6, 71.0, 71.0, _AMPERE),
}


def stated_peak(device: str, number_format: str) -> Peak | None:
    """Return the peak of a GPU in the format of its matrix products; None if none is known.

    Args:
        device: as `torch.cuda.get_device_name` gives it.
        number_format: float32, tf32, float16 or bfloat16.
    """
    rates = RATES.get(device)
    rate = getattr(rates, number_format, None) if rates is not None else None
    return None if rates is None or rate is None else Peak(rate * 1e12, rates.source)
