"""K-FAC on one rank: its messages, inverses, the hooks that observe layers, and the preconditioning of a step."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, ClassVar

import torch
import torch.distributed as dist

from repro.core.errors import TrialError
from repro.papers.kfac.factors import Factors, find_layers
from repro.papers.kfac.options import Grid, KfacOptions, assign
from repro.seams.preconditioner import Place, Preconditioning


class Inverse(ABC):
    """Decomposition kept of a factor, and its product with a gradient."""

    def __init__(self, damping: float) -> None:
        self.damping = damping

    @abstractmethod
    def numbers(self, rows: int) -> int:
        """Return how many numbers are kept of a factor."""

    @abstractmethod
    def decompose(self, factor: torch.Tensor, kept: torch.Tensor) -> None:
        """Write what is kept of `factor` [n, n] into `kept` [numbers(n)]."""

    @abstractmethod
    def product(self, a: torch.Tensor, g: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
        """Return the preconditioned gradient [outputs, inputs].

        Args:
            a: what is kept of A [inputs, inputs].
            g: what is kept of G [outputs, outputs].
        """


class Eigen(Inverse):
    """(G (x) A + damping I)^-1 dW = Q_G ((Q_G^T dW Q_A) / (l_G l_A^T + damping)) Q_A^T."""

    def numbers(self, rows: int) -> int:
        return rows**2 + rows

    def decompose(self, factor: torch.Tensor, kept: torch.Tensor) -> None:
        values, vectors = torch.linalg.eigh(factor)
        kept[:-len(factor)].copy_(vectors.reshape(-1))
        # Rounding makes eigenvalues of a singular matrix negative.
        kept[-len(factor):].copy_(values.clamp_(min=0))

    def product(self, a: torch.Tensor, g: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
        outputs, inputs = gradient.shape
        q_a, q_g = a[:-inputs].view(inputs, inputs), g[:-outputs].view(outputs, outputs)
        rotated = q_g.T @ gradient @ q_a
        rotated /= torch.outer(g[-outputs:], a[-inputs:]) + self.damping
        return q_g @ rotated @ q_a.T


class Direct(Inverse):
    """(G + damping I)^-1 dW (A + damping I)^-1."""

    def numbers(self, rows: int) -> int:
        return rows**2

    def decompose(self, factor: torch.Tensor, kept: torch.Tensor) -> None:
        damped = factor + self.damping * torch.eye(len(factor), device=factor.device)
        kept.copy_(torch.linalg.inv(damped).reshape(-1))

    def product(self, a: torch.Tensor, g: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
        outputs, inputs = gradient.shape
        return g.view(outputs, outputs) @ gradient @ a.view(inputs, inputs)


INVERSES: dict[str, type[Inverse]] = {"eigen": Eigen, "direct": Direct}


class Exchange:
    """The groups of one rank. Groups of all ranks are the default group; others are made here, by all ranks."""

    def __init__(self, grid: Grid, rank: int) -> None:
        self.grid, self.rank = grid, rank
        rows = [grid.row_of(place) for place in range(grid.workers)]
        columns = [grid.column(column) for column in range(grid.columns)]
        self.column = self._join(columns)
        """Ranks that precondition the same layers."""
        self.row = self._join(rows)
        """One rank of each column."""

    def _join(self, groups: Sequence[Sequence[int]]) -> Any:
        """Return this rank's group of several; None: it is alone in it."""
        found = None
        for ranks in groups:
            if len(ranks) == 1:
                continue
            group = dist.group.WORLD if len(ranks) == self.grid.world else dist.new_group(list(ranks))
            found = group if self.rank in ranks else found
        return found

    def average(self, flat: torch.Tensor) -> None:
        """Replace `flat` by its mean over all ranks."""
        if self.grid.world > 1:
            dist.all_reduce(flat)
            flat.div_(self.grid.world)

    @staticmethod
    def share(group: Any, pieces: Mapping[int, torch.Tensor]) -> None:
        """Copy to all ranks of `column` or `row` what each of them owns.

        Args:
            pieces: by owner, of the same owners on all ranks of the group.
        """
        if group is not None:
            for owner, piece in pieces.items():
                dist.broadcast(piece, src=owner, group=group)


