"""Workloads: a model, its data and the metrics it is judged by."""
