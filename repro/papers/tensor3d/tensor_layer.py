"""Tensor parallel layers: forward and backward of a linear layer, an MLP or an attention block on a grid of ranks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import Field

from repro.papers.tensor3d import formula
from repro.papers.tensor3d.layout import Dimension, Grid, grid_of, shares, why_no_grid
from repro.seams.measurement import FigureKind, Measurement, Measuring, Post
from repro.seams.plugin import Setting

LARGE = 64
"""Ranks of the case that is only modelled."""


class TensorLayer(Measurement):
    """A layer whose weights and activations are divided over the ranks by rows, squares or cubes.

    1d: Shoeybi et al., 2019. 2d: van de Geijn and Watts, 1997; Xu et al., 2021. 2.5d: Solomonik and Demmel, 2011; Wang
    et al., 2021. 3d: Bian, Xu, Wang and You, 2021, arXiv:2105.14450.
    """

    title: ClassVar[str] = "tensor parallel layer, forward and backward"
    items: ClassVar[str] = "tokens"
    always_shown: ClassVar[tuple[str, ...]] = ("dimension", "layer")
    preload: ClassVar[tuple[str, ...]] = ("torch", "torch.distributed", "repro.papers.tensor3d.running")
    figures: ClassVar[Mapping[str, FigureKind]] = {
        "stored_bytes": FigureKind("input and weights on a rank", "bytes", label="counted"),
        "stored_formula": FigureKind("input and weights on a rank, by formula", "bytes", label="modelled"),
        "peak_tensor_bytes": FigureKind("most bytes of tensors on a rank", "bytes", label="counted"),
        "peak_formula": FigureKind("most bytes of tensors on a rank, by formula", "bytes", label="modelled"),
        "sent_formula": FigureKind("bytes that a rank sends, by formula", "bytes an operation", label="modelled"),
        "sent_at_64": FigureKind("bytes that a rank sends, on 64 ranks", "bytes an operation", label="modelled"),
        "stored_at_64": FigureKind("input and weights on a rank, on 64 ranks", "bytes", label="modelled"),
        "seconds_at_64": FigureKind("communication on 64 ranks", "s", label="modelled"),
    }

    dimension: Dimension = Field(description="how ranks divide the matrices: 1d, 2d (a square), 2.5d, 3d (a cube)")
    layer: Literal["linear", "mlp", "attention"] = Field("mlp", description="what is measured; none has biases")
    batch: int = Field(8, ge=1, le=1 << 20, description="sequences")
    sequence: int = Field(32, ge=1, le=1 << 20, description="tokens of a sequence")
    hidden: int = Field(64, ge=1, le=1 << 20, description="columns of an activation")
    heads: int = Field(8, ge=1, le=1 << 16, description="heads of an attention block")
    dtype: Literal["float64", "float32"] = Field("float64", description="type of all tensors")
    model_mbit: float = Field(1000.0, gt=0, description="rate of a link in the model of 64 ranks, Mbit/s")
    model_latency_us: float = Field(50.0, ge=0, description="latency of a message in it, microseconds")

    def items_per_operation(self, processes: int) -> int:
        return self.batch * self.sequence

    def expected_seconds(self, processes: int) -> float:
        rows, inner, columns = self.batch * self.sequence, self.hidden, 4 * self.hidden
        return 0.02 * processes + (1 if self.layer == "linear" else 2) * 6 * rows * inner * columns / 2e9

    def unsupported(self, setting: Setting) -> str | None:
        count = setting.processes
        return why_no_grid(self.dimension, count) or self._indivisible(grid_of(self.dimension, count)) or None

    def _indivisible(self, grid: Grid) -> str:
        """Return which size the grid cannot cut into equal parts; "" if it can cut all."""
        own = shares(self.dimension, grid, 0)
        rows, columns = own.x.row_parts, own.y.column_parts  # of activations, and of what is between the two products
        # A of the 3-D scheme is cut once more, by rows.
        inner = rows if self.dimension == "3d" else columns
        wanted = [("batch", self.batch, rows), ("hidden", self.hidden, inner)]
        if self.layer == "attention":
            wanted.append(("heads", self.heads, columns))
        for name, value, parts in wanted:
            if value % parts:
                return f"{name} {value} cannot be cut into {parts} equal parts, as {self.dimension} on {grid.ranks} " \
                       f"processes needs; use a multiple of {parts}"
        if self.layer == "attention" and self.hidden % self.heads:
            return f"hidden {self.hidden} is not divisible by heads {self.heads}"
        return ""

    def start(self, post: Post) -> Measuring:
        from repro.papers.tensor3d.blocks import Shape
        from repro.papers.tensor3d.running import Running

        shape = Shape(self.layer, self.batch, self.sequence, self.hidden, self.heads)
        modelled = self._modelled(shape.products(), 8 if self.dtype == "float64" else 4)
        return Running(shape, self.dimension, self.dtype, modelled, post)

    def _modelled(self, sizes: tuple[formula.Size, ...], itemsize: int) -> dict[str, float]:
        """Return the figures of 64 ranks, by formula: nothing of them was run."""
        if why_no_grid(self.dimension, LARGE):
            return {}
        grid = grid_of(self.dimension, LARGE)
        sent = formula.sent_numbers(self.dimension, grid, sizes) * itemsize
        rounds = formula.messages(self.dimension, grid, sizes)
        return {
            "sent_at_64": sent, "stored_at_64": formula.stored_numbers(self.dimension, grid, sizes) * itemsize,
            "seconds_at_64": sent * 8 / (self.model_mbit * 1e6) + rounds * self.model_latency_us * 1e-6,
        }
