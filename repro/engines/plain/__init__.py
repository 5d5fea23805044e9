"""Training with plain PyTorch: the loop, its session, DDP hooks."""
