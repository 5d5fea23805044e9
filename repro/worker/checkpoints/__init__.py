"""Checkpoints of a running trial."""
