"""Benchmarks of the harness against bare alternatives: ratios in one session, interleaved, with intervals."""
