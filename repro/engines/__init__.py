"""Engines: ways to train data-parallel, one per file."""
