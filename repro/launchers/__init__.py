"""Launchers: how the ranks of a trial are started, and how each of them ended."""
