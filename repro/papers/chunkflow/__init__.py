"""Volumes in overlapping chunks: grid, bump mask, task queues, Zarr stores, operators and the worker's loop."""
