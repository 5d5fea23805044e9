"""Comparisons between published systems."""
