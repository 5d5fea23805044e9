"""K-FAC, a distributed second-order preconditioner (docs/kfac.md)."""
