"""Suites: read, checked, expanded into a plan."""
