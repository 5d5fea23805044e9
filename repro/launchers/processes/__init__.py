"""Rank processes: the fork server, the start of ranks and their end."""
