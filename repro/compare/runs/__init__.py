"""Runs and their findings: one record, two runs, several of each side, runs merged into one."""
