"""Advice from a short pilot: how many workers, how many servers, which batch; with its formulas (docs/advise.md)."""
