"""Operations of known models against the figures of their papers; bytes of a trial against closed forms."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import nn
from torch.nn import functional

from repro.comm.algorithms.backend import Backend
from repro.comm.algorithms.ring import Ring
from repro.seams.training import TrainingParts
from repro.worker.report.expected_traffic import expected_traffic, message_sizes
from repro.worker.report.model_report import forward_flops
from repro.worker.setup import meta_twin


class Bottleneck(nn.Module):
    """A block of ResNet-50 v1.5: the stride is in the 3x3 convolution."""

    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__()
        after = 4 * width
        self.body = nn.Sequential(
            nn.Conv2d(before, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, after, 1, bias=False), nn.BatchNorm2d(after))
        self.skip = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after)) \
            if before != after or stride > 1 else nn.Identity()

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return functional.relu(cast(torch.Tensor, self.body(images)) + self.skip(images))


def resnet50() -> nn.Module:
    layers: list[nn.Module] = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(),
                               nn.MaxPool2d(3, 2, 1)]
    before = 64
    for stage, (width, count) in enumerate(((64, 3), (128, 4), (256, 6), (512, 3))):
        for block in range(count):
            layers.append(Bottleneck(before, width, 2 if stage and not block else 1))
            before = 4 * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, 1000))


class Gpt(nn.Module):
    """GPT-2: layers, heads, width, and an output layer that shares the weights of the embedding."""

    def __init__(self, layers: int, heads: int, width: int, vocabulary: int, positions: int) -> None:
        super().__init__()
        self.heads = heads
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(positions, width)
        self.blocks = nn.ModuleList(nn.ModuleDict({
            "before": nn.LayerNorm(width), "qkv": nn.Linear(width, 3 * width), "out": nn.Linear(width, width),
            "after": nn.LayerNorm(width), "up": nn.Linear(width, 4 * width), "down": nn.Linear(4 * width, width),
        }) for _ in range(layers))
        self.last = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        batch, length = tokens.shape
        found = self.tokens(tokens) + self.positions(torch.arange(length, device=tokens.device))
        for block in self.blocks:
            parts = cast(nn.ModuleDict, block)
            query, key, value = (part.view(batch, length, self.heads, -1).transpose(1, 2)
                                 for part in parts["qkv"](parts["before"](found)).chunk(3, dim=2))
            mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
            found = found + parts["out"](mixed.transpose(1, 2).reshape(batch, length, -1))
            found = found + parts["down"](functional.gelu(parts["up"](parts["after"](found))))
        return cast(torch.Tensor, self.head(self.last(found)))


def count(model: nn.Module, inputs: Callable[[int], Any]) -> float | str:
    twin = meta_twin(model)
    assert isinstance(twin, nn.Module), twin
    assert all(item.device.type == "meta" for item in twin.parameters())
    parts = cast(TrainingParts, SimpleNamespace(synthetic_batch=lambda n: (inputs(n), None)))
    return forward_flops(twin, parts)


def on_meta(make: Callable[[], nn.Module]) -> nn.Module:
    """Build without drawing weights: only shapes count."""
    with torch.device("meta"):
        return make()


def test_resnet_50_takes_4_09_billion_multiplications() -> None:
    found = count(on_meta(resnet50), lambda n: torch.empty(n, 3, 224, 224))
    assert found == pytest.approx(2 * 4.09e9, rel=0.005)


@pytest.mark.parametrize(("layers", "heads", "width"), [(12, 12, 768), (24, 16, 1024)])
def test_gpt_2_follows_the_formula_of_palm(layers: int, heads: int, width: int) -> None:
    """6 N + 12 L H Q T for a token in training (Chowdhery et al. 2022, appendix B); positions are looked up only."""
    length, model = 1024, on_meta(lambda: Gpt(layers, heads, width, 50257, 1024))
    found = count(model, lambda n: torch.zeros(n, length, dtype=torch.int64))
    parameters = sum(item.numel() for item in model.parameters()) - 1024 * width
    formula = 6 * parameters + 12 * layers * width * length
    assert isinstance(found, float)
    assert 3 * found / length == pytest.approx(formula, rel=0.01)


def test_attention_is_counted_on_meta_although_torch_counts_none_on_a_processor() -> None:
    class Attention(nn.Module):
        def forward(self, query: torch.Tensor) -> torch.Tensor:
            return functional.scaled_dot_product_attention(query, query, query, is_causal=True)

    heads, length, width = 4, 16, 8
    assert count(Attention(), lambda n: torch.empty(n, heads, length, width)) == 2 * 2 * heads * length * length * width


def test_the_model_itself_is_untouched_and_shared_weights_stay_shared() -> None:
    model = Gpt(1, 1, 8, 16, 8)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    twin = meta_twin(model)
    assert isinstance(twin, Gpt)
    assert twin.head.weight is twin.tokens.weight
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize(("model", "words"), [(nn.ReLU(), "no matrix product"), (nn.Linear(3, 2), "cannot be counted")])
def test_a_model_that_cannot_be_counted_says_why(model: nn.Module, words: str) -> None:
    found = count(model, lambda n: torch.empty(n, 7))
    assert isinstance(found, str) and words in found and "\n" not in found


def test_a_dict_of_inputs_is_passed_by_name() -> None:
    class Named(nn.Module):
        def forward(self, one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
            return one @ other

    found = count(Named(), lambda n: {"other": torch.empty(n, 5, 7), "one": torch.empty(n, 3, 5)})
    assert found == 2 * 3 * 5 * 7


def line(operation: str = "all_reduce", dtype: str = "float32", collectives: int = 1, payload_bytes: int = 4,
         sent_bytes: int | None = 0) -> dict[str, Any]:
    return {"operation": operation, "dtype": dtype, "collectives": collectives, "payload_bytes": payload_bytes,
            "sent_bytes": sent_bytes, "received_bytes": sent_bytes}


def test_buckets_of_an_engine_are_taken_message_by_message() -> None:
    buckets, steps = [40_000, 4_004], 3
    lines = [line(collectives=6, payload_bytes=3 * sum(buckets)),
             line(dtype="float64", collectives=2, payload_bytes=64),
             line("barrier (gloo)", "none", 4, 0, None)]
    found = expected_traffic(Ring(), 4, lines, buckets, steps)
    # A rank of the ring sends twice everything but two segments: 10,000 elements are 4 x 2,500, 1,001 are 251 and
    # 3 x 250. Ranks differ by one element in the second kind only; the busiest spares two segments of 250.
    per_step = 2 * 40_000 - 2 * 10_000 + 2 * 4_004 - 2 * 1_000
    sums = 2 * (2 * 32 - 2 * 8)
    assert found is not None
    assert found.sent_bytes == steps * per_step + sums
    assert found.rounds == (6 + 2) * 2 * 3
    assert found.assumed == ("all_reduce float64",), "two sums of which only the total is known"


def test_a_rank_is_busiest_by_its_own_sum() -> None:
    """Messages whose busiest ranks differ: the sum of each message's most is more than any rank sends."""
    both = expected_traffic(Ring(), 3, [line(collectives=2, payload_bytes=4 * (4 + 5))], [16, 20], 1)
    four, five = (Ring().load("all_reduce", 3, count, 4)[0] for count in (4, 5))
    assert both is not None
    assert both.sent_bytes == max(one + other for one, other in zip(four, five, strict=True))
    assert both.assumed == ()


