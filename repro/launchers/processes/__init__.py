"""Rank processes: the fork server, their start, their end."""
