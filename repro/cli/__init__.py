"""The `repro` command: the only place that knows click."""
