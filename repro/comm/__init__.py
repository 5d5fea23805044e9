"""Collective algorithms that replace the communication backend of any engine."""
