"""A session finds the trained parameters of a model without a walk through its modules."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from repro.engines.plain.session import TorchSession


class Tied(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = torch.nn.Embedding(5, 3), torch.nn.Linear(3, 5, bias=False)
        self.head.weight = self.embedding.weight


class Stripped(torch.nn.Module):
    """A wrapper that names parameters as the wrapped model does."""

    def __init__(self, *more: torch.nn.Parameter) -> None:
        super().__init__()
        self.inner, self.more = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3)), more

    def named_parameters(self, *args: Any, **named: Any) -> Iterator[tuple[str, torch.nn.Parameter]]:
        yield from self.inner.named_parameters(*args, **named)
        yield from ((f"more.{place}", parameter) for place, parameter in enumerate(self.more))


@pytest.mark.parametrize("model", [Tied(), Stripped(), Stripped(torch.nn.Parameter(torch.zeros(2)))])
def test_they_are_those_of_named_parameters(model: torch.nn.Module) -> None:
    first = next(model.parameters())
    first.requires_grad = False
    session = cast(TorchSession, SimpleNamespace(model=model, _places=TorchSession._places.func(
        cast(TorchSession, SimpleNamespace(model=model)))))
    found = TorchSession.trained(session)
    expected = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    assert [(name, id(parameter)) for name, parameter in found] == [
        (name, id(parameter)) for name, parameter in expected]


def test_a_parameter_that_another_takes_the_place_of_is_found() -> None:
    model = torch.nn.Linear(2, 3)
    session = cast(TorchSession, SimpleNamespace(model=model))
    cast(Any, session)._places = TorchSession._places.func(session)
    model.bias = torch.nn.Parameter(torch.ones(3))
    assert TorchSession.trained(session)[1][1] is model.bias
