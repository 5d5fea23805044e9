"""Designs of an experiment: sequential, factorial, calibrated, powered."""
