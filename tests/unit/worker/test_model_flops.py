"""Operations of known models, counted on the meta device, against the figures that their papers give."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import nn
from torch.nn import functional

from repro.seams.training import TrainingParts
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
