"""Determinism `bitwise` holds for the library of products, too."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("torch")

PRODUCTS = """
from repro.core.random_streams import Streams
from repro.worker.setup import seed_libraries
seed_libraries(Streams(1, 0), "bitwise", with_torch=True)
import torch
for rows, columns in ((10, 13), (6, 9), (13, 216)):
    values, room = torch.randn(rows, columns), torch.empty(rows * columns + 32)
    found = []
    for place in range(16):
        moved = room[place:place + rows * columns].view(rows, columns).copy_(values)
        found.append(moved @ moved.T)
    assert all(torch.equal(product, found[0]) for product in found), (rows, columns)
"""


def test_a_product_has_the_same_bits_wherever_its_factors_lie() -> None:
    """Without the setting this fails on processors with AVX-512, where MKL depends on the place in memory."""
    ended = subprocess.run([sys.executable, "-c", PRODUCTS], capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr
