"""The kind of trial that measures operations: its configuration, its ranks, its result."""
