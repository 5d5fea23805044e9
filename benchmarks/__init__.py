"""Measurements of the harness for those who change it: `python -m benchmarks NAME`; not part of the wheel."""