def kl_factor(
    results: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor], kappa: float, rate: float
) -> torch.Tensor:
    """Return nu = min(1, sqrt(kappa / |sum v dW rate^2|)), a scalar tensor (papers: Ba et al., 2017; SC 2020).

    At rate 0 the bound holds for anything, and nu is 1.

    Args:
        results: v, the preconditioned gradients.
        gradients: dW, not multiplied by a loss scale; of the shapes of `results`.
    """
    change = torch.stack([(v * dw).sum() for v, dw in zip(results, gradients, strict=True)]).sum().abs() * rate**2
    return (kappa / change).sqrt().clamp(max=1.0)


class RunningKfac(Preconditioning):
    """The factors, decompositions and messages of one model on one rank.

    A factor step (every `factor_every`) observes the layers and averages the factors over the ranks. An eigen step
    (every `eigen_every`) also decomposes them. Every step preconditions.

    Raises:
        TrialError: the model has no layer that it could precondition.
    """

    name: ClassVar[str] = "K-FAC"

    def __init__(self, options: KfacOptions, model: torch.nn.Module, place: Place) -> None:
        self.options, self.place = options, place
        device = torch.device(place.device)
        self.device_type = device.type
        self.layers = find_layers(model, options.largest_factor)
        if not self.layers:
            raise TrialError("K-FAC would change nothing: the model has no Linear, Conv1d or Conv2d of its own, or "
                             f"only some with more than {options.largest_factor} inputs or outputs")
        self.trained = sum(item.numel() for item in model.parameters() if item.requires_grad)
        self.factors = Factors(self.layers, device, place.accumulation)
        self.inverse = INVERSES[options.inverse](options.damping)
        self.grid = options.grid(place.world)
        self.exchange = Exchange(self.grid, place.rank)
        self.assignment = assign([layer.sizes for layer in self.layers], self.grid)
        self._allocate(device)
        self.step = self.decompositions = 0
        self._observes = False
        for number, layer in enumerate(self.layers):
            layer.module.register_forward_hook(partial(self._observe, number), with_kwargs=True)

    def _allocate(self, device: torch.device) -> None:
        """Make room for what this rank keeps of factors, one piece of memory per owner, and for results, one a column.
        """
        mine = self.grid.column_of(self.place.rank)
        self.worked = [number for number, column in enumerate(self.assignment.columns) if column == mine]
        """Numbers of the layers that this rank preconditions."""
        wanted: dict[int, list[tuple[int, int]]] = {}
        for number in self.worked:
            for part, owner in enumerate(self.assignment.owners[number]):
                wanted.setdefault(owner, []).append((number, part))
        self.pieces: dict[int, torch.Tensor] = {}
        self.kept: dict[tuple[int, int], torch.Tensor] = {}
        """(layer, 0 for A or 1 for G) -> what is kept of the factor."""
        for owner, items in sorted(wanted.items()):
            numbers = [self.inverse.numbers(self.layers[number].sizes[part]) for number, part in items]
            self.pieces[owner] = torch.zeros(sum(numbers), device=device)
            self.kept.update(zip(items, torch.split(self.pieces[owner], numbers), strict=True))
        self.columns: dict[int, torch.Tensor] = {}
        results: dict[int, torch.Tensor] = {}
        for column in sorted(set(self.assignment.columns)):
            dealt = [number for number, of in enumerate(self.assignment.columns) if of == column]
            counts = [self.layers[number].parameters for number in dealt]
            self.columns[column] = torch.zeros(sum(counts), device=device)
            views = torch.split(self.columns[column], counts)
            results |= {number: view.view(self.layers[number].outputs, -1)
                        for number, view in zip(dealt, views, strict=True)}
        self.results = [results[number] for number in range(len(self.layers))]

    # ---- observation

    @property
    def is_factor_step(self) -> bool:
        # A first step whose loss scale was too large leaves nothing to precondition with: the next one counts.
        return self.step % self.options.factor_every == 0 or not self.factors.updates

    @contextmanager
    def observing(self) -> Iterator[None]:
        self._observes = self.is_factor_step
        try:
            yield
        finally:
            self._observes = False

    def _observe(self, number: int, _: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        if not self._observes:
            return
        with torch.no_grad(), torch.autocast(self.device_type, enabled=False):
            self.factors.add_inputs(number, args[0] if args else kwargs["input"])
        output.register_hook(partial(self._observe_gradient, number))

    def _observe_gradient(self, number: int, gradient: torch.Tensor) -> None:
        with torch.no_grad(), torch.autocast(self.device_type, enabled=False):
            self.factors.add_gradient(number, gradient)

    # ---- the step

    @torch.no_grad()
    def apply(self, gradients: Mapping[str, torch.Tensor | None], rate: float, scale: float) -> None:
        if self.is_factor_step:
            self.factors.update(self.exchange.average, self.options.factor_decay, scale)
        if self.factors.updates and (self.step % self.options.eigen_every == 0 or not self.decompositions):
            self._decompose()
        self.step += 1
        if self.decompositions:
            self._precondition(gradients, rate, scale)

    def _decompose(self) -> None:
        matrices = self.factors.matrices()
        for (number, part), kept in self.kept.items():
            if self.assignment.owners[number][part] == self.place.rank:
                self.inverse.decompose(matrices[2 * number + part], kept)
        self.exchange.share(self.exchange.column, self.pieces)
        self.decompositions += 1

    def _precondition(self, gradients: Mapping[str, torch.Tensor | None], rate: float, scale: float) -> None:
        matrices = []
        for layer in self.layers:
            if (matrix := layer.matrix(gradients)) is None:
                raise TrialError(f"K-FAC needs a gradient of every layer in every step; {layer.weight} got none")
            matrices.append(matrix)
        for number in self.worked:
            a, g = self.kept[number, 0], self.kept[number, 1]
            self.results[number].copy_(self.inverse.product(a, g, matrices[number]))
        row = self.grid.row_of(self.place.rank)
        self.exchange.share(self.exchange.row, {row[column]: piece for column, piece in self.columns.items()})
        if self.options.kl_clip is not None:
            # Both factors of the sum carry the loss scale; the rate divided by it undoes that.
            nu = kl_factor(self.results, matrices, self.options.kl_clip, rate / scale)
            for result in self.columns.values():
                result.mul_(nu)
        for layer, result in zip(self.layers, self.results, strict=True):
            layer.write(result, gradients)

    # ---- state

    def shared_tensors(self) -> dict[str, torch.Tensor]:
        return {"factors": self.factors.averages, **(self._decomposed() if self.grid.columns == 1 else {})}

    def own_tensors(self) -> dict[str, torch.Tensor]:
        return {} if self.grid.columns == 1 else self._decomposed()

    def _decomposed(self) -> dict[str, torch.Tensor]:
        return {f"decompositions.{owner}": piece for owner, piece in self.pieces.items()}

    def counts(self) -> dict[str, int]:
        return {"step": self.step, "updates": self.factors.updates, "decompositions": self.decompositions}

    def set_counts(self, counts: Mapping[str, int]) -> None:
        self.step, self.factors.updates = counts["step"], counts["updates"]
        self.decompositions = counts["decompositions"]

    # ---- read-outs

    def effective(self) -> dict[str, str]:
        covered = sum(layer.parameters for layer in self.layers)
        return {
            "preconditioner": self.name,
            "preconditioned_layers": str(len(self.layers)),
            "preconditioned_parameters": f"{covered} of {self.trained}",
            "preconditioner_inverse": f"{type(self.inverse).__name__.lower()}, damping {self.inverse.damping:g}",
            "preconditioner_placement": f"{self.options.placement}: {self.grid.workers} of {self.grid.world} ranks a "
                                        "layer",
            "preconditioner_periods": f"factors every {self.options.factor_every}, decompositions every "
                                      f"{self.options.eigen_every}",
        }
