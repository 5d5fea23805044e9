"""Workloads: a model, its data and the metrics that judge it."""