@pytest.mark.parametrize(("dtype", "itemsize"), [("float16", 2), ("bfloat16", 2), ("float32", 4)])
def test_buckets_sent_in_fewer_bits(dtype: str, itemsize: int) -> None:
    found, known = message_sizes(line(dtype=dtype, collectives=4, payload_bytes=2 * 300 * itemsize), 4, [400, 800], 2)
    assert known
    assert found == Counter({100: 2, 200: 2})


def test_buckets_of_gradients_of_16_bits() -> None:
    """As every engine reports them under the *-master formats."""
    sent = line(dtype="bfloat16", collectives=4, payload_bytes=2 * 300 * 2)
    assert message_sizes(sent, 4, [200, 400], 2) == (Counter({100: 2, 200: 2}), True)


def test_unknown_sizes_are_assumed_equal() -> None:
    assert message_sizes(line(collectives=3, payload_bytes=40), 4, [], 1) == (Counter({3: 2, 4: 1}), False)
    assert message_sizes(line("all_gather", collectives=2, payload_bytes=80), 4, [], 1) == (Counter({40: 2}), False)
    assert message_sizes(line(collectives=5, payload_bytes=40), 4, [40], 1)[1] is False, "not one message a step"


def test_traffic_without_a_formula() -> None:
    assert expected_traffic(Backend(), 4, [line()], [], 1) is None
    assert expected_traffic(Ring(), 1, [line()], [], 1) is None
    assert expected_traffic(Ring(), 4, [line("barrier (gloo)", "none", 1, 0, None)], [], 1) is None


def test_gathers_of_unlike_layers_are_known_by_the_numbers_that_a_rank_brings() -> None:
    found = expected_traffic(Ring(), 4, [line("all_gather", collectives=4, payload_bytes=2 * 4 * (11 + 70))], [], 2,
                             [11, 70])
    assert found and found.assumed == ()
    assert found.sent_bytes == 3 * 2 * 4 * (11 + 70)
