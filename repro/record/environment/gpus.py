"""The GPUs that a run uses, as their vendor's tool describes them, and the links between them; peak rates that vendors
state.

Peak rates are what model FLOPs utilisation (MFU) is a share of: dense, without structured sparsity, of matrix products
that accumulate in float32. A name is matched whole, as torch and nvidia-smi give it: a slice of a GPU (MIG) or a
virtual one has another name and gets no peak.
"""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from repro.core.devices import AMD, ask, vendor_here

QUERIED: Mapping[str, str] = {
    "name": "", "driver_version": "driver", "memory.total": "", "power.limit": "power limit",
    "power.default_limit": "by default", "clocks.max.sm": "SM clock up to", "clocks.max.memory": "memory clock up to",
    "ecc.mode.current": "ECC", "mig.mode.current": "MIG", "compute_mode": "compute mode",
}
"""Field of nvidia-smi -> the word before its value."""
OLDEST = ("name", "driver_version", "memory.total")
"""Fields that every nvidia-smi knows: it answers nothing at all if it is asked for one that it does not know."""
SLICE = re.compile(r"^\s+MIG (\S+)\s+Device\s+\d+: \(UUID: (MIG-[^)\s]+)\)", re.MULTILINE)
"""A slice of a GPU (MIG) below the GPU's own line in `nvidia-smi -L`: (profile, UUID)."""
WHOLE = re.compile(r"^GPU \d+: .*\(UUID: (GPU-[^)\s]+)\)", re.MULTILINE)
UNKNOWN = ("", "[N/A]", "N/A", "[Not Supported]", "[Unknown Error]")
LINKS = {"NV": "NVLink", "PIX": "one PCIe switch", "PXB": "several PCIe switches", "PHB": "a PCIe host bridge",
         "NODE": "PCIe host bridges of one NUMA node", "SYS": "the link between NUMA nodes"}
"""Words of `nvidia-smi topo -m` for the path between two GPUs."""


STAND_IN = "Emulated "
"""How the name of a device begins that only stands for a GPU, so that code for GPUs runs without one."""


def stand_ins(names: Iterable[str]) -> tuple[str, ...]:
    """Return the names of those devices that stand for a GPU, each once: what ran on one says nothing about any GPU.

    Args:
        names: of devices, or lines of `used_gpus`.
    """
    return tuple(dict.fromkeys(name.partition(",")[0] for name in names if name.startswith(STAND_IN)))


