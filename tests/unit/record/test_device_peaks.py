"""Stated peaks of GPUs: by whole name and format, never guessed."""

from __future__ import annotations

import pytest

from repro.record.environment.gpus import RATES, stated_peak


@pytest.mark.parametrize(("device", "number_format", "tera"), [
    ("NVIDIA A100-SXM4-80GB", "bfloat16", 312.0), ("NVIDIA A100-SXM4-80GB", "tf32", 156.0),
    ("NVIDIA A100 80GB PCIe", "float32", 19.5), ("NVIDIA H100 80GB HBM3", "bfloat16", 989.5),
    ("NVIDIA H100 PCIe", "float16", 756.5), ("Tesla V100-SXM2-32GB", "float16", 125.0),
    ("NVIDIA GeForce RTX 4090", "bfloat16", 165.2), ("NVIDIA L4", "bfloat16", 121.0),
])
def test_a_peak_is_dense_and_of_the_format(device: str, number_format: str, tera: float) -> None:
    found = stated_peak(device, number_format)
    assert found is not None and found.flops == pytest.approx(tera * 1e12)
    assert "data sheet" in found.source or "white paper" in found.source


@pytest.mark.parametrize(("device", "number_format"), [
    ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", "bfloat16"), ("NVIDIA H100", "bfloat16"), ("NVIDIA L40", "bfloat16"),
    ("Tesla V100-SXM2-32GB", "bfloat16"), ("Tesla T4", "tf32"), ("cpu", "float32"), ("NVIDIA L4", "int8")])
def test_a_slice_an_unknown_device_or_a_format_that_it_lacks_has_none(device: str, number_format: str) -> None:
    assert stated_peak(device, number_format) is None


def test_narrower_formats_are_no_slower() -> None:
    for device, rates in RATES.items():
        known = [rate for rate in (rates.float32, rates.tf32, rates.bfloat16) if rate is not None]
        assert known == sorted(known), device
