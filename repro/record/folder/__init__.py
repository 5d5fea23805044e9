"""The run folder: its files, ledgers, index, lock, checkpoints; resuming and repair."""
