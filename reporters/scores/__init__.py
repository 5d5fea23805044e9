"""Scores over workloads on a page and as a figure."""
