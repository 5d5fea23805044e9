"""Scores over workloads: contenders, performance profiles, geometric means of ratios, and `repro scores`."""
