"""Preconditioners, one a file, and the parts of K-FAC."""
