"""Reports of published results."""
