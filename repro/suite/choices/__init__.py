"""Choices of plug-ins in a suite: parsed, described for a record, and read back without the plug-in."""