def used_gpus(environment: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """Return one line for each GPU that this process can use, in its order; () if no tool of its vendor tells."""
    if vendor_here() is AMD:
        return _amd_lines(environment)
    fields = tuple(QUERIED) if (rows := _rows(tuple(QUERIED))) else OLDEST
    rows = rows or _rows(fields)
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    slices = _slices(rows) if "MIG-" in (visible or "") else []
    # By number CUDA counts unlike GPUs from the fastest, nvidia-smi by slot.
    by_number = any(part.strip().isdecimal() for part in (visible or "").split(","))
    alike = len({row[2] for row in rows}) < 2 or environment.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"
    doubt = " (or another GPU of this node: CUDA_DEVICE_ORDER is not PCI_BUS_ID)" if by_number and not alike else ""
    return tuple(_line(fields, row[2:]) + doubt for row in _chosen([*rows, *slices], visible))


def used_uuids(environment: Mapping[str, str] = os.environ) -> frozenset[str] | None:
    """Return the UUIDs of the GPUs that this process can use; None: all, also if it uses slices (MIG) of them."""
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    return None if visible is None or "MIG-" in visible else usable_uuids(environment)


def usable_uuids(environment: Mapping[str, str] = os.environ) -> frozenset[str]:
    """Return the UUIDs of all GPUs that this process can use, without slices; empty if no driver tells."""
    return frozenset(row[1] for row in _chosen(_rows(()), environment.get("CUDA_VISIBLE_DEVICES")))


def _amd_lines(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return the names that amd-smi has for the visible GPUs. Not yet run on one."""
    rows = [*csv.DictReader(ask("amd-smi", "static", "--asic", "--csv").splitlines())]
    names = [row.get("market_name") or "AMD GPU, name unknown" for row in rows]
    for variable in AMD.selectors[1::-1]:  # ROCr hides first; what it leaves is counted anew
        if (chosen := environment.get(variable)) is not None:
            numbers = [int(part) for part in chosen.split(",") if part.strip().isdecimal()]
            names = [names[number] for number in numbers if number < len(names)]
    return tuple(names)


def interconnect(devices: int, environment: Mapping[str, str] = os.environ) -> str:
    """Return the links between the GPUs that this process can use, as found.

    Args:
        devices: how many GPUs the run uses; 0: it uses the processor.
    """
    if not devices:
        return "loopback of one machine"
    if devices == 1:
        return "one GPU: nothing is sent between devices"
    used = _chosen(_rows(()), environment.get("CUDA_VISIBLE_DEVICES"))
    kinds = _links(ask_nvidia_smi("topo", "-m"), [row[0] for row in used])
    return f"between GPUs: {', '.join(kinds)}" if kinds else "between GPUs: unknown (nvidia-smi topo -m says nothing)"


def _chosen(rows: Sequence[list[str]], visible: str | None) -> list[list[str]]:
    """Return the rows (index, UUID, ...) in the order of CUDA_VISIBLE_DEVICES; CUDA stops at the first unknown one."""
    if visible is None:
        return list(rows)
    found = []
    for name in (part.strip() for part in visible.split(",")):
        row = next((row for row in rows if name == row[0] or (len(name) > 4 and row[1].startswith(name))), None)
        if row is None:
            break
        found.append(row)
    return found


def _rows(fields: Sequence[str]) -> list[list[str]]:
    """Return (index, UUID, *fields) of every GPU; [] if nvidia-smi does not answer."""
    found = ask_nvidia_smi(f"--query-gpu={','.join(('index', 'uuid', *fields))}", "--format=csv,noheader")
    rows = [[part.strip() for part in line.split(",")] for line in found.splitlines()]
    return [row for row in rows if len(row) == len(fields) + 2]


def _slices(rows: Sequence[list[str]]) -> list[list[str]]:
    """Return a row for every slice (MIG): that of its GPU, with the slice's own UUID and its profile in the name."""
    found, listed = [], ask_nvidia_smi("-L")
    starts = [*WHOLE.finditer(listed)]
    for place, start in enumerate(starts):
        parent = next((row for row in rows if row[1] == start[1]), None)
        below = listed[start.end():starts[place + 1].start() if place + 1 < len(starts) else len(listed)]
        found += [["", uuid, f"slice {profile} of {parent[2]}", *parent[3:]]
                  for profile, uuid in SLICE.findall(below) if parent is not None]
    return found


def _line(fields: Sequence[str], values: Sequence[str]) -> str:
    named = zip((QUERIED[name] for name in fields), values, strict=True)
    return ", ".join(f"{word} {value}".strip() for word, value in named if value not in UNKNOWN)


def _links(matrix: str, numbers: Sequence[str]) -> list[str]:
    """Return the kinds of links between these GPUs, each once, in words."""
    rows = {cells[0]: cells[1:] for line in matrix.splitlines() if (cells := line.split()) and
            re.fullmatch(r"GPU\d+", cells[0]) and len(cells) > 2 and not cells[1].startswith("GPU")}
    order = list(rows)
    names = [f"GPU{number}" for number in numbers]
    found = dict.fromkeys(rows[one][order.index(other)] for one in names for other in names
                          if one != other and one in rows and other in rows
                          and order.index(other) < len(rows[one]))
    return [_in_words(word) for word in found]


def _in_words(link: str) -> str:
    kind = "NV" if link.startswith("NV") else link
    return f"{LINKS[kind]} ({link})" if kind in LINKS else link


def ask_nvidia_smi(*arguments: str) -> str:
    """Return what nvidia-smi prints; "" without a driver or if it refuses."""
    return ask("nvidia-smi", *arguments)


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
        device: as torch names it.
        number_format: float32, tf32, float16 or bfloat16.
    """
    rates = RATES.get(device)
    rate = getattr(rates, number_format, None) if rates is not None else None
    return None if rates is None or rate is None else Peak(rate * 1e12, rates.source)
