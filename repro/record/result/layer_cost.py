"""How the gradient of one layer travels, and what the other way would have cost."""

from __future__ import annotations

from repro.core.frozen import Frozen


class LayerCost(Frozen):
    """A line of the cost table of sufficient factors (event `x_gradient_plan`), made in `repro.papers.wait_free`."""

    name: str
    """Of the weight."""
    outputs: int
    """M."""
    inputs: int
    """N; of a convolution all weights of one output."""
    linear: bool
    """A fully connected layer; only these can send factors."""
    rows: int
    """K: rows that the layer sees in a step on one worker, samples times positions."""
    itemsize: int
    """Bytes of a number of the gradient."""
    factor_itemsize: int
    """Bytes of a number of the factors."""
    reduce_bytes: int
    """Sent in a step by the busiest rank if the gradient is averaged."""
    factor_bytes: int
    """The same if factors are gathered."""
    reduce_seconds: float
    """Modelled."""
    factor_seconds: float
    """Modelled."""
    paper: bool
    """The paper's rule chooses factors."""
    factors: bool
    """The layer sent factors."""
