"""Collective algorithms by family, each a schedule as data."""
