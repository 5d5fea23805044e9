"""A score of all samples sees them once each, in their order; a score that is no sum is told from one that is."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from repro.seams.workload import WholeSet, not_additive


@pytest.mark.parametrize("world", [1, 2, 3, 5])
@pytest.mark.parametrize("batch", [1, 2, 7])
def test_it_sees_every_sample_in_its_order(world: int, batch: int) -> None:
    seen: list[Any] = []
    shares: list[Any] = []
    samples = torch.arange(11)

    def score(outputs: Any, targets: Any) -> float:
        seen.append((outputs["b"].tolist(), outputs["a"][1].tolist(), targets.tolist()))
        return 0.5

    for rank in range(world):
        whole = WholeSet(score)
        for share in samples[rank::world].split(batch):
            assert float(whole({"b": share * 2, "a": (share, share[:, None] * 3)}, share)) == 0
        whole.value(lambda own: [shares.append(own), own][1:])
    seen.clear()
    assert WholeSet(score).value(lambda own: shares) == 0.5
    assert seen == [((samples * 2).tolist(), (samples[:, None] * 3).tolist(), samples.tolist())]


def test_it_forgets_a_batch_once_it_was_counted_and_counts_none_of_a_warm_up() -> None:
    whole = WholeSet(lambda outputs, targets: float(len(targets)))
    whole.counts = False
    whole(torch.zeros(3), torch.zeros(3))
    assert whole.value() == 0
    whole.counts = True
    whole(torch.zeros(2), torch.zeros(2))
    assert (whole.value(), whole.value()) == (2, 0)


@pytest.mark.parametrize(("score", "additive"), [
    (lambda outputs, targets: (outputs == targets).sum(), True),
    (lambda outputs, targets: ((outputs - targets) ** 2).sum(), True),
    (lambda outputs, targets: outputs.max() * len(targets), False),
    (lambda outputs, targets: outputs.mean(), False),
    (lambda outputs, targets: torch.tensor(float("nan")), True),
])
def test_a_score_that_is_no_sum_is_found(score: Any, additive: bool) -> None:
    outputs, targets = torch.linspace(0, 1, 9), torch.ones(9)
    assert (not_additive(score, outputs, targets) == "") is additive
