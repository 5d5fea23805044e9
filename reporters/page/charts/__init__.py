"""The figures of a page: curves, survival, scaling, a search."""
