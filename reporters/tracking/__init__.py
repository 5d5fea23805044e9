"""Replay of a record to MLflow."""
