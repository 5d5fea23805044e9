"""Futures of DDP's hooks know the device of their bucket."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from repro.engines.plain import ddp_session


class OnDevice:
    """A bucket whose tensor says that it lies on a device which this machine need not have."""

    def __init__(self, device: str) -> None:
        self.device = torch.device(device)

    def buffer(self) -> OnDevice:
        return self

    def is_last(self) -> bool:
        return False


@pytest.mark.parametrize(("device", "expected"), [("cpu", []), ("cuda:1", [torch.device("cuda:1")])])
def test_a_bucket_held_back_waits_on_its_own_device(
        device: str, expected: list[torch.device], monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[torch.device]] = []

    def future(devices: list[torch.device]) -> Any:
        asked.append(devices)
        return torch.futures.Future()

    monkeypatch.setattr(ddp_session, "new_future", future)
    ddp_session.Deferred(lambda bucket: torch.futures.Future())(OnDevice(device))
    assert asked == [expected]
