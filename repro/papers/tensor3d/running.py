"""A tensor parallel layer on one rank: draw, cut, run forward and backward, compare with the dense layer."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch.distributed._tools.mem_tracker import MemTracker

from repro.core.devices import on_gpu
from repro.papers.tensor3d import formula
from repro.papers.tensor3d.blocks import Shape, dense, make_lines, parallel
from repro.papers.tensor3d.layout import Dimension, Share, grid_of, shares
from repro.seams.measurement import Check, Counted, Findings, Measuring, Post

LIMITS = {torch.float64: 1e-10, torch.float32: 1e-3}
"""Largest difference from the dense layer in float64, absolute; outputs are of order 1."""


class Running(Measuring):
    """One rank."""

    def __init__(
        self, shape: Shape, dimension: Dimension, dtype: str, modelled: Mapping[str, float], post: Post
    ) -> None:
        """Draw the matrices and keep this rank's shares.

        Args:
            modelled: figures of more ranks than run, which `finish` returns with its own.
        """
        self.shape, self.dimension, self.modelled, self.post = shape, dimension, modelled, post
        self.sizes = shape.products()
        self.grid = grid_of(dimension, post.world)
        self.lines = make_lines(self.grid, post.rank)
        self.shares = [shares(dimension, self.grid, post.rank, size.second) for size in self.sizes]
        self.dtype: torch.dtype = getattr(torch, dtype)
        x, weights, dy = self._drawn()
        self.x = self._own(x, self.shares[0].x).requires_grad_()
        self.weights = [self._own(weight, share.a).requires_grad_()
                        for weight, share in zip(weights, self.shares, strict=True)]
        self.dy = self._own(dy, self.shares[-1].y)
        self.y: torch.Tensor | None = None

    def _drawn(self) -> tuple[torch.Tensor, list[torch.Tensor], torch.Tensor]:
        """Return input, weights and gradient of the output as whole matrices, the same on every rank, float64."""
        def draw(name: str, rows: int, columns: int, place: int = 0) -> torch.Tensor:
            return torch.from_numpy(self.post.streams.generator(name, place).standard_normal((rows, columns)))

        first, last = self.sizes[0], self.sizes[-1]
        weights = [draw("weights", size.inner, size.columns, place) / size.inner ** 0.5
                   for place, size in enumerate(self.sizes)]
        return draw("input", first.rows, first.inner), weights, draw("gradient", last.rows, last.columns)

    def _own(self, whole: torch.Tensor, share: Share) -> torch.Tensor:
        rows, columns = share.slices(*whole.shape)
        return whole[rows, columns].to(self.post.device, self.dtype, copy=True).contiguous()

    def operate(self) -> None:
        self._clear_gradients()
        self.y = parallel(self.shape, self.dimension, self.lines, self.x, self.weights)
        torch.autograd.backward((self.y,), (self.dy,))

    def _clear_gradients(self) -> None:
        for tensor in (self.x, *self.weights):
            tensor.grad = None

    # ---- what was found

    def finish(self, counted: Counted) -> Findings:
        checks = self._answers()
        itemsize, dimension = self.dtype.itemsize, self.dimension
        stored = sum(tensor.nbytes for tensor in (self.x, *self.weights))
        figures = {
            "stored_bytes": stored,
            "stored_formula": formula.stored_numbers(dimension, self.grid, self.sizes) * itemsize,
            "sent_formula": formula.sent_numbers(dimension, self.grid, self.sizes) * itemsize,
            **self.modelled,
        }
        checks.append(Check("stored bytes against the formula", abs(stored - figures["stored_formula"])))
        if counted.sent_bytes is not None and (ran := self.post.comm.ran()) is not None and ran.algorithm == "ring":
            sent = counted.sent_bytes / counted.operations
            checks.append(Check("sent bytes against the formula", abs(sent - figures["sent_formula"])))
        if self.shape.layer != "attention":  # what attention needs inside is torch's own affair
            peak = self._peak_bytes()
            figures |= {"peak_tensor_bytes": peak,
                        "peak_formula": formula.peak_bytes(dimension, self.grid, self.sizes, itemsize,
                                                           formula.GPU_BLOCK if on_gpu(self.post.device) else 1)}
            checks.append(Check("peak bytes against the formula", abs(peak - figures["peak_formula"])))
        return Findings(tuple(checks), figures)

    def _answers(self) -> list[Check]:
        """Compare output and gradients of the last operation with those of the dense layer in float64."""
        x, weights, dy = self._drawn()
        for tensor in (x, *weights):
            tensor.requires_grad_()
        y = dense(self.shape, x, weights)
        torch.autograd.backward((y,), (dy,))
        limit = LIMITS[self.dtype]
        assert self.y is not None, "an operation ran"
        pairs = [("output", self.y, y, self.shares[-1].y), ("gradient of the input", self.x.grad, x.grad,
                                                            self.shares[0].x)]
        pairs += [(f"gradient of weights {place}", own.grad, whole.grad, share.a) for place, (own, whole, share)
                  in enumerate(zip(self.weights, weights, self.shares, strict=True), 1)]
        return [Check(f"{name} against the dense layer", _difference(own, whole, share), limit)
                for name, own, whole, share in pairs]

    def _peak_bytes(self) -> int:
        """Return the most bytes of tensors in one further operation, not timed; those in the process group excluded."""
        self.y = None
        self._clear_gradients()
        tracker = MemTracker()
        with tracker:
            tracker.track_external(self.x, *self.weights, self.dy)
            self.operate()
        device = torch.device(self.post.device)
        return int(tracker.get_tracker_snapshot("peak")[device]["Total"])

    def effective(self) -> dict[str, str]:
        found = {"dtype": str(self.x.dtype).removeprefix("torch."),
                 "grid": f"{self.grid.rows} x {self.grid.columns} x {self.grid.depth}",
                 "input_share": " x ".join(map(str, self.x.shape))}
        return found | {f"weights_share_{place}": " x ".join(map(str, weight.shape))
                        for place, weight in enumerate(self.weights, 1)}


def _difference(own: torch.Tensor | None, whole: torch.Tensor | None, share: Share) -> float:
    """Return the largest absolute difference of a share from its part of the whole; NaN if there is none."""
    if own is None or whole is None:
        return float("nan")
    rows, columns = share.slices(*whole.shape)
    return float((own.detach().cpu().double() - whole.detach()[rows, columns]).abs().max())
