"""A node's place among the nodes of a launch; imports no torch, so that plans can be made without it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.distributed import TCPStore  # type: ignore[attr-defined]  # public, not marked so

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Membership:
    """This node's place among the nodes of a launch."""

    node: int = 0
    nodes: int = 1
    address: str = LOOPBACK
    """Of the node that hosts the store."""
    port: int = 0
    """Of the store; 0: node 0 of one node binds any."""
    store: TCPStore | None = None
    """On the node that hosts it, if it was bound before."""
    prefix: str = "agent"
    """Of all keys; a secret of the launch where nodes meet over a network."""
