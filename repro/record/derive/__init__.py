"""The log of a trial -> its result."""
