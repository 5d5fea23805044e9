"""Launchers: start the ranks of a trial and report how each of them ended."""
