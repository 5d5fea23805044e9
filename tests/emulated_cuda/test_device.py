"""The emulated device computes what the CPU computes, and has what programs ask a GPU for."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.emulated_cuda.running import run

LSTM = """\
layer, inputs = torch.nn.LSTM(4, 4, batch_first=True), torch.randn(2, 3, 4)
expected = layer(inputs)[0]
expected.sum().backward()
gradients = [parameter.grad.clone() for parameter in layer.parameters()]
layer.zero_grad()
layer.cuda()
found = layer(inputs.cuda())[0]
found.sum().backward()
assert torch.allclose(expected, found.cpu(), atol=1e-6)
assert all(torch.allclose(one, parameter.grad.cpu(), atol=1e-5)
           for one, parameter in zip(gradients, layer.parameters()))
"""
LOADED = """\
torch.save({"a": torch.ones(3, device="cuda:1"), "b": torch.ones(3)}, "saved.pt")
loaded = torch.load("saved.pt")
assert (loaded["a"].device.index, loaded["a"].sum().item(), loaded["b"].device.type) == (1, 3, "cpu")
assert torch.load("saved.pt", map_location="cuda:0")["b"].device.index == 0
"""
MEMORY = """\
kept = torch.zeros(1000, device="cuda:1")
assert torch.accelerator.memory_allocated(1) == torch.cuda.memory_allocated(1) == 4096
assert torch.accelerator.memory_allocated(0) == 0
del kept
assert (torch.accelerator.memory_allocated(1), torch.accelerator.max_memory_allocated(1)) == (0, 4096)
torch.accelerator.reset_peak_memory_stats(1)
assert torch.accelerator.max_memory_allocated(1) == 0
"""


@pytest.mark.parametrize("program", [LSTM, LOADED, MEMORY], ids=["lstm", "load", "memory"])
def test_a_program_runs(tmp_path: Path, program: str) -> None:
    ended = run(tmp_path, "-c", f"import torch\ntorch.manual_seed(0)\n{program}")
    assert ended.code == 0, ended.error
