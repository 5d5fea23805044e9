"""Workflows of commands across packages: run and report a suite, calibrate it, reproduce a record. Without click."""
