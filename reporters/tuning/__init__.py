"""The tuning of a record on a page and as tables."""
