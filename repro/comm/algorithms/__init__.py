"""Collective algorithms, one a file, each a schedule as data."""
