"""Ranks of a collective evaluation make equally many passes, and agree on their number once."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from repro.engines.plain import session as plain_session  # noqa: E402
from repro.engines.plain.session import TorchSession  # noqa: E402
from repro.optimizers.rules import Sgd  # noqa: E402


class Session(TorchSession):
    """Counts passes; nothing is trained."""

    def __init__(self) -> None:
        self.alone, self.device, self.model, self.eval_batch = False, torch.device("cpu"), torch.nn.Identity(), 0
        self.parts: Any = SimpleNamespace(
            scores={"sum": lambda outputs, targets: outputs.sum()}, synthetic_batch=lambda n: (torch.zeros(n), None))
        self.job: Any = SimpleNamespace(optimizer=Sgd(lr=0.1))
        self.passes: list[Any] = []

    def forward_is_collective(self) -> bool:
        return True

    def share_buffers(self) -> None:
        pass

    def forward(self, inputs: Any) -> Any:
        self.passes.append(inputs)
        return inputs


def unused(*_: Any) -> Any:
    raise AssertionError


for name in TorchSession.__abstractmethods__ - {"forward"}:
    setattr(Session, name, unused)
Session.__abstractmethods__ = frozenset()


@pytest.mark.parametrize("own", [0, 1, 2, 5])
def test_a_rank_with_fewer_batches_makes_up_for_them(monkeypatch: pytest.MonkeyPatch, own: int) -> None:
    asked = []

    def all_reduce(value: Any, op: Any) -> None:
        asked.append(int(value))
        value.fill_(5)  # the most that a rank has

    monkeypatch.setattr(plain_session.dist, "all_reduce", all_reduce)
    session = Session()
    batches = [(torch.full((3,), float(number + 1)), torch.zeros(3)) for number in range(own)]
    for _ in range(2):
        session.passes.clear()
        assert session.evaluate(batches, "sum") == (3 * sum(range(own + 1)), 3 * own), "no repeated batch counts"
        assert len(session.passes) == 5
    assert asked == [own, own], "one agreement per evaluation, not one per batch"
